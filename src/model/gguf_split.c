/* Split models: prefix-00002-of-00003.gguf. The names of all files follow from one of them; each
 * is a complete GGUF file, the metadata of the model lies in the first.
 */
#include "model/gguf_split.h"

#include <stdio.h>
#include <string.h>

#include "model/gguf_load.h"

#define SUFFIX_BYTES_MAX 32

typedef unsigned long long ull;

static int shard_suffix(char out[SUFFIX_BYTES_MAX], uint64_t no, uint64_t count) {
    return snprintf(out, SUFFIX_BYTES_MAX, "-%05llu-of-%05llu.gguf", (ull)no + 1, (ull)count);
}

rg_code rg_gguf_split_count(const rg_gguf_shard *s, uint32_t *count, rg_status *st) {
    *count = 1;
    if (!rg_gguf_shard_find(s, "split.count")) return RG_OK;
    uint64_t n = 0;
    RG_TRY(rg_gguf_shard_u64(s, "split.count", 0, RG_GGUF_SHARDS_MAX, &n, st));
    if (n > 1) *count = (uint32_t)n;
    return RG_OK;
}

/* Length of the path in front of the suffix that the shard's own numbers demand. */
static rg_code find_prefix(const rg_gguf_shard *s, uint32_t count, uint32_t *no, size_t *prefix,
                           rg_status *st) {
    uint64_t n = 0;
    RG_TRY(rg_gguf_shard_u64(s, "split.no", 0, count - 1, &n, st));
    char suffix[SUFFIX_BYTES_MAX];
    const size_t len = (size_t)shard_suffix(suffix, n, count);
    const size_t path_len = strlen(s->path);
    if (path_len <= len || strcmp(s->path + path_len - len, suffix) != 0) {
        return rg_fail(st, RG_FORMAT,
                       "%.*s: shard file renamed: split.no %llu of split.count %u asks for '*%s'",
                       RG_GGUF_SHOWN_MAX, rg_gguf_base_name(s->path), (ull)n, count, suffix);
    }
    *no = (uint32_t)n;
    *prefix = path_len - len;
    return RG_OK;
}

static rg_code open_shard(rg_gguf_shard *s, const char *path, size_t prefix, uint32_t no,
                          uint32_t count, rg_status *st) {
    char suffix[SUFFIX_BYTES_MAX];
    const size_t len = (size_t)shard_suffix(suffix, no, count);
    char *name = rg_alloc(prefix + len + 1, 1, st);
    if (!name) return RG_NOMEM;
    memcpy(name, path, prefix);
    memcpy(name + prefix, suffix, len);
    rg_code rc = rg_gguf_shard_open(s, name, st);
    if (rc != RG_OK) rc = rg_context(st, rc, "shard %u of %u", no + 1, count);
    rg_free(name);
    return rc;
}

static bool same_string(const rg_gguf_kv *a, const rg_gguf_kv *b) {
    return a->type == b->type && a->size_bytes == b->size_bytes &&
           memcmp(a->data, b->data, a->size_bytes) == 0;
}

/* What shard `no` says about the model must agree with shard 0 and with its own place. */
static rg_code check_shard(const rg_gguf_shard *shards, uint32_t no, uint32_t count,
                           uint64_t n_tensor, rg_status *st) {
    const rg_gguf_shard *s = &shards[no];
    const char *name = rg_gguf_base_name(s->path);
    uint64_t v = 0;
    RG_TRY(rg_gguf_shard_u64(s, "split.no", 0, UINT32_MAX, &v, st));
    if (v != no) {
        return rg_fail(st, RG_FORMAT, "%.*s: split.no is %llu, its name and place say %u",
                       RG_GGUF_SHOWN_MAX, name, (ull)v, no);
    }
    RG_TRY(rg_gguf_shard_u64(s, "split.count", 0, UINT32_MAX, &v, st));
    if (v != count) {
        return rg_fail(st, RG_FORMAT, "%.*s: split.count is %llu, other shards say %u",
                       RG_GGUF_SHOWN_MAX, name, (ull)v, count);
    }
    RG_TRY(rg_gguf_shard_u64(s, "split.tensors.count", 0, UINT32_MAX, &v, st));
    if (v != n_tensor) {
        return rg_fail(st, RG_FORMAT, "%.*s: split.tensors.count is %llu, all shards hold %llu",
                       RG_GGUF_SHOWN_MAX, name, (ull)v, (ull)n_tensor);
    }
    if (s->version != shards[0].version) {
        return rg_fail(st, RG_FORMAT, "%.*s: GGUF version %u, the first shard has %u",
                       RG_GGUF_SHOWN_MAX, name, s->version, shards[0].version);
    }
    const rg_gguf_kv *first = rg_gguf_shard_find(&shards[0], "general.architecture");
    const rg_gguf_kv *own = rg_gguf_shard_find(s, "general.architecture");
    if (own && first && !same_string(own, first)) {
        return rg_fail(
            st, RG_FORMAT,
            "%.*s: general.architecture (%zu bytes) differs from the first shard's (%zu)",
            RG_GGUF_SHOWN_MAX, name, own->size_bytes, first->size_bytes);
    }
    return RG_OK;
}

rg_code rg_gguf_split_open(rg_gguf_shard *shards, uint32_t count, rg_gguf_shard *any,
                           rg_status *st) {
    uint32_t own = 0;
    size_t prefix = 0;
    for (uint32_t i = 0; i < count; i++) {
        shards[i].file.fd = -1;
    }
    const rg_code rc = find_prefix(any, count, &own, &prefix, st);
    shards[own] = *any; /* from here on the caller's shard array owns it */
    *any = (rg_gguf_shard){.file.fd = -1};
    RG_TRY(rc);
    uint64_t n_tensor = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i != own) RG_TRY(open_shard(&shards[i], shards[own].path, prefix, i, count, st));
        n_tensor += shards[i].n_tensor;
    }
    for (uint32_t i = 0; i < count; i++) {
        RG_TRY(check_shard(shards, i, count, n_tensor, st));
    }
    return RG_OK;
}
