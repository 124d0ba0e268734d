/* Rows of a tensor: read, unpacked, packed again. Shares of rows go to threads; each row is made by
 * one thread from itself and the importance alone.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "forge/quantize_parts.h"

#define SAMPLE_VALUES ((uint64_t)1 << 18) /* of a tensor when errors are measured */
#define SAMPLE_ROWS   256u

typedef struct rows_job {
    rg_quantize_job *j;
    const rg_tensor *in;
    rg_type type;
    const uint8_t *src;
    uint8_t *dst;
    size_t src_row, dst_row;
    uint64_t first; /* row of the tensor at src */
    atomic_ullong bad_row;
    double *errors, *powers; /* [rows]; measuring only */
} rows_job;

rg_code rg_quantize_rows_init(rg_quantize_job *j, rg_status *st) {
    const size_t n = (size_t)rg_pool_threads(j->pool);
    size_t widest = 1, widest_bytes = 1, scratch = 64;
    for (size_t i = 0; i < rg_gguf_tensor_count(j->gguf); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(j->gguf, i);
        if (t->ne[0] > widest) widest = (size_t)t->ne[0];
    }
    for (uint32_t t = 0; t < RG_TYPE_COUNT; t++) {
        if (rg_type_get(t) && rg_pack_scratch_bytes((rg_type)t) > scratch) {
            scratch = rg_pack_scratch_bytes((rg_type)t);
        }
    }
    widest_bytes = widest * sizeof(double);
    if (widest_bytes < RG_QUANTIZE_CHUNK) widest_bytes = RG_QUANTIZE_CHUNK;
    j->raw = rg_alloc(widest_bytes, 1, st);
    j->packed = rg_alloc(widest_bytes, 1, st);
    j->threads = rg_alloc(n, sizeof *j->threads, st);
    if (!j->raw || !j->packed || !j->threads) return RG_NOMEM;
    for (size_t i = 0; i < n; i++) {
        rg_quantize_thread *t = &j->threads[i];
        t->x = rg_alloc(widest, sizeof *t->x, st);
        t->y = rg_alloc(widest, sizeof *t->y, st);
        t->scratch = rg_alloc_aligned(64, (scratch + 63) / 64 * 64, st);
        if (!t->x || !t->y || !t->scratch) return RG_NOMEM;
    }
    return RG_OK;
}

void rg_quantize_rows_deinit(rg_quantize_job *j) {
    for (int i = 0; j->threads && i < rg_pool_threads(j->pool); i++) {
        rg_free(j->threads[i].x);
        rg_free(j->threads[i].y);
        rg_free(j->threads[i].scratch);
    }
    rg_free(j->threads);
    rg_free(j->raw);
    rg_free(j->packed);
    rg_free(j->importance);
    rg_free(j->known);
}

rg_code rg_quantize_importance(rg_quantize_job *j, const rg_tensor *t, rg_status *st) {
    const uint64_t n = t->ne[2] * t->ne[3];
    if (n > j->known_cap) {
        bool *known = rg_realloc(j->known, (size_t)n, sizeof *known, st);
        if (!known) return RG_NOMEM;
        j->known = known;
        j->known_cap = n;
    }
    memset(j->known, 0, (size_t)n * sizeof *j->known);
    if (!j->imatrix) return RG_OK;
    if (n * t->ne[0] > j->importance_cap) {
        float *w = rg_realloc(j->importance, (size_t)(n * t->ne[0]), sizeof *w, st);
        if (!w) return RG_NOMEM;
        j->importance = w;
        j->importance_cap = n * t->ne[0];
    }
    for (uint64_t i = 0; i < n; i++) {
        RG_TRY(rg_imatrix_get(j->imatrix, t, i, j->importance + i * t->ne[0], &j->known[i], st));
    }
    return RG_OK;
}

static const float *importance_of(const rows_job *r, uint64_t row) {
    const uint64_t matrix = row / r->in->ne[1];
    return r->j->known[matrix] ? r->j->importance + matrix * r->in->ne[0] : NULL;
}

static bool all_finite(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
    }
    return true;
}

static void pack_share(void *arg, size_t begin, size_t end, int thread) {
    rows_job *r = arg;
    const rg_quantize_thread *t = &r->j->threads[thread];
    const rg_packer packer = {r->type, r->j->level, t->scratch};
    const size_t n = (size_t)r->in->ne[0];
    for (size_t i = begin; i < end; i++) {
        const uint64_t row = r->first + i;
        rg_unpack_row(r->in->type, r->src + i * r->src_row, t->x, n);
        if (!all_finite(t->x, n)) {
            unsigned long long seen = atomic_load(&r->bad_row); /* the lowest one is reported */
            while (row < seen && !atomic_compare_exchange_weak(&r->bad_row, &seen, row)) {
            }
            continue;
        }
        rg_pack_row(&packer, t->x, importance_of(r, row), r->dst + i * r->dst_row, n);
    }
}

static rg_code check_rows(const rows_job *r, rg_status *st) {
    const unsigned long long bad = r->bad_row;
    if (bad == UINT64_MAX) return RG_OK;
    return rg_fail(st, RG_FORMAT, "tensor '%s': row %llu holds a value that is not finite",
                   r->in->name, bad);
}

/* Rows that fit both buffers. */
static uint64_t rows_at_once(const rows_job *r) {
    const size_t wide = r->src_row > r->dst_row ? r->src_row : r->dst_row;
    return wide < RG_QUANTIZE_CHUNK ? RG_QUANTIZE_CHUNK / wide : 1;
}

static rg_code copy_tensor(rg_quantize_job *j, uint32_t i, rg_gguf_write *w, rg_status *st) {
    const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
    for (uint64_t at = 0; at < in->size_bytes;) {
        const uint64_t left = in->size_bytes - at;
        const size_t n = left < RG_QUANTIZE_CHUNK ? (size_t)left : RG_QUANTIZE_CHUNK;
        RG_TRY(rg_gguf_read(j->gguf, in, at, n, j->raw, st));
        RG_TRY(rg_gguf_write_at(w, i, at, j->raw, n, st));
        at += n;
    }
    return rg_gguf_write_end(w, i, st);
}

static void tell(const rg_quantize_job *j, uint64_t done, uint64_t total) {
    if (j->opt->progress) j->opt->progress(j->opt->progress_user, "quantize", done, total);
}

rg_code rg_quantize_tensor(rg_quantize_job *j, uint32_t i, rg_gguf_write *w, uint64_t done,
                           rg_status *st) {
    const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
    const rg_out_tensor *out = &j->out[i];
    if (out->type == in->type) return copy_tensor(j, i, w, st);
    const size_t cols = (size_t)in->ne[0];
    const uint64_t rows = in->ne[1] * in->ne[2] * in->ne[3];
    rows_job r = {.j = j,
                  .in = in,
                  .type = out->type,
                  .src = j->raw,
                  .dst = j->packed,
                  .src_row = rg_row_bytes(in->type, cols),
                  .dst_row = rg_row_bytes(out->type, cols),
                  .bad_row = UINT64_MAX};
    RG_TRY(rg_quantize_importance(j, in, st));
    const uint64_t step = rows_at_once(&r);
    for (r.first = 0; r.first < rows; r.first += step) {
        const uint64_t n = rows - r.first < step ? rows - r.first : step;
        RG_TRY(rg_gguf_read(j->gguf, in, r.first * r.src_row, (size_t)n * r.src_row, j->raw, st));
        rg_pool_run(j->pool, (size_t)n, 1, pack_share, &r);
        RG_TRY(check_rows(&r, st));
        const uint64_t at = r.first * r.dst_row;
        RG_TRY(rg_gguf_write_at(w, i, at, j->packed, (size_t)n * r.dst_row, st));
        tell(j, done + at + n * r.dst_row, rg_gguf_write_bytes(w));
    }
    return rg_gguf_write_end(w, i, st);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void measure_share(void *arg, size_t begin, size_t end, int thread) {
    rows_job *r = arg;
    const rg_quantize_thread *t = &r->j->threads[thread];
    const size_t n = (size_t)r->in->ne[0];
    const uint64_t rows = r->in->ne[1] * r->in->ne[2] * r->in->ne[3];
    const rg_packer packer = {r->type, r->j->level, t->scratch};
    for (size_t i = begin; i < end; i++) {
        /* Odd multiples of half a step: spread over all matrices and their rows. */
        const uint64_t row = (2 * i + 1) * rows / (2 * r->first);
        const float *w = importance_of(r, row);
        uint8_t *block = r->dst + i * r->dst_row;
        rg_unpack_row(r->in->type, r->src + i * r->src_row, t->x, n);
        rg_pack_row(&packer, t->x, w, block, n);
        rg_unpack_row(r->type, block, t->y, n);
        for (size_t c = 0; c < n; c++) {
            const double weight = w ? (double)w[c] : 1;
            const double d = (double)t->y[c] - (double)t->x[c];
            r->errors[i] += weight * d * d;
            r->powers[i] += weight * (double)t->x[c] * (double)t->x[c];
        }
    }
}

rg_code rg_quantize_measure(rg_quantize_job *j, uint32_t i, rg_type type, double *error,
                            rg_status *st) {
    const rg_tensor *in = rg_gguf_tensor_at(j->gguf, i);
    const size_t cols = (size_t)in->ne[0];
    const uint64_t rows = in->ne[1] * in->ne[2] * in->ne[3];
    double errors[SAMPLE_ROWS] = {0}, powers[SAMPLE_ROWS] = {0};
    rows_job r = {.j = j,
                  .in = in,
                  .type = type,
                  .src = j->raw,
                  .dst = j->packed,
                  .src_row = rg_row_bytes(in->type, cols),
                  .dst_row = rg_row_bytes(type, cols),
                  .bad_row = UINT64_MAX,
                  .errors = errors,
                  .powers = powers};
    uint64_t n = SAMPLE_VALUES / cols + 1;
    if (n > SAMPLE_ROWS) n = SAMPLE_ROWS;
    if (n > rows) n = rows;
    if (n > rows_at_once(&r)) n = rows_at_once(&r);
    RG_TRY(rg_quantize_importance(j, in, st));
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t row = (2 * k + 1) * rows / (2 * n);
        RG_TRY(rg_gguf_read(j->gguf, in, row * r.src_row, r.src_row, j->raw + k * r.src_row, st));
    }
    r.first = n; /* the number of samples */
    rg_pool_run(j->pool, (size_t)n, 1, measure_share, &r);
    double e = 0, p = 0;
    for (uint64_t k = 0; k < n; k++) {
        e += errors[k];
        p += powers[k];
    }
    *error = p > 0 ? e / p : 0;
    return RG_OK;
}
