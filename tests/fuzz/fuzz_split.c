/* A reply of any bytes, cut anywhere, comes apart as it does in one piece, and the arguments of
 * every call are a JSON object. Byte 0 seeds the cuts; its lowest bit begins inside the thinking.
 */
#include "fuzz_target.h"

#include <string.h>

#include "serve/field.h"
#include "serve/split.h"

typedef struct record {
    rg_buf text; /* kinds and texts, pieces of one part joined */
    rg_buf args;
    int last;
} record;

static rg_code on_part(void *user, const rg_part *p, rg_status *st) {
    record *r = user;
    if (p->kind == RG_PART_CALL_BEGIN) rg_buf_clear(&r->args);
    if (p->kind == RG_PART_CALL_ARGS) {
        RG_TRY(rg_buf_append(&r->args, p->text.data, p->text.len, st));
    }
    if (p->kind == RG_PART_CALL_END) {
        json_error_t e;
        json_t *v = json_loadb(r->args.data, r->args.len, 0, &e);
        /* A name twice is the model's; bytes that are no UTF-8 never reach the splitter. */
        RG_ASSERT(json_is_object(v));
        json_decref(v);
    }
    const bool joins =
        r->last == (int)p->kind && p->kind != RG_PART_CALL_BEGIN && p->kind != RG_PART_CALL_END;
    if (!joins) RG_TRY(rg_buf_printf(&r->text, st, "|%d:", (int)p->kind));
    r->last = (int)p->kind;
    return rg_buf_append(&r->text, p->text.data, p->text.len, st);
}

static void run(const char *text, size_t len, uint64_t seed, bool whole, const json_t *tools,
                record *r) {
    rg_split s;
    rg_status st = {0};
    rg_buf_init(&r->text, 0);
    rg_buf_init(&r->args, 0);
    r->last = -1;
    rg_split_init(&s, seed & 1, tools, on_part, r);
    for (size_t at = 0, i = 0; at < len; i++) {
        size_t n = whole ? len : 1 + (size_t)(rg_random_u64(seed, i) % 9);
        if (n > len - at) n = len - at;
        RG_ASSERT(rg_split_push(&s, text + at, n, &st) == RG_OK);
        at += n;
    }
    RG_ASSERT(rg_split_finish(&s, &st) == RG_OK);
    rg_split_deinit(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char tool[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
                               "\"string\"},\"n\":{\"type\":\"number\"},\"o\":{}}}}]";
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    json_t *utf8 = json_stringn(text, size - 1);
    if (!utf8) return 0;
    json_decref(utf8);
    json_error_t e;
    json_t *tools = json_loads(tool, 0, &e);
    RG_ASSERT(tools != NULL);
    record one, two;
    run(text, size - 1, data[0], true, tools, &one);
    run(text, size - 1, data[0], false, tools, &two);
    RG_ASSERT(one.text.len == two.text.len);
    RG_ASSERT(one.text.len == 0 || memcmp(one.text.data, two.text.data, one.text.len) == 0);
    rg_buf_deinit(&one.text);
    rg_buf_deinit(&one.args);
    rg_buf_deinit(&two.text);
    rg_buf_deinit(&two.args);
    json_decref(tools);
    return 0;
}
