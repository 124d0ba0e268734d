/* `regolith inspect`: a GGUF file as text. The container's part works for every architecture; the
 * model's part (inspect_model.c) follows where the description reads the file.
 *
 * Names and strings come from the file: what is no printable UTF-8 is shown as an escape, so the
 * text is safe for a terminal.
 */
#include "forge/forge.h"

#include <stdio.h>
#include <string.h>

#include "forge/inspect_parts.h"

#define SHOWN_BYTES_MAX 60 /* of a string */
#define SHOWN_ELEMS_MAX 8  /* of an array of numbers */
#define SHOWN_WORDS_MAX 4  /* of an array of strings */

typedef unsigned long long ull;

/* ---- strings -------------------------------------------------------------------------------- */

/* Bytes of the well-formed character at `s` (RFC 3629), 0 if there is none. */
static size_t utf8_len(const uint8_t *s, size_t left) {
    const uint8_t c = s[0];
    if (c < 0x80) return 1;
    const size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || n > left) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    const bool overlong = (c == 0xe0 && s[1] < 0xa0) || (c == 0xf0 && s[1] < 0x90);
    const bool outside = (c == 0xed && s[1] > 0x9f) || (c == 0xf4 && s[1] > 0x8f);
    return overlong || outside ? 0 : n;
}

/* C1 controls are well-formed two-byte characters, and terminals obey them. */
static bool is_control(const uint8_t *s, size_t n) {
    return (n == 1 && (s[0] < 0x20 || s[0] == 0x7f)) || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

/* At most `max` bytes of the string, escaped. */
static rg_code put_text(rg_buf *out, rg_str s, size_t max, rg_status *st) {
    const uint8_t *data = (const uint8_t *)s.data;
    size_t i = 0;
    while (i < s.len && i < max) {
        const size_t n = utf8_len(data + i, s.len - i);
        if (n == 1 && data[i] == '\n') {
            RG_TRY(rg_buf_puts(out, "\\n", st));
        } else if (n == 0 || is_control(data + i, n)) {
            RG_TRY(rg_buf_printf(out, st, "\\x%02x", data[i]));
        } else {
            RG_TRY(rg_buf_append(out, data + i, n, st));
        }
        i += n == 0 || is_control(data + i, n) ? 1 : n;
    }
    return i < s.len ? rg_buf_puts(out, "...", st) : RG_OK;
}

static rg_code put_quoted(rg_buf *out, rg_str s, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "\"", st));
    RG_TRY(put_text(out, s, SHOWN_BYTES_MAX, st));
    return rg_buf_puts(out, "\"", st);
}

/* ---- metadata ------------------------------------------------------------------------------- */

static const char *type_name(rg_gguf_type type) {
    static const char *const names[RG_GGUF_TYPE_COUNT] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                          "i32", "f32", "bool", "string", "array",
                                                          "u64", "i64", "f64"};
    return (unsigned)type < RG_GGUF_TYPE_COUNT ? names[type] : "?";
}

/* Element `i` of numbers or booleans. */
static rg_code put_number(rg_buf *out, const rg_gguf_kv *kv, uint64_t i, rg_status *st) {
    static const size_t bytes[RG_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t raw = 0;
    RG_ASSERT((unsigned)kv->elem_type < RG_GGUF_TYPE_COUNT && bytes[kv->elem_type] > 0);
    memcpy(&raw, kv->data + i * bytes[kv->elem_type], bytes[kv->elem_type]);
    float f = 0;
    double d = 0;
    switch (kv->elem_type) {
    case RG_GGUF_I8:
        return rg_buf_printf(out, st, "%d", (int8_t)raw);
    case RG_GGUF_I16:
        return rg_buf_printf(out, st, "%d", (int16_t)raw);
    case RG_GGUF_I32:
        return rg_buf_printf(out, st, "%d", (int32_t)raw);
    case RG_GGUF_I64:
        return rg_buf_printf(out, st, "%lld", (long long)raw);
    case RG_GGUF_F32:
        memcpy(&f, &raw, sizeof f);
        return rg_buf_printf(out, st, "%.9g", (double)f);
    case RG_GGUF_F64:
        memcpy(&d, &raw, sizeof d);
        return rg_buf_printf(out, st, "%.17g", d);
    case RG_GGUF_BOOL:
        return rg_buf_puts(out, raw ? "true" : "false", st);
    default:
        return rg_buf_printf(out, st, "%llu", (ull)raw);
    }
}

static rg_code put_array(rg_buf *out, const rg_gguf_kv *kv, rg_status *st) {
    const bool words = kv->elem_type == RG_GGUF_STRING;
    const uint64_t max = words ? SHOWN_WORDS_MAX : SHOWN_ELEMS_MAX;
    /* One more is shown rather than left out. */
    const uint64_t shown = kv->count <= max + 1 ? kv->count : max;
    RG_TRY(rg_buf_puts(out, "[", st));
    for (uint64_t i = 0; i < shown; i++) {
        if (i) RG_TRY(rg_buf_puts(out, ", ", st));
        if (words) {
            RG_TRY(put_quoted(out, rg_gguf_elem_str(kv, i), st));
        } else {
            RG_TRY(put_number(out, kv, i, st));
        }
    }
    return rg_buf_puts(out, shown < kv->count ? ", ...]" : "]", st);
}

static rg_code put_kv(rg_buf *out, const rg_gguf_kv *kv, int width, rg_status *st) {
    const int pad = kv->key.len < (size_t)width ? width - (int)kv->key.len : 0;
    RG_TRY(rg_buf_puts(out, "  ", st));
    RG_TRY(put_text(out, kv->key, SHOWN_BYTES_MAX, st));
    RG_TRY(rg_buf_printf(out, st, "%*s  ", pad, ""));
    if (kv->type == RG_GGUF_ARRAY) {
        char type[48];
        snprintf(type, sizeof type, "%s[%llu]", type_name(kv->elem_type), (ull)kv->count);
        RG_TRY(rg_buf_printf(out, st, "%-14s", type));
        RG_TRY(put_array(out, kv, st));
    } else {
        RG_TRY(rg_buf_printf(out, st, "%-14s", type_name(kv->type)));
        if (kv->type == RG_GGUF_STRING) {
            const rg_str s = {.data = (const char *)kv->data, .len = kv->size_bytes};
            RG_TRY(put_quoted(out, s, st));
            if (s.len > SHOWN_BYTES_MAX) {
                RG_TRY(rg_buf_printf(out, st, " (%zu bytes)", s.len));
            }
        } else {
            RG_TRY(put_number(out, kv, 0, st));
        }
    }
    return rg_buf_puts(out, "\n", st);
}

static rg_code put_metadata(rg_buf *out, const rg_gguf *g, rg_status *st) {
    const size_t n = rg_gguf_kv_count(g);
    size_t width = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t len = rg_gguf_kv_at(g, i)->key.len;
        if (len > width && len <= SHOWN_BYTES_MAX) width = len;
    }
    RG_TRY(rg_buf_printf(out, st, "\nmetadata (%zu keys)\n", n));
    for (size_t i = 0; i < n; i++) {
        RG_TRY(put_kv(out, rg_gguf_kv_at(g, i), (int)width, st));
    }
    return RG_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

uint64_t rg_inspect_elems(const rg_tensor *t) {
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
}

static rg_code put_tensors(rg_buf *out, const rg_gguf *g, rg_status *st) {
    const size_t n = rg_gguf_tensor_count(g);
    int width = 4;
    for (size_t i = 0; i < n; i++) {
        const int len = (int)strlen(rg_gguf_tensor_at(g, i)->name);
        if (len > width) width = len;
    }
    RG_TRY(rg_buf_printf(out, st, "\ntensors (%zu)\n  %-*s  %-8s %-24s %14s  shard\n", n, width,
                         "name", "type", "dims", "bytes"));
    for (size_t i = 0; i < n; i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        const rg_str name = {.data = t->name, .len = strlen(t->name)};
        char dims[96];
        int at = snprintf(dims, sizeof dims, "%llu", (ull)t->ne[0]);
        for (uint32_t d = 1; d < t->n_dims; d++) {
            at += snprintf(dims + at, sizeof dims - (size_t)at, " x %llu", (ull)t->ne[d]);
        }
        RG_TRY(rg_buf_puts(out, "  ", st));
        RG_TRY(put_text(out, name, RG_GGUF_NAME_MAX, st));
        RG_TRY(rg_buf_printf(out, st, "%*s  %-8s %-24s %14llu  %u\n", width - (int)name.len, "",
                             rg_type_get((uint32_t)t->type)->name, dims, (ull)t->size_bytes,
                             t->file));
    }
    return RG_OK;
}

static rg_code put_types(rg_buf *out, const rg_gguf *g, rg_status *st) {
    uint64_t tensors[RG_TYPE_COUNT] = {0};
    double elems[RG_TYPE_COUNT] = {0}, bytes[RG_TYPE_COUNT] = {0}; /* sums cannot wrap */
    double elems_all = 0, bytes_all = 0;
    for (size_t i = 0; i < rg_gguf_tensor_count(g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(g, i);
        tensors[t->type]++;
        elems[t->type] += (double)rg_inspect_elems(t);
        bytes[t->type] += (double)t->size_bytes;
    }
    RG_TRY(rg_buf_printf(out, st, "\ntypes\n  %-8s %8s %16s %16s %12s\n", "type", "tensors",
                         "weights", "bytes", "bits/weight"));
    for (uint32_t id = 0; id < RG_TYPE_COUNT; id++) {
        if (!tensors[id]) continue;
        RG_TRY(rg_buf_printf(out, st, "  %-8s %8llu %16.0f %16.0f %12.4f\n", rg_type_get(id)->name,
                             (ull)tensors[id], elems[id], bytes[id], bytes[id] * 8 / elems[id]));
        elems_all += elems[id];
        bytes_all += bytes[id];
    }
    return rg_buf_printf(out, st, "  %-8s %8zu %16.0f %16.0f %12.4f\n", "all",
                         rg_gguf_tensor_count(g), elems_all, bytes_all,
                         elems_all > 0 ? bytes_all * 8 / elems_all : 0.0);
}

/* ---- whole ---------------------------------------------------------------------------------- */

static rg_code put_files(rg_buf *out, const rg_gguf *g, rg_status *st) {
    const uint32_t n = rg_gguf_file_count(g);
    RG_TRY(rg_buf_printf(out, st, "GGUF version %u, %u file%s\n", rg_gguf_version(g), n,
                         n == 1 ? "" : "s"));
    for (uint32_t f = 0; f < n; f++) {
        const char *path = rg_gguf_file_path(g, f);
        const rg_str shown = {.data = path, .len = strlen(path)};
        RG_TRY(
            rg_buf_printf(out, st, "  %u  %14llu bytes  ", f, (ull)rg_gguf_file(g, f)->size_bytes));
        RG_TRY(put_text(out, shown, shown.len, st));
        RG_TRY(rg_buf_puts(out, "\n", st));
    }
    return RG_OK;
}

rg_code rg_forge_inspect_gguf(const rg_gguf *g, rg_buf *out, rg_status *st) {
    RG_TRY(put_files(out, g, st));
    RG_TRY(put_metadata(out, g, st));
    RG_TRY(put_tensors(out, g, st));
    RG_TRY(put_types(out, g, st));
    rg_model *m = NULL;
    rg_status why = {0};
    rg_code rc = rg_model_create(&m, g, NULL, &why);
    if (rc == RG_NOMEM) return rg_fail(st, rc, "%s", why.message);
    if (rc != RG_OK) {
        /* Of another architecture, or damaged: what was shown stands all the same. */
        const rg_str text = {.data = why.message, .len = strlen(why.message)};
        RG_TRY(rg_buf_puts(out, "\nmodel: not described: ", st));
        RG_TRY(put_text(out, text, text.len, st));
        return rg_buf_puts(out, "\n", st);
    }
    rc = rg_inspect_model(g, m, out, st);
    rg_model_destroy(m);
    return rc;
}

rg_code rg_forge_inspect(const char *path, rg_buf *out, rg_status *st) {
    rg_gguf *g = NULL;
    RG_TRY(rg_gguf_open(&g, path, st));
    const rg_code rc = rg_forge_inspect_gguf(g, out, st);
    rg_gguf_close(g);
    return rc;
}
