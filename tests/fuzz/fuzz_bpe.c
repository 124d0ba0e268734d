/* Tokenize any bytes with a small vocabulary whose merges come from the input too.
 *
 * Byte 0: bit 0 parse_special, bits 1-3 the pre-tokenizer, bit 4 tiny match limits. Byte 1: number
 * of merges (mod 32), then two bytes each that choose earlier texts. The rest is the text. Whatever
 * the merges, the tokens' bytes must be the text again.
 */
#include "fuzz_target.h"

#include <string.h>

#include "text/tokenizer.h"

#define MERGES_MAX 32u
#define TEXT_MAX   24u /* bytes of a merged token */
#define N_SPECIAL  4u
#define LETTERS    8u

typedef struct vocabulary {
    char spelling[256][2];
    char texts[LETTERS + MERGES_MAX][TEXT_MAX]; /* what merges choose from; letters a-h first */
    size_t lens[LETTERS + MERGES_MAX];
    char merge_texts[MERGES_MAX][2 * TEXT_MAX + 1];
    rg_str merges[MERGES_MAX];
    size_t n_texts, n_merges;
    rg_str tokens[256 + N_SPECIAL + MERGES_MAX];
    uint8_t kinds[256 + N_SPECIAL + MERGES_MAX];
    size_t n_tokens;
} vocabulary;

static void add_token(vocabulary *v, rg_str text, rg_token_kind kind) {
    v->tokens[v->n_tokens] = text;
    v->kinds[v->n_tokens++] = (uint8_t)kind;
}

static void add_bytes(vocabulary *v) {
    static const rg_str special[N_SPECIAL] = {
        {"<|im_end|>", 10}, {"<|im", 4}, {"<think>", 7}, {"a<think>b", 9}};
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        const unsigned code = prints ? byte : next++;
        char *s = v->spelling[byte];
        s[0] = (char)(code < 0x80 ? code : 0xC0 | code >> 6);
        s[1] = (char)(0x80 | (code & 0x3F));
        add_token(v, (rg_str){s, code < 0x80 ? 1 : 2}, RG_TOKEN_NORMAL);
    }
    for (unsigned i = 0; i < N_SPECIAL; i++) {
        add_token(v, special[i], i < 2 ? RG_TOKEN_CONTROL : RG_TOKEN_USER);
    }
    for (; v->n_texts < LETTERS; v->n_texts++) {
        v->texts[v->n_texts][0] = (char)('a' + (int)v->n_texts);
        v->lens[v->n_texts] = 1;
    }
}

static void add_merge(vocabulary *v, uint8_t a, uint8_t b) {
    const size_t left = a % v->n_texts;
    const size_t right = b % v->n_texts;
    const size_t len = v->lens[left] + v->lens[right];
    if (len > TEXT_MAX) return;
    char *merge = v->merge_texts[v->n_merges];
    memcpy(merge, v->texts[left], v->lens[left]);
    merge[v->lens[left]] = ' ';
    memcpy(merge + v->lens[left] + 1, v->texts[right], v->lens[right]);
    v->merges[v->n_merges++] = (rg_str){merge, len + 1};
    char *text = v->texts[v->n_texts];
    memcpy(text, v->texts[left], v->lens[left]);
    memcpy(text + v->lens[left], v->texts[right], v->lens[right]);
    v->lens[v->n_texts++] = len;
    /* Every third merged text is left out of the vocabulary. */
    if (v->n_merges % 3) add_token(v, (rg_str){text, len}, RG_TOKEN_NORMAL);
}

static void check(const rg_tokenizer *t, const char *text, size_t len, uint8_t flags) {
    rg_ids ids = {0};
    rg_buf back;
    rg_status st = {0};
    rg_pretok_limits limits = rg_pretok_default_limits;
    if (flags & 16) limits = (rg_pretok_limits){4, 2, 1, 1 << 16, true};
    rg_buf_init(&back, 0);
    const rg_code rc = rg_tokenize_limited(t, text, len, flags & 1, &limits, &ids, NULL, &st);
    RG_ASSERT(rc == RG_OK);
    for (size_t i = 0; i < ids.count; i++) {
        RG_ASSERT(rg_detokenize(t, ids.ids[i], true, &back, &st) == RG_OK);
    }
    RG_ASSERT(back.len == len);
    if (len) RG_ASSERT(memcmp(back.data, text, len) == 0);
    rg_free(ids.ids);
    rg_buf_deinit(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const pre[8] = {"qwen35", "qwen2",     "gpt-2",  "llama-bpe",
                                       "gpt-4o", "starcoder", "falcon", "default"};
    if (size < 2) return 0;
    vocabulary *v = rg_alloc(1, sizeof *v, NULL);
    if (!v) return 0;
    add_bytes(v);
    size_t pos = 2;
    for (size_t i = 0; i < data[1] % MERGES_MAX && pos + 2 <= size; i++, pos += 2) {
        add_merge(v, data[pos], data[pos + 1]);
    }
    const char *name = pre[data[0] >> 1 & 7];
    const rg_tokenizer_spec spec = {.pre = {name, strlen(name)},
                                    .tokens = v->tokens,
                                    .kinds = v->kinds,
                                    .n_tokens = v->n_tokens,
                                    .merges = v->merges,
                                    .n_merges = v->n_merges,
                                    .bos = -1,
                                    .eos = -1,
                                    .eot = -1,
                                    .eom = -1,
                                    .unknown = -1,
                                    .add_bos = -1};
    rg_tokenizer *t = NULL;
    RG_ASSERT(rg_tokenizer_build(&t, &spec, NULL) == RG_OK);
    check(t, (const char *)data + pos, size - pos, data[0]);
    rg_tokenizer_destroy(t);
    rg_free(v);
    return 0;
}
