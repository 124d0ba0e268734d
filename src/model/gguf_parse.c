/* The header of one GGUF file: fixed fields and metadata records (format notes A.1, A.2, rules 2-11
 * of A.6). The tensor table is in gguf_table.c.
 *
 * Invariants
 *  1. A byte is read only after rg_gguf_need said that the file has it and that it is in memory.
 *  2. Nothing is allocated in proportion to a number of the file before the bytes that the number
 *     stands for were seen: record arrays grow by doubling, offset arrays follow a first walk.
 *  3. kvs[].key and .data point into the shard's header, which does not move while they exist.
 */
#include "model/gguf_parts.h"

#include <string.h>

#define RG_GGUF_FIXED_BYTES 24u

typedef unsigned long long ull;

_Static_assert(RG_GGUF_HEADER_MAX <= 1u << 30, "arrays have at most 2^30 elements");

size_t rg_gguf_type_bytes(rg_gguf_type type) {
    static const uint8_t bytes[RG_GGUF_TYPE_COUNT] = {
        [RG_GGUF_U8] = 1,  [RG_GGUF_I8] = 1,  [RG_GGUF_U16] = 2, [RG_GGUF_I16] = 2,
        [RG_GGUF_U32] = 4, [RG_GGUF_I32] = 4, [RG_GGUF_F32] = 4, [RG_GGUF_BOOL] = 1,
        [RG_GGUF_U64] = 8, [RG_GGUF_I64] = 8, [RG_GGUF_F64] = 8,
    };
    return (unsigned)type < RG_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

const char *rg_gguf_type_name(rg_gguf_type type) {
    static const char *const names[RG_GGUF_TYPE_COUNT] = {
        [RG_GGUF_U8] = "u8",       [RG_GGUF_I8] = "i8",     [RG_GGUF_U16] = "u16",
        [RG_GGUF_I16] = "i16",     [RG_GGUF_U32] = "u32",   [RG_GGUF_I32] = "i32",
        [RG_GGUF_F32] = "f32",     [RG_GGUF_BOOL] = "bool", [RG_GGUF_STRING] = "string",
        [RG_GGUF_ARRAY] = "array", [RG_GGUF_U64] = "u64",   [RG_GGUF_I64] = "i64",
        [RG_GGUF_F64] = "f64",
    };
    return (unsigned)type < RG_GGUF_TYPE_COUNT ? names[type] : "unknown type";
}

/* ---- reading -------------------------------------------------------------------------------- */

uint64_t rg_gguf_left(const rg_gguf_parser *p) {
    return p->limit - p->c.pos;
}

rg_code rg_gguf_need(rg_gguf_parser *p, uint64_t len, const char *what, rg_status *st) {
    RG_ASSERT(p->c.pos <= p->limit);
    const uint64_t left = rg_gguf_left(p);
    if (len > left) {
        return rg_fail(st, RG_FORMAT, "%s at byte %zu needs %llu bytes, %llu are left%s", what,
                       p->c.pos, (ull)len, (ull)left,
                       p->limit < p->file_size ? " below the limit of a header" : "");
    }
    if (len > rg_cursor_remaining(&p->c)) {
        p->wanted = p->c.pos + len;
        return RG_BUSY;
    }
    return RG_OK;
}

rg_code rg_gguf_take_u32(rg_gguf_parser *p, uint32_t *out, const char *what, rg_status *st) {
    RG_TRY(rg_gguf_need(p, sizeof *out, what, st));
    return rg_cursor_u32(&p->c, out, what, st);
}

rg_code rg_gguf_take_u64(rg_gguf_parser *p, uint64_t *out, const char *what, rg_status *st) {
    RG_TRY(rg_gguf_need(p, sizeof *out, what, st));
    return rg_cursor_u64(&p->c, out, what, st);
}

rg_code rg_gguf_take_bytes(rg_gguf_parser *p, const uint8_t **out, uint64_t len, const char *what,
                           rg_status *st) {
    RG_TRY(rg_gguf_need(p, len, what, st));
    return rg_cursor_bytes(&p->c, out, len, what, st);
}

/* ---- values --------------------------------------------------------------------------------- */

static rg_code take_string(rg_gguf_parser *p, const uint8_t **data, size_t *size, rg_status *st) {
    uint64_t len = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u64(p, &len, "string length", st));
    if (len > RG_GGUF_STRING_MAX) {
        return rg_fail(st, RG_FORMAT, "string at byte %zu has %llu bytes, the limit is %u", at,
                       (ull)len, RG_GGUF_STRING_MAX);
    }
    RG_TRY(rg_gguf_take_bytes(p, data, len, "string", st));
    *size = (size_t)len;
    return RG_OK;
}

/* Booleans are 0 or 1: any other byte means a damaged file. */
static rg_code check_bools(const uint8_t *data, uint64_t count, size_t at, rg_status *st) {
    for (uint64_t i = 0; i < count; i++) {
        if (data[i] > 1) {
            return rg_fail(st, RG_FORMAT, "bool at byte %llu is %u, not 0 or 1", (ull)(at + i),
                           data[i]);
        }
    }
    return RG_OK;
}

/* Walks the strings first, so that the offset array is as long as what really is there. */
static rg_code take_string_array(rg_gguf_parser *p, rg_gguf_kv *kv, rg_status *st) {
    const size_t begin = p->c.pos;
    for (uint64_t i = 0; i < kv->count; i++) {
        const uint8_t *ignored = NULL;
        size_t size = 0;
        const rg_code rc = take_string(p, &ignored, &size, st);
        if (rc == RG_BUSY) return rc;
        if (rc != RG_OK) {
            return rg_context(st, rc, "element %llu of %llu", (ull)i, (ull)kv->count);
        }
    }
    kv->data = p->c.data + begin;
    kv->size_bytes = p->c.pos - begin;
    uint64_t *offsets = rg_alloc((size_t)kv->count, sizeof *offsets, st);
    if (!offsets) return RG_NOMEM;
    uint64_t at = 0;
    for (uint64_t i = 0; i < kv->count; i++) {
        uint64_t len = 0;
        memcpy(&len, kv->data + at, sizeof len);
        offsets[i] = at;
        at += sizeof len + len;
    }
    RG_ASSERT(at == kv->size_bytes);
    kv->string_offsets = offsets;
    return RG_OK;
}

static rg_code take_array(rg_gguf_parser *p, rg_gguf_kv *kv, rg_status *st) {
    uint32_t elem = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u32(p, &elem, "array element type", st));
    RG_TRY(rg_gguf_take_u64(p, &kv->count, "array length", st));
    if (elem == RG_GGUF_ARRAY) {
        return rg_fail(st, RG_UNSUPPORTED, "array of arrays at byte %zu", at);
    }
    if (elem >= RG_GGUF_TYPE_COUNT) {
        return rg_fail(st, RG_FORMAT, "array element type at byte %zu is %u, the highest is %u", at,
                       elem, RG_GGUF_TYPE_COUNT - 1);
    }
    kv->elem_type = (rg_gguf_type)elem;
    const size_t bytes = rg_gguf_type_bytes(kv->elem_type);
    const size_t bytes_min = bytes ? bytes : 8;
    /* What is left is at most RG_GGUF_HEADER_MAX, so this bounds the count too. */
    if (kv->count > rg_gguf_left(p) / bytes_min) {
        return rg_fail(st, RG_FORMAT,
                       "array at byte %zu claims %llu elements of %zu bytes, %llu bytes are left",
                       at, (ull)kv->count, bytes_min, (ull)rg_gguf_left(p));
    }
    if (!bytes) return take_string_array(p, kv, st);
    const size_t body = p->c.pos;
    kv->size_bytes = (size_t)kv->count * bytes;
    RG_TRY(rg_gguf_take_bytes(p, &kv->data, kv->size_bytes, "array body", st));
    return elem == RG_GGUF_BOOL ? check_bools(kv->data, kv->count, body, st) : RG_OK;
}

static rg_code take_value(rg_gguf_parser *p, rg_gguf_kv *kv, rg_status *st) {
    uint32_t type = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u32(p, &type, "value type", st));
    if (type >= RG_GGUF_TYPE_COUNT) {
        return rg_fail(st, RG_FORMAT, "value type at byte %zu is %u, the highest is %u", at, type,
                       RG_GGUF_TYPE_COUNT - 1);
    }
    kv->type = (rg_gguf_type)type;
    kv->elem_type = kv->type;
    kv->count = 1;
    if (type == RG_GGUF_ARRAY) return take_array(p, kv, st);
    if (type == RG_GGUF_STRING) return take_string(p, &kv->data, &kv->size_bytes, st);
    const size_t body = p->c.pos;
    kv->size_bytes = rg_gguf_type_bytes(kv->type);
    RG_TRY(rg_gguf_take_bytes(p, &kv->data, kv->size_bytes, "value", st));
    return type == RG_GGUF_BOOL ? check_bools(kv->data, 1, body, st) : RG_OK;
}

/* ---- records -------------------------------------------------------------------------------- */

static rg_code take_key(rg_gguf_parser *p, rg_str *key, rg_status *st) {
    uint64_t len = 0;
    const size_t at = p->c.pos;
    RG_TRY(rg_gguf_take_u64(p, &len, "key length", st));
    if (len == 0 || len > RG_GGUF_KEY_MAX) {
        return rg_fail(st, RG_FORMAT, "key at byte %zu has %llu bytes, 1 to %u are allowed", at,
                       (ull)len, RG_GGUF_KEY_MAX);
    }
    const uint8_t *data = NULL;
    RG_TRY(rg_gguf_take_bytes(p, &data, len, "key", st));
    *key = (rg_str){.data = (const char *)data, .len = (size_t)len};
    return RG_OK;
}

static rg_code take_kv(rg_gguf_shard *s, rg_gguf_parser *p, rg_gguf_kv *kv, rg_status *st) {
    const size_t at = p->c.pos;
    RG_TRY(take_key(p, &kv->key, st));
    const int shown = kv->key.len < RG_GGUF_SHOWN_MAX ? (int)kv->key.len : RG_GGUF_SHOWN_MAX;
    rg_code rc = take_value(p, kv, st);
    if (rc == RG_BUSY) return rc;
    if (rc != RG_OK) return rg_context(st, rc, "key '%.*s'", shown, kv->key.data);
    bool existed = false;
    RG_TRY(rg_map_add(&s->kv_index, kv->key.data, kv->key.len, s->n_kv, &existed, st));
    if (!existed) return RG_OK;
    uint64_t first = 0;
    rg_map_get(&s->kv_index, kv->key.data, kv->key.len, &first);
    return rg_fail(st, RG_FORMAT, "key '%.*s' at byte %zu is a duplicate of the one at byte %zu",
                   shown, kv->key.data, at,
                   (size_t)((const uint8_t *)s->kvs[first].key.data - p->c.data) - 8);
}

static rg_code take_kvs(rg_gguf_shard *s, rg_gguf_parser *p, uint64_t count, rg_status *st) {
    size_t cap = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (s->n_kv == cap) {
            cap = cap ? cap * 2 : 16;
            rg_gguf_kv *more = rg_realloc(s->kvs, cap, sizeof *more, st);
            if (!more) return RG_NOMEM;
            s->kvs = more;
        }
        rg_gguf_kv *kv = &s->kvs[s->n_kv];
        *kv = (rg_gguf_kv){0};
        const rg_code rc = take_kv(s, p, kv, st);
        if (rc != RG_OK) {
            /* Not counted yet: what it owns must go here. */
            rg_free((void *)(uintptr_t)kv->string_offsets);
            return rc;
        }
        s->n_kv++;
    }
    return RG_OK;
}

static rg_code read_alignment(rg_gguf_shard *s, rg_status *st) {
    s->alignment = RG_GGUF_ALIGN_DEFAULT;
    const rg_gguf_kv *kv = rg_gguf_shard_find(s, "general.alignment");
    if (!kv) return RG_OK;
    const size_t at = (size_t)(kv->data - s->header);
    if (kv->type != RG_GGUF_U32) {
        return rg_fail(st, RG_FORMAT, "key 'general.alignment' at byte %zu is %s, expected u32", at,
                       rg_gguf_type_name(kv->type));
    }
    memcpy(&s->alignment, kv->data, sizeof s->alignment);
    const uint32_t a = s->alignment;
    if (a < RG_GGUF_ALIGN_MIN || a > RG_GGUF_ALIGN_MAX || (a & (a - 1)) != 0) {
        return rg_fail(st, RG_FORMAT,
                       "key 'general.alignment' at byte %zu is %u, not a power of two in %u..%u",
                       at, a, RG_GGUF_ALIGN_MIN, RG_GGUF_ALIGN_MAX);
    }
    return RG_OK;
}

static rg_code take_magic(rg_gguf_shard *s, rg_gguf_parser *p, rg_status *st) {
    if (p->file_size < RG_GGUF_FIXED_BYTES) {
        return rg_fail(st, RG_FORMAT, "the file has %llu bytes, a GGUF header has at least %u",
                       (ull)p->file_size, RG_GGUF_FIXED_BYTES);
    }
    const uint8_t *magic = NULL;
    RG_TRY(rg_gguf_take_bytes(p, &magic, 4, "magic", st));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return rg_fail(st, RG_FORMAT,
                       "not a GGUF file: bytes 0..3 are %02x %02x %02x %02x, expected 47 47 55 46",
                       magic[0], magic[1], magic[2], magic[3]);
    }
    RG_TRY(rg_gguf_take_u32(p, &s->version, "version", st));
    if ((s->version & 0xffff) == 0 && s->version != 0) {
        return rg_fail(st, RG_UNSUPPORTED, "wrong byte order: version at byte 4 reads 0x%08x",
                       s->version);
    }
    if (s->version != 2 && s->version != 3) {
        return rg_fail(st, RG_UNSUPPORTED, "GGUF version %u at byte 4, this build reads 2 and 3",
                       s->version);
    }
    return RG_OK;
}

static rg_code check_count(const rg_gguf_parser *p, uint64_t count, uint64_t record_bytes_min,
                           uint64_t max, const char *what, int at, rg_status *st) {
    if (count > rg_gguf_left(p) / record_bytes_min) {
        return rg_fail(st, RG_FORMAT,
                       "%s at byte %d is %llu, the %llu bytes left hold at most %llu", what, at,
                       (ull)count, (ull)rg_gguf_left(p), (ull)(rg_gguf_left(p) / record_bytes_min));
    }
    if (count > max) {
        return rg_fail(st, RG_FORMAT, "%s at byte %d is %llu, the limit is %llu", what, at,
                       (ull)count, (ull)max);
    }
    return RG_OK;
}

rg_code rg_gguf_parse_shard(rg_gguf_shard *s, rg_gguf_parser *p, rg_status *st) {
    uint64_t n_tensor = 0, n_kv = 0;
    rg_map_init(&s->kv_index);
    rg_map_init(&s->tensor_index);
    RG_TRY(take_magic(s, p, st));
    RG_TRY(rg_gguf_take_u64(p, &n_tensor, "tensor count", st));
    RG_TRY(rg_gguf_take_u64(p, &n_kv, "key count", st));
    RG_TRY(check_count(p, n_kv, RG_GGUF_KV_BYTES_MIN, RG_GGUF_KVS_MAX, "key count", 16, st));
    RG_TRY(check_count(p, n_tensor, RG_GGUF_INFO_BYTES_MIN, RG_GGUF_TENSORS_MAX, "tensor count", 8,
                       st));
    RG_TRY(take_kvs(s, p, n_kv, st));
    RG_TRY(read_alignment(s, st));
    return rg_gguf_parse_table(s, p, n_tensor, st);
}

void rg_gguf_shard_clear(rg_gguf_shard *s) {
    for (size_t i = 0; i < s->n_kv; i++) {
        rg_free((void *)(uintptr_t)s->kvs[i].string_offsets);
    }
    rg_free(s->kvs);
    rg_free(s->tensors);
    rg_map_deinit(&s->kv_index);
    rg_map_deinit(&s->tensor_index);
    s->kvs = NULL;
    s->n_kv = 0;
    s->tensors = NULL;
    s->n_tensor = 0;
}
