/* Typed reading of metadata (format notes A.2, rule 11 of A.6): a value of the wrong type, sign or
 * range is refused here, with its key, and never becomes an index.
 */
#include "model/gguf_parts.h"

#include <math.h>
#include <string.h>

typedef unsigned long long ull;

/* An integer of either sign: the value is -magnitude or magnitude. */
typedef struct rg_wide {
    uint64_t magnitude;
    bool negative;
} rg_wide;

static rg_wide wide_of_signed(int64_t v) {
    return v < 0 ? (rg_wide){.magnitude = 0 - (uint64_t)v, .negative = true}
                 : (rg_wide){.magnitude = (uint64_t)v};
}

/* Element `i`; false if the element type is no integer. */
static bool read_wide(const rg_gguf_kv *kv, uint64_t i, rg_wide *out) {
    const size_t bytes = rg_gguf_type_bytes(kv->elem_type);
    RG_ASSERT(i < kv->count);
    if (!bytes) return false;
    RG_ASSERT((i + 1) * bytes <= kv->size_bytes);
    uint64_t raw = 0; /* little-endian, so the narrow types land in the low bytes */
    memcpy(&raw, kv->data + i * bytes, bytes);
    switch (kv->elem_type) {
    case RG_GGUF_U8:
    case RG_GGUF_U16:
    case RG_GGUF_U32:
    case RG_GGUF_U64:
        *out = (rg_wide){.magnitude = raw};
        return true;
    case RG_GGUF_I8:
        *out = wide_of_signed((int8_t)raw);
        return true;
    case RG_GGUF_I16:
        *out = wide_of_signed((int16_t)raw);
        return true;
    case RG_GGUF_I32:
        *out = wide_of_signed((int32_t)raw);
        return true;
    case RG_GGUF_I64:
        *out = wide_of_signed((int64_t)raw);
        return true;
    default:
        return false;
    }
}

/* Length of a key as shown in a message. */
static int shown(const rg_gguf_kv *kv) {
    return kv->key.len < RG_GGUF_SHOWN_MAX ? (int)kv->key.len : RG_GGUF_SHOWN_MAX;
}

static rg_code fail_type(const rg_gguf_kv *kv, const char *wanted, rg_status *st) {
    const bool is_array = kv->type == RG_GGUF_ARRAY;
    return rg_fail(st, RG_FORMAT, "key '%.*s' is %s%s, expected %s", shown(kv), kv->key.data,
                   is_array ? "an array of " : "", rg_gguf_type_name(kv->elem_type), wanted);
}

/* Names the file and the position of the value in front of a message about `kv`. */
static rg_code at_value(const rg_gguf_shard *s, const rg_gguf_kv *kv, rg_code rc, rg_status *st) {
    if (rc == RG_OK) return rc;
    return rg_context(st, rc, "%.*s: byte %zu", RG_GGUF_SHOWN_MAX, rg_gguf_base_name(s->path),
                      (size_t)(kv->data - s->header));
}

const rg_gguf_kv *rg_gguf_shard_find(const rg_gguf_shard *s, const char *key) {
    uint64_t i = 0;
    return rg_map_get(&s->kv_index, key, strlen(key), &i) ? &s->kvs[i] : NULL;
}

/* A key that must be there; NULL, with the message, if it is not. */
static const rg_gguf_kv *require(const rg_gguf_shard *s, const char *key, rg_status *st) {
    const rg_gguf_kv *kv = rg_gguf_shard_find(s, key);
    if (!kv) {
        rg_fail(st, RG_FORMAT, "%.*s: required key '%s' is missing (%zu keys present)",
                RG_GGUF_SHOWN_MAX, rg_gguf_base_name(s->path), key, s->n_kv);
    }
    return kv;
}

static rg_code check_range(const rg_gguf_kv *kv, rg_wide v, uint64_t min, uint64_t max,
                           rg_status *st) {
    if (!v.negative && v.magnitude >= min && v.magnitude <= max) return RG_OK;
    return rg_fail(st, RG_FORMAT, "key '%.*s' is %s%llu, allowed are %llu..%llu", shown(kv),
                   kv->key.data, v.negative ? "-" : "", (ull)v.magnitude, (ull)min, (ull)max);
}

static rg_code scalar_u64(const rg_gguf_kv *kv, uint64_t min, uint64_t max, uint64_t *out,
                          rg_status *st) {
    rg_wide v = {0};
    if (kv->type == RG_GGUF_ARRAY || !read_wide(kv, 0, &v)) {
        return fail_type(kv, "an integer", st);
    }
    RG_TRY(check_range(kv, v, min, max, st));
    *out = v.magnitude;
    return RG_OK;
}

rg_code rg_gguf_shard_u64(const rg_gguf_shard *s, const char *key, uint64_t min, uint64_t max,
                          uint64_t *out, rg_status *st) {
    const rg_gguf_kv *kv = require(s, key, st);
    if (!kv) return RG_FORMAT;
    return at_value(s, kv, scalar_u64(kv, min, max, out, st), st);
}

rg_code rg_gguf_get_u64(const rg_gguf *g, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out, rg_status *st) {
    return rg_gguf_shard_u64(&g->shards[0], key, min, max, out, st);
}

/* Element `i`; false if the element type is no float. */
static bool read_float(const rg_gguf_kv *kv, uint64_t i, double *out) {
    RG_ASSERT(i < kv->count);
    if (kv->elem_type == RG_GGUF_F32) {
        float v = 0;
        memcpy(&v, kv->data + i * sizeof v, sizeof v);
        *out = (double)v;
        return true;
    }
    if (kv->elem_type == RG_GGUF_F64) {
        memcpy(out, kv->data + i * sizeof *out, sizeof *out);
        return true;
    }
    return false;
}

static rg_code scalar_f64(const rg_gguf_kv *kv, double min, double max, double *out,
                          rg_status *st) {
    double v = 0;
    if (kv->type == RG_GGUF_ARRAY || !read_float(kv, 0, &v)) return fail_type(kv, "a float", st);
    /* Written so that NaN fails. */
    if (!(v >= min && v <= max) || !isfinite(v)) {
        return rg_fail(st, RG_FORMAT, "key '%.*s' is %g, allowed are %g..%g", shown(kv),
                       kv->key.data, v, min, max);
    }
    *out = v;
    return RG_OK;
}

rg_code rg_gguf_get_f64(const rg_gguf *g, const char *key, double min, double max, double *out,
                        rg_status *st) {
    const rg_gguf_kv *kv = require(&g->shards[0], key, st);
    if (!kv) return RG_FORMAT;
    return at_value(&g->shards[0], kv, scalar_f64(kv, min, max, out, st), st);
}

rg_code rg_gguf_get_bool(const rg_gguf *g, const char *key, bool *out, rg_status *st) {
    const rg_gguf_kv *kv = require(&g->shards[0], key, st);
    if (!kv) return RG_FORMAT;
    if (kv->type != RG_GGUF_BOOL) {
        return at_value(&g->shards[0], kv, fail_type(kv, "a bool", st), st);
    }
    *out = kv->data[0] != 0;
    return RG_OK;
}

rg_code rg_gguf_get_str(const rg_gguf *g, const char *key, rg_str *out, rg_status *st) {
    const rg_gguf_kv *kv = require(&g->shards[0], key, st);
    if (!kv) return RG_FORMAT;
    if (kv->type != RG_GGUF_STRING) {
        return at_value(&g->shards[0], kv, fail_type(kv, "a string", st), st);
    }
    *out = (rg_str){.data = (const char *)kv->data, .len = kv->size_bytes};
    return RG_OK;
}

rg_code rg_gguf_get_array(const rg_gguf *g, const char *key, uint64_t count_min, uint64_t count_max,
                          const rg_gguf_kv **out, rg_status *st) {
    *out = NULL;
    const rg_gguf_kv *kv = require(&g->shards[0], key, st);
    if (!kv) return RG_FORMAT;
    rg_code rc = RG_OK;
    if (kv->type != RG_GGUF_ARRAY) {
        rc = fail_type(kv, "an array", st);
    } else if (kv->count < count_min || kv->count > count_max) {
        rc = rg_fail(st, RG_FORMAT, "key '%.*s' has %llu elements, allowed are %llu..%llu",
                     shown(kv), kv->key.data, (ull)kv->count, (ull)count_min, (ull)count_max);
    }
    if (rc != RG_OK) return at_value(&g->shards[0], kv, rc, st);
    *out = kv;
    return RG_OK;
}

rg_code rg_gguf_elem_u64(const rg_gguf_kv *kv, uint64_t i, uint64_t max, uint64_t *out,
                         rg_status *st) {
    rg_wide v = {0};
    if (i >= kv->count) {
        return rg_fail(st, RG_INVALID, "key '%.*s': element %llu of %llu", shown(kv), kv->key.data,
                       (ull)i, (ull)kv->count);
    }
    if (!read_wide(kv, i, &v)) return fail_type(kv, "integers", st);
    const rg_code rc = check_range(kv, v, 0, max, st);
    if (rc != RG_OK) return rg_context(st, rc, "element %llu", (ull)i);
    *out = v.magnitude;
    return RG_OK;
}

rg_code rg_gguf_elem_f64(const rg_gguf_kv *kv, uint64_t i, double *out, rg_status *st) {
    if (i >= kv->count) {
        return rg_fail(st, RG_INVALID, "key '%.*s': element %llu of %llu", shown(kv), kv->key.data,
                       (ull)i, (ull)kv->count);
    }
    if (!read_float(kv, i, out)) return fail_type(kv, "floats", st);
    if (!isfinite(*out)) {
        return rg_fail(st, RG_FORMAT, "key '%.*s': element %llu is %g, not finite", shown(kv),
                       kv->key.data, (ull)i, *out);
    }
    return RG_OK;
}

rg_str rg_gguf_elem_str(const rg_gguf_kv *kv, uint64_t i) {
    RG_ASSERT(kv->string_offsets && i < kv->count);
    const uint8_t *at = kv->data + kv->string_offsets[i];
    uint64_t len = 0;
    memcpy(&len, at, sizeof len);
    return (rg_str){.data = (const char *)at + sizeof len, .len = (size_t)len};
}
