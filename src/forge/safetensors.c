#include "forge/safetensors.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX ((uint64_t)512 << 20)
#define PATH_MAX_  4096u

typedef unsigned long long ull;

struct rg_checkpoint {
    char folder[PATH_MAX_];
    char (*names)[RG_ST_NAME_MAX]; /* [n_file] */
    rg_file *files;
    uint32_t n_file;
    rg_st_tensor *tensors;
    size_t n, cap;
    rg_map by_name; /* keys point into tensors, which are final when it is filled */
};

float rg_f8_e4m3_to_f32(uint8_t code) {
    const int e = (code >> 3) & 15, m = code & 7;
    const float sign = code & 0x80 ? -1.0f : 1.0f;
    if (e == 15 && m == 7) return NAN;
    return sign * (e ? ldexpf(1.0f + (float)m / 8, e - 7) : ldexpf((float)m, -9));
}

static size_t type_bytes(rg_st_type t) {
    static const size_t bytes[] = {4, 2, 2, 1, 8};
    return bytes[t];
}

/* ---- headers --------------------------------------------------------------------------------- */

static rg_code parse_type(const char *text, rg_st_type *out, const char *name, rg_status *st) {
    static const struct {
        const char *text;
        rg_st_type type;
    } types[] = {{"F32", RG_ST_F32},
                 {"F16", RG_ST_F16},
                 {"BF16", RG_ST_BF16},
                 {"F8_E4M3", RG_ST_F8},
                 {"I64", RG_ST_I64}};
    for (size_t i = 0; text && i < RG_ARRAY_LEN(types); i++) {
        if (strcmp(text, types[i].text) != 0) continue;
        *out = types[i].type;
        return RG_OK;
    }
    return rg_fail(st, RG_UNSUPPORTED, "tensor '%.120s' has type %.20s", name, text ? text : "?");
}

static rg_code parse_shape(rg_st_tensor *t, const json_t *shape, rg_status *st) {
    const size_t n = json_array_size(shape);
    uint64_t count = 1;
    if (!json_is_array(shape) || n > 4) {
        return rg_fail(st, RG_FORMAT, "tensor '%.120s' has %zu dimensions", t->name, n);
    }
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_int_t d = json_integer_value(json_array_get(shape, i));
        if (d <= 0 || __builtin_mul_overflow(count, (uint64_t)d, &count) || count > INT64_MAX / 8) {
            return rg_fail(st, RG_FORMAT, "tensor '%.120s': dimension %zu is %lld", t->name, i,
                           (long long)d);
        }
        t->dims[i] = (uint64_t)d;
    }
    t->cols = n ? t->dims[n - 1] : 1;
    t->rows = count / t->cols;
    return RG_OK;
}

static rg_code parse_tensor(rg_checkpoint *c, uint32_t file, uint64_t base, const char *name,
                            const json_t *v, rg_status *st) {
    if (strlen(name) >= RG_ST_NAME_MAX) {
        return rg_fail(st, RG_FORMAT, "a tensor name of %zu bytes", strlen(name));
    }
    if (c->n == c->cap) {
        const size_t cap = c->cap ? 2 * c->cap : 1024;
        rg_st_tensor *grown = rg_realloc(c->tensors, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        c->tensors = grown;
        c->cap = cap;
    }
    rg_st_tensor *t = &c->tensors[c->n];
    *t = (rg_st_tensor){.file = file};
    snprintf(t->name, sizeof t->name, "%s", name);
    RG_TRY(parse_type(json_string_value(json_object_get(v, "dtype")), &t->type, name, st));
    RG_TRY(parse_shape(t, json_object_get(v, "shape"), st));
    const json_t *range = json_object_get(v, "data_offsets");
    const json_int_t begin = json_integer_value(json_array_get(range, 0));
    const json_int_t end = json_integer_value(json_array_get(range, 1));
    const uint64_t bytes = t->rows * t->cols * type_bytes(t->type);
    const uint64_t room = c->files[file].size_bytes - base;
    if (json_array_size(range) != 2 || begin < 0 || end < begin || (uint64_t)end > room ||
        (uint64_t)(end - begin) != bytes) {
        return rg_fail(st, RG_FORMAT,
                       "tensor '%.100s' takes %llu bytes, its range is %lld..%lld of %llu", name,
                       (ull)bytes, (long long)begin, (long long)end, (ull)room);
    }
    t->offset = base + (uint64_t)begin;
    c->n++;
    return RG_OK;
}

static rg_code parse_header(rg_checkpoint *c, uint32_t file, const char *text, size_t len,
                            rg_status *st) {
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!root) return rg_fail(st, RG_FORMAT, "header: %.100s", why.text);
    rg_code rc = json_is_object(root) ? RG_OK : rg_fail(st, RG_FORMAT, "header: no object");
    for (void *it = json_object_iter(root); it && rc == RG_OK;
         it = json_object_iter_next(root, it)) {
        const char *name = json_object_iter_key(it);
        if (strcmp(name, "__metadata__") == 0) continue;
        rc = parse_tensor(c, file, 8 + (uint64_t)len, name, json_object_iter_value(it), st);
    }
    json_decref(root);
    return rc;
}

static rg_code read_file(rg_checkpoint *c, uint32_t file, rg_status *st) {
    char path[2 * PATH_MAX_];
    uint64_t len = 0;
    snprintf(path, sizeof path, "%s/%s", c->folder, c->names[file]);
    RG_TRY(rg_file_open(&c->files[file], path, st));
    const rg_file *f = &c->files[file];
    rg_file_expect_random(f);
    if (f->size_bytes < 8) return rg_fail(st, RG_FORMAT, "%s is no safetensors file", path);
    RG_TRY(rg_file_read_at(f, &len, 8, 0, path, st));
    if (len > HEADER_MAX || len > f->size_bytes - 8) {
        return rg_fail(st, RG_FORMAT, "%s: a header of %llu bytes in a file of %llu", path,
                       (ull)len, (ull)f->size_bytes);
    }
    char *text = rg_alloc((size_t)len + 1, 1, st);
    if (!text) return RG_NOMEM;
    rg_code rc = rg_file_read_at(f, text, (size_t)len, 8, path, st);
    if (rc == RG_OK) {
        rc = parse_header(c, file, text, (size_t)len, st);
        if (rc != RG_OK) rc = rg_context(st, rc, "%s", c->names[file]);
    }
    rg_free(text);
    return rc;
}

/* ---- folder ---------------------------------------------------------------------------------- */

static rg_code add_file(rg_checkpoint *c, const char *name, rg_status *st) {
    for (uint32_t i = 0; i < c->n_file; i++) {
        if (strcmp(c->names[i], name) == 0) return RG_OK;
    }
    if (c->n_file == RG_ST_FILES_MAX || strlen(name) >= RG_ST_NAME_MAX || strchr(name, '/')) {
        return rg_fail(st, RG_FORMAT, "file name '%.100s' (file %u)", name, c->n_file);
    }
    snprintf(c->names[c->n_file++], RG_ST_NAME_MAX, "%s", name);
    return RG_OK;
}

static rg_code files_of_index(rg_checkpoint *c, const char *path, rg_status *st) {
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (!root) return rg_fail(st, RG_FORMAT, "%s: %.100s", path, why.text);
    json_t *map = json_object_get(root, "weight_map");
    rg_code rc = json_is_object(map) ? RG_OK : rg_fail(st, RG_FORMAT, "%s: no weight_map", path);
    for (void *it = json_object_iter(map); it && rc == RG_OK; it = json_object_iter_next(map, it)) {
        const char *name = json_string_value(json_object_iter_value(it));
        rc = name ? add_file(c, name, st) : rg_fail(st, RG_FORMAT, "%s: a file is no string", path);
    }
    json_decref(root);
    return rc;
}

static rg_code files_of_folder(rg_checkpoint *c, rg_status *st) {
    static const char suffix[] = ".safetensors";
    DIR *d = opendir(c->folder);
    if (!d) return rg_fail(st, RG_IO, "cannot read the folder %s", c->folder);
    rg_code rc = RG_OK;
    /* readdir is safe where no two threads share a stream, and this one is local. */
    for (struct dirent *e; rc == RG_OK && (e = readdir(d));) { /* NOLINT(concurrency-mt-unsafe) */
        const size_t len = strlen(e->d_name);
        if (len > sizeof suffix && strcmp(e->d_name + len - (sizeof suffix - 1), suffix) == 0) {
            rc = add_file(c, e->d_name, st);
        }
    }
    closedir(d);
    if (rc != RG_OK || c->n_file) return rc;
    return rg_fail(st, RG_INVALID, "%s holds no .safetensors files", c->folder);
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static rg_code open_all(rg_checkpoint *c, rg_status *st) {
    char index[PATH_MAX_ + 64];
    c->names = rg_alloc(RG_ST_FILES_MAX, sizeof *c->names, st);
    if (!c->names) return RG_NOMEM;
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", c->folder);
    FILE *probe = fopen(index, "re");
    if (probe) fclose(probe);
    RG_TRY(probe ? files_of_index(c, index, st) : files_of_folder(c, st));
    qsort(c->names, c->n_file, sizeof *c->names, by_text);
    c->files = rg_alloc(c->n_file, sizeof *c->files, st);
    if (!c->files) return RG_NOMEM;
    for (uint32_t i = 0; i < c->n_file; i++)
        c->files[i].fd = -1;
    for (uint32_t i = 0; i < c->n_file; i++)
        RG_TRY(read_file(c, i, st));
    for (size_t i = 0; i < c->n; i++) {
        bool existed = false;
        RG_TRY(rg_map_add(&c->by_name, c->tensors[i].name, strlen(c->tensors[i].name), i, &existed,
                          st));
        if (existed) return rg_fail(st, RG_FORMAT, "tensor '%s' occurs twice", c->tensors[i].name);
    }
    return RG_OK;
}

rg_code rg_checkpoint_open(rg_checkpoint **out, const char *folder, rg_status *st) {
    *out = NULL;
    rg_checkpoint *c = rg_alloc(1, sizeof *c, st);
    if (!c) return RG_NOMEM;
    rg_map_init(&c->by_name);
    const int n = snprintf(c->folder, sizeof c->folder, "%s", folder);
    const rg_code rc = n < (int)sizeof c->folder
                           ? open_all(c, st)
                           : rg_fail(st, RG_INVALID, "a path of %d bytes is too long", n);
    if (rc != RG_OK) {
        rg_checkpoint_close(c);
        return rc;
    }
    *out = c;
    return RG_OK;
}

void rg_checkpoint_close(rg_checkpoint *c) {
    if (!c) return;
    for (uint32_t i = 0; c->files && i < c->n_file; i++) {
        if (c->files[i].fd >= 0) rg_file_close(&c->files[i]);
    }
    rg_map_deinit(&c->by_name);
    rg_free(c->files);
    rg_free(c->names);
    rg_free(c->tensors);
    rg_free(c);
}

const rg_st_tensor *rg_checkpoint_find(rg_checkpoint *c, const char *name) {
    uint64_t at = 0;
    if (!rg_map_get(&c->by_name, name, strlen(name), &at)) return NULL;
    c->tensors[at].used = true;
    return &c->tensors[at];
}

size_t rg_checkpoint_count(const rg_checkpoint *c) {
    return c->n;
}

const rg_st_tensor *rg_checkpoint_at(const rg_checkpoint *c, size_t i) {
    return &c->tensors[i];
}

/* ---- values ---------------------------------------------------------------------------------- */

static rg_code read_bytes(const rg_checkpoint *c, const rg_st_tensor *t, uint64_t begin, void *dst,
                          size_t n, rg_status *st) {
    return rg_file_read_at(&c->files[t->file], dst, n, t->offset + begin, c->names[t->file], st);
}

/* Values in place: the bytes lie at the end of the row's f32, read from the front. */
static void widen(rg_st_type type, float *x, uint64_t n) {
    const uint8_t *src = (const uint8_t *)x + n * (sizeof *x - type_bytes(type));
    for (uint64_t i = 0; i < n && type != RG_ST_F32; i++) {
        uint16_t h = 0;
        if (type == RG_ST_F8) {
            x[i] = rg_f8_e4m3_to_f32(src[i]);
            continue;
        }
        memcpy(&h, src + 2 * i, sizeof h);
        x[i] = type == RG_ST_F16 ? rg_f16_to_f32(h) : rg_bf16_to_f32(h);
    }
}

static rg_code load_row(const rg_checkpoint *c, const rg_st_tensor *t, uint64_t row, float *x,
                        rg_status *st) {
    const size_t width = type_bytes(t->type), n = (size_t)t->cols;
    uint8_t *dst = (uint8_t *)x + n * (sizeof *x - width);
    RG_TRY(read_bytes(c, t, row * n * width, dst, n * width, st));
    widen(t->type, x, n);
    return RG_OK;
}

rg_code rg_checkpoint_row(const rg_checkpoint *c, const rg_st_tensor *t, const rg_st_tensor *scale,
                          uint64_t row, float *x, rg_status *st) {
    float scales[1024];
    RG_TRY(load_row(c, t, row, x, st));
    if (t->type != RG_ST_F8) return RG_OK;
    if (scale->cols > RG_ARRAY_LEN(scales)) {
        return rg_fail(st, RG_UNSUPPORTED, "'%s' has %llu columns", scale->name, (ull)scale->cols);
    }
    /* Stacked matrices have their scales stacked too. */
    const uint64_t per = t->n_dims > 2 ? t->dims[t->n_dims - 2] : t->rows;
    const uint64_t blocks = (per + RG_ST_BLOCK - 1) / RG_ST_BLOCK;
    RG_TRY(load_row(c, scale, row / per * blocks + row % per / RG_ST_BLOCK, scales, st));
    for (uint64_t i = 0; i < t->cols; i++)
        x[i] *= scales[i / RG_ST_BLOCK];
    return RG_OK;
}

rg_code rg_checkpoint_scale(rg_checkpoint *c, const rg_st_tensor *t, const rg_st_tensor **scale,
                            rg_status *st) {
    char name[RG_ST_NAME_MAX + 16];
    *scale = NULL;
    if (t->type != RG_ST_F8) return RG_OK;
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const rg_st_tensor *s = rg_checkpoint_find(c, name);
    if (!s) return rg_fail(st, RG_FORMAT, "the scales '%.150s' are missing", name);
    const uint64_t per = t->n_dims > 2 ? t->dims[t->n_dims - 2] : t->rows;
    const uint64_t rows = t->rows / per * ((per + RG_ST_BLOCK - 1) / RG_ST_BLOCK);
    const uint64_t cols = (t->cols + RG_ST_BLOCK - 1) / RG_ST_BLOCK;
    if (s->rows != rows || s->cols != cols || s->type == RG_ST_F8 || s->type == RG_ST_I64) {
        return rg_fail(st, RG_FORMAT, "'%.100s' is %llu x %llu, not %llu x %llu", name,
                       (ull)s->rows, (ull)s->cols, (ull)rows, (ull)cols);
    }
    *scale = s;
    return RG_OK;
}

rg_code rg_checkpoint_i64(const rg_checkpoint *c, const rg_st_tensor *t, uint64_t *v, size_t n,
                          rg_status *st) {
    if (t->type != RG_ST_I64 || t->rows * t->cols != n) {
        return rg_fail(st, RG_FORMAT, "tensor '%.120s' is not %zu values of I64", t->name, n);
    }
    RG_TRY(read_bytes(c, t, 0, v, n * sizeof *v, st));
    for (size_t i = 0; i < n; i++) {
        if (v[i] > INT64_MAX) {
            return rg_fail(st, RG_FORMAT, "tensor '%.120s': value %zu is negative", t->name, i);
        }
    }
    return RG_OK;
}
