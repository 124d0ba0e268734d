/* The front of convert: inputs, rows, report. Rows are made in shares by the threads, each from
 * its source row, and written in order of the file.
 */
#include "forge/convert.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "forge/convert_parts.h"

#define CHUNK_BYTES ((size_t)8 << 20) /* of packed rows */
#define SAMPLE_MAX  64u               /* values of a tensor that go into the identity */

typedef unsigned long long ull;

typedef struct thread_rows {
    float *x, *y; /* [widest] */
    void *scratch;
} thread_rows;

typedef struct convert_job {
    rg_convert_plan plan;
    rg_cpu_level level;
    rg_pool *pool;
    thread_rows *threads;
    uint8_t *packed;
    rg_out_tensor *out; /* [n] */
    /* of the tensor at hand */
    const rg_convert_item *item;
    uint64_t first;
    size_t row_bytes;
    pthread_mutex_t lock; /* guards first_failed, failure */
    uint64_t failed_row;
    rg_status failure;
} convert_job;

/* ---- rows ------------------------------------------------------------------------------------ */

/* Place in the source of place o of a tiled axis: [r][k heads][unit] comes from
 * [k heads][r][unit]. */
static uint64_t untile(const rg_convert_item *it, uint64_t o, uint64_t k_heads, uint64_t r) {
    if (o < it->tile_start) return o;
    const uint64_t at = o - it->tile_start, unit = it->tile_unit;
    const uint64_t d = at % unit, k = at / unit % k_heads, i = at / unit / k_heads;
    return it->tile_start + (k * r + i) * unit + d;
}

static rg_code take_row(const convert_job *j, const rg_convert_item *it, uint64_t row, float *x,
                        float *tmp, rg_status *st) {
    const rg_hf_config *c = &j->plan.cfg;
    const uint64_t r = c->n_v_head / c->n_k_head, n = it->out.ne[0];
    if (it->tile == RG_TILE_ROWS) row = untile(it, row, c->n_k_head, r);
    const bool many = it->n_src > 1;
    const uint32_t s = many ? (uint32_t)(row / it->per) : 0;
    const uint64_t at =
        it->base + (many ? row % it->per : row / it->per * it->stride + row % it->per);
    float *to = it->tile == RG_TILE_COLS ? tmp : x;
    RG_TRY(rg_checkpoint_row(j->plan.ckpt, it->src[s], it->scale[s], at, to, st));
    if (it->beside) {
        RG_TRY(rg_checkpoint_row(j->plan.ckpt, it->beside, it->beside_scale, at,
                                 x + it->src[s]->cols, st));
    }
    for (uint64_t i = 0; i < n && it->tile == RG_TILE_COLS; i++)
        x[i] = tmp[untile(it, i, c->n_k_head, r)];
    for (uint64_t i = 0; i < n && it->op != RG_OP_NONE; i++)
        x[i] = it->op == RG_OP_PLUS_ONE ? x[i] + 1.0f : -expf(x[i]);
    for (uint64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) continue;
        return rg_fail(st, RG_FORMAT, "'%s': value %llu of row %llu is not finite",
                       it->src[s]->name, (ull)i, (ull)at);
    }
    return RG_OK;
}

static void make_share(void *arg, size_t begin, size_t end, int thread) {
    convert_job *j = arg;
    const thread_rows *t = &j->threads[thread];
    const rg_packer packer = {j->item->out.type, j->level, t->scratch};
    for (size_t i = begin; i < end; i++) {
        rg_status st = {0};
        const uint64_t row = j->first + i;
        if (take_row(j, j->item, row, t->x, t->y, &st) == RG_OK) {
            uint8_t *to = j->packed + i * j->row_bytes;
            const size_t cols = (size_t)j->item->out.ne[0];
            if (packer.type == RG_TYPE_Q8_0) { /* as other converters round it */
                rg_pack_q8_0_plain(t->x, to, cols);
            } else {
                rg_pack_row(&packer, t->x, NULL, to, cols);
            }
            continue;
        }
        pthread_mutex_lock(&j->lock); /* the lowest row is reported */
        if (row < j->failed_row) {
            j->failed_row = row;
            j->failure = st;
        }
        pthread_mutex_unlock(&j->lock);
        return;
    }
}

static rg_code make_tensor(convert_job *j, uint32_t i, rg_gguf_write *w, uint64_t done,
                           rg_status *st) {
    const rg_convert_item *it = &j->plan.items[i];
    const rg_convert_options *o = j->plan.opt;
    const uint64_t rows = it->out.ne[1] * it->out.ne[2];
    j->item = it;
    j->row_bytes = rg_row_bytes(it->out.type, (size_t)it->out.ne[0]);
    const uint64_t step = j->row_bytes < CHUNK_BYTES ? CHUNK_BYTES / j->row_bytes : 1;
    for (j->first = 0; j->first < rows; j->first += step) {
        const uint64_t n = rows - j->first < step ? rows - j->first : step;
        j->failed_row = UINT64_MAX;
        rg_pool_run(j->pool, (size_t)n, 1, make_share, j);
        if (j->failed_row != UINT64_MAX) {
            return rg_fail(st, j->failure.code, "%s", j->failure.message);
        }
        const uint64_t at = j->first * j->row_bytes;
        RG_TRY(rg_gguf_write_at(w, i, at, j->packed, (size_t)n * j->row_bytes, st));
        if (o->progress) {
            o->progress(o->progress_user, "convert", done + at + n * j->row_bytes,
                        rg_gguf_write_bytes(w));
        }
    }
    return rg_gguf_write_end(w, i, st);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static rg_code find_prefix(rg_convert_plan *p, rg_status *st) {
    static const char *const prefixes[] = {"model.language_model.", "model.", ""};
    for (size_t i = 0; i < RG_ARRAY_LEN(prefixes); i++) {
        char name[128];
        snprintf(p->prefix, sizeof p->prefix, "%s", prefixes[i]);
        snprintf(name, sizeof name, "%sembed_tokens.weight", p->prefix);
        if (rg_checkpoint_find(p->ckpt, name)) return RG_OK;
    }
    return rg_fail(st, RG_FORMAT, "tensor 'model.embed_tokens.weight' is missing");
}

static rg_code open_inputs(rg_convert_plan *p, rg_buf *report, rg_status *st) {
    const rg_convert_options *o = p->opt;
    if (o->mix) {
        p->mix = rg_type_mix_find(o->mix);
        if (!p->mix) return rg_fail(st, RG_INVALID, "unknown type '%.40s'", o->mix);
    }
    RG_TRY(rg_type_rules_create(&p->rules, o->rules, o->n_rules, st));
    RG_TRY(rg_convert_config(&p->cfg, o->folder, st));
    RG_TRY(rg_checkpoint_open(&p->ckpt, o->folder, st));
    RG_TRY(find_prefix(p, st));
    if (o->no_mtp) p->cfg.n_mtp = 0;
    if (p->cfg.n_mtp && !rg_checkpoint_find(p->ckpt, "mtp.fc_embedding.weight")) {
        p->cfg.n_mtp = 0;
        RG_TRY(rg_buf_puts(report, "note: the checkpoint holds no draft block (mtp.*)\n", st));
    }
    return rg_convert_list(p, st);
}

static rg_code note_unused(const rg_convert_plan *p, rg_buf *report, rg_status *st) {
    const rg_st_tensor *example = NULL;
    size_t n = 0;
    for (size_t i = 0; i < rg_checkpoint_count(p->ckpt); i++) {
        const rg_st_tensor *t = rg_checkpoint_at(p->ckpt, i);
        if (t->used || (p->opt->no_mtp && strncmp(t->name, "mtp.", 4) == 0)) continue;
        example = t;
        n++;
    }
    if (!n) return RG_OK;
    return rg_buf_printf(report, st,
                         "note: %zu tensors of the checkpoint are not used, such as %s\n", n,
                         example->name);
}

static rg_code take_memory(convert_job *j, rg_status *st) {
    const size_t n = (size_t)rg_pool_threads(j->pool);
    uint64_t widest = 1;
    size_t scratch = 64, packed = CHUNK_BYTES;
    for (uint32_t i = 0; i < j->plan.n; i++) {
        const rg_out_tensor *t = &j->plan.items[i].out;
        const size_t need = rg_pack_scratch_bytes(t->type);
        const size_t row = rg_row_bytes(t->type, (size_t)t->ne[0]);
        if (t->ne[0] > widest) widest = t->ne[0];
        if (need > scratch) scratch = need;
        if (row > packed) packed = row;
    }
    j->packed = rg_alloc(packed, 1, st);
    j->threads = rg_alloc(n, sizeof *j->threads, st);
    j->out = rg_alloc(j->plan.n, sizeof *j->out, st);
    if (!j->packed || !j->threads || !j->out) return RG_NOMEM;
    for (size_t i = 0; i < n; i++) {
        thread_rows *t = &j->threads[i];
        t->x = rg_alloc((size_t)widest, sizeof *t->x, st);
        t->y = rg_alloc((size_t)widest, sizeof *t->y, st);
        t->scratch = rg_alloc_aligned(64, (scratch + 63) / 64 * 64, st);
        if (!t->x || !t->y || !t->scratch) return RG_NOMEM;
    }
    for (uint32_t i = 0; i < j->plan.n; i++)
        j->out[i] = j->plan.items[i].out;
    return RG_OK;
}

/* Of metadata, shapes, and some values of every tensor. */
static rg_code make_identity(convert_job *j, const rg_gguf_out *head, uint8_t id[16],
                             rg_status *st) {
    XXH3_state_t *h = XXH3_createState();
    if (!h) return rg_fail(st, RG_NOMEM, "no memory for a hash");
    rg_code rc = RG_OK;
    XXH3_128bits_reset(h);
    XXH3_128bits_update(h, head->kv.data, head->kv.len);
    XXH3_128bits_update(h, j->out, j->plan.n * sizeof *j->out);
    for (uint32_t i = 0; i < j->plan.n && rc == RG_OK; i++) {
        const uint64_t n = j->out[i].ne[0] < SAMPLE_MAX ? j->out[i].ne[0] : SAMPLE_MAX;
        rc = take_row(j, &j->plan.items[i], 0, j->threads[0].x, j->threads[0].y, st);
        if (rc == RG_OK) XXH3_128bits_update(h, j->threads[0].x, n * sizeof(float));
    }
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(h));
    memcpy(id, c.digest, 16);
    XXH3_freeState(h);
    return rc;
}

static rg_code write_all(convert_job *j, const rg_gguf_out *head, rg_buf *report, rg_status *st) {
    uint8_t id[16] = {0};
    rg_gguf_write *w = NULL;
    const rg_convert_options *opt = j->plan.opt;
    RG_TRY(make_identity(j, head, id, st));
    const rg_write_options o = {
        .path = opt->out_path, .parts = opt->parts, .overwrite = opt->overwrite, .identity = id};
    RG_TRY(rg_gguf_write_create(&w, &o, head, j->out, j->plan.n, st));
    rg_code rc = RG_OK;
    uint64_t done = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < j->plan.n && rc == RG_OK; i++) {
        if (rg_gguf_write_has(w, i)) {
            kept++;
        } else {
            rc = make_tensor(j, i, w, done, st);
        }
        done += j->out[i].size_bytes;
    }
    if (rc == RG_OK) rc = rg_gguf_write_finish(w, st);
    if (rc == RG_OK && kept) {
        rc = rg_buf_printf(report, st, "note: %u tensors are those of an earlier run\n", kept);
    }
    if (rc == RG_OK) {
        rc = rg_buf_printf(report, st, "%s: %u tensors, %llu bytes%s\n", rg_gguf_write_path(w),
                           j->plan.n, (ull)rg_gguf_write_bytes(w),
                           j->plan.cfg.n_mtp ? ", with draft block" : "");
    }
    rg_gguf_write_destroy(w);
    return rc;
}

static rg_code run(convert_job *j, rg_gguf_out *head, rg_buf *report, rg_status *st) {
    const rg_convert_options *o = j->plan.opt;
    RG_TRY(open_inputs(&j->plan, report, st));
    RG_TRY(rg_cpu_level_pick(&j->level, o->cpu_level, st));
    RG_TRY(rg_pool_create(&j->pool, o->n_threads ? o->n_threads : rg_cpu_count(), st));
    RG_TRY(take_memory(j, st));
    RG_TRY(rg_convert_meta(&j->plan, head, st));
    RG_TRY(note_unused(&j->plan, report, st));
    return write_all(j, head, report, st);
}

rg_code rg_forge_convert(const rg_convert_options *opt, rg_buf *out, rg_status *st) {
    convert_job *j = rg_alloc(1, sizeof *j, st);
    if (!j) return RG_NOMEM;
    rg_gguf_out head;
    rg_gguf_out_init(&head);
    j->plan.opt = opt;
    pthread_mutex_init(&j->lock, NULL);
    const rg_code rc = run(j, &head, out, st);
    for (int i = 0; j->threads && i < rg_pool_threads(j->pool); i++) {
        rg_free(j->threads[i].x);
        rg_free(j->threads[i].y);
        rg_free(j->threads[i].scratch);
    }
    for (uint32_t i = 0; i < j->plan.n; i++) {
        rg_free((void *)j->plan.items[i].src);
        rg_free((void *)j->plan.items[i].scale);
    }
    pthread_mutex_destroy(&j->lock);
    rg_free(j->threads);
    rg_free(j->packed);
    rg_free(j->out);
    rg_free(j->plan.items);
    rg_pool_destroy(j->pool);
    rg_checkpoint_close(j->plan.ckpt);
    rg_type_rules_destroy(j->plan.rules);
    rg_gguf_out_deinit(&head);
    rg_free(j);
    return rc;
}
