/* Chat renderers: template text, messages, tools and options from any bytes.
 *
 * Byte 0: bits 0-1 the family (0, 3: recognised, 1 qwen, 2 chatml), bits 2-4 options. Then fields
 * up to the next 0x01 byte: template text, effort, one tool; then messages: a byte with role (bits
 * 0-1), calls (bit 2), given reasoning (bit 3), and its content, reasoning, and names of a call. A
 * refusal must leave the buffer as it was; what is rendered ends as the options say.
 */
#include "fuzz_target.h"

#include <string.h>

#include "text/text.h"

#define MESSAGES_MAX 16u

typedef struct input {
    const uint8_t *data;
    size_t size, pos;
} input;

static rg_str field(input *in) {
    const size_t begin = in->pos;
    while (in->pos < in->size && in->data[in->pos] != 1) {
        in->pos++;
    }
    const rg_str s = {(const char *)in->data + begin, in->pos - begin};
    if (in->pos < in->size) in->pos++;
    return s;
}

typedef struct chat {
    rg_message messages[MESSAGES_MAX];
    rg_tool_call calls[MESSAGES_MAX][2];
    rg_tool_arg args[MESSAGES_MAX][2];
    size_t n_messages;
} chat;

static void read_message(input *in, chat *c) {
    const size_t i = c->n_messages++;
    const uint8_t head = in->data[in->pos++];
    rg_message *m = &c->messages[i];
    m->role = (rg_role)(head & 3);
    m->has_reasoning = head & 8;
    m->content = field(in);
    m->reasoning = field(in);
    if (!(head & 4)) return;
    c->args[i][0] = (rg_tool_arg){field(in), field(in), head & 16};
    c->args[i][1] = (rg_tool_arg){{"b", 1}, {"null", 4}, false};
    c->calls[i][0] = (rg_tool_call){field(in), c->args[i], 2};
    c->calls[i][1] = (rg_tool_call){{"g", 1}, NULL, 0};
    m->calls = c->calls[i];
    m->n_calls = head & 32 ? 2 : 1;
}

static bool ends_with(const rg_buf *b, const char *tail) {
    const size_t len = strlen(tail);
    return b->len >= len && memcmp(b->data + b->len - len, tail, len) == 0;
}

static void render(const rg_chat_template *t, const chat *c, const rg_str *tools,
                   const rg_chat_options *options) {
    rg_buf out;
    rg_status st = {0};
    rg_buf_init(&out, 0);
    RG_ASSERT(rg_buf_puts(&out, "before", NULL) == RG_OK);
    const rg_code rc = rg_chat_render(t, c->messages, c->n_messages, tools, tools->len ? 1 : 0,
                                      options, &out, &st);
    if (rc != RG_OK) {
        RG_ASSERT(rc == RG_INVALID);
        RG_ASSERT(strcmp(out.data, "before") == 0);
        RG_ASSERT(st.message[0] != 0);
    } else if (options->add_generation_prompt) {
        RG_ASSERT(ends_with(&out, "<|im_start|>assistant\n") || ends_with(&out, "<think>\n") ||
                  ends_with(&out, "</think>\n\n"));
    } else if (c->n_messages) {
        RG_ASSERT(ends_with(&out, "<|im_end|>\n"));
    }
    rg_buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[4] = {NULL, "qwen", "chatml", NULL};
    if (size < 1 || size > 65536) return 0;
    input in = {data, size, 1};
    const rg_str text = field(&in);
    const rg_str effort = field(&in);
    const rg_str tool = field(&in);
    chat *c = rg_alloc(1, sizeof *c, NULL);
    if (!c) return 0;
    while (in.pos < in.size && c->n_messages < MESSAGES_MAX) {
        read_message(&in, c);
    }
    const rg_chat_options options = {.add_generation_prompt = data[0] & 4,
                                     .enable_thinking = data[0] & 8,
                                     .preserve_thinking = data[0] & 16,
                                     .reasoning_effort = effort};
    rg_chat_template *t = NULL;
    rg_status st = {0};
    const rg_code rc = rg_chat_template_create(&t, text, names[data[0] & 3], &st);
    if (rc == RG_OK) {
        render(t, c, &tool, &options);
    } else {
        RG_ASSERT(rc == RG_UNSUPPORTED);
        RG_ASSERT(t == NULL);
    }
    rg_chat_template_destroy(t);
    rg_free(c);
    return 0;
}
