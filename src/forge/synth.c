/* The front of synth: files, order, space, progress. */
#include "forge/synth.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "forge/file_out.h"
#include "forge/synth_parts.h"

typedef struct shard {
    rg_gguf_out head;
    rg_file_out *file;
    uint32_t begin, end; /* tensors */
    char path[RG_SYNTH_PATH_MAX];
} shard;

typedef struct job {
    const rg_synth_options *opt;
    rg_synth_plan plan;
    rg_synth_fill *fill;
    rg_pool *pool;
    shard *shards;
    uint32_t n_shard;
    uint64_t total_bytes, done_bytes;
} job;

void rg_synth_options_init(rg_synth_options *opt) {
    *opt = (rg_synth_options){.seed = 1, .skew = -1, .correlation = -1, .predictability = -1};
    const rg_code rc = rg_synth_preset(&opt->shape, "release", NULL);
    RG_ASSERT(rc == RG_OK);
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* Tensors in order, about the same number of bytes in each shard. */
static void deal_tensors(job *j) {
    const rg_synth_plan *p = &j->plan;
    uint64_t total = 0, seen = 0;
    for (uint32_t i = 0; i < p->n_tensor; i++)
        total += p->tensors[i].rows * p->tensors[i].row_bytes;
    uint32_t at = 0;
    for (uint32_t s = 0; s < j->n_shard; s++) {
        j->shards[s].begin = at;
        const double until = (double)total * (s + 1) / j->n_shard;
        while (at < p->n_tensor && (s + 1 == j->n_shard || (double)seen < until))
            seen += p->tensors[at].rows * p->tensors[at].row_bytes, at++;
        j->shards[s].end = at;
    }
}

static rg_code name_shard(const job *j, shard *sh, uint32_t s, const char *path, rg_status *st) {
    int n = 0;
    if (j->n_shard == 1) {
        n = snprintf(sh->path, sizeof sh->path, "%s", path);
    } else {
        size_t len = strlen(path);
        if (len > 5 && strcmp(path + len - 5, ".gguf") == 0) len -= 5;
        if (len >= sizeof sh->path) len = sizeof sh->path - 1;
        n = snprintf(sh->path, sizeof sh->path, "%.*s-%05u-of-%05u.gguf", (int)len, path, s + 1,
                     j->n_shard);
    }
    if (n < 0 || (size_t)n >= sizeof sh->path) {
        return rg_fail(st, RG_INVALID, "the path has %zu bytes, the limit is %u", strlen(path),
                       RG_SYNTH_PATH_MAX - 32);
    }
    if (!j->opt->overwrite && access(sh->path, F_OK) == 0)
        return rg_fail(st, RG_INVALID, "'%s' exists already", sh->path);
    return RG_OK;
}

static rg_code lay_out_shard(job *j, uint32_t s, rg_status *st) {
    const rg_synth_plan *p = &j->plan;
    shard *sh = &j->shards[s];
    if (s == 0) RG_TRY(rg_synth_plan_meta(p, &sh->head, st));
    if (j->n_shard > 1) {
        RG_TRY(rg_gguf_out_u16(&sh->head, "split.no", (uint16_t)s, st));
        RG_TRY(rg_gguf_out_u16(&sh->head, "split.count", (uint16_t)j->n_shard, st));
        RG_TRY(rg_gguf_out_i32(&sh->head, "split.tensors.count", (int32_t)p->n_tensor, st));
    }
    for (uint32_t i = sh->begin; i < sh->end; i++) {
        const rg_synth_tensor *t = &p->tensors[i];
        RG_TRY(rg_gguf_out_tensor(&sh->head, t->name, t->type, t->ne, t->n_dims,
                                  t->rows * t->row_bytes, st));
    }
    j->total_bytes += rg_gguf_out_file_bytes(&sh->head);
    return RG_OK;
}

static rg_code lay_out(job *j, const char *path, rg_status *st) {
    j->n_shard = j->opt->split > 1 ? j->opt->split : 1;
    if (j->n_shard > RG_SYNTH_SPLIT_MAX || j->n_shard > j->plan.n_tensor) {
        return rg_fail(st, RG_INVALID, "%u shards for %u tensors, the limit is %u", j->n_shard,
                       j->plan.n_tensor, RG_SYNTH_SPLIT_MAX);
    }
    j->shards = rg_alloc(j->n_shard, sizeof *j->shards, st);
    if (!j->shards) return RG_NOMEM;
    for (uint32_t s = 0; s < j->n_shard; s++)
        rg_gguf_out_init(&j->shards[s].head);
    deal_tensors(j);
    for (uint32_t s = 0; s < j->n_shard; s++) {
        RG_TRY(name_shard(j, &j->shards[s], s, path, st));
        RG_TRY(lay_out_shard(j, s, st));
    }
    return RG_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static rg_code report(job *j, const char *tensor, uint64_t bytes, rg_status *st) {
    const rg_synth_options *opt = j->opt;
    j->done_bytes += bytes;
    if (opt->progress) {
        opt->progress(opt->progress_user,
                      &(rg_synth_progress){j->done_bytes, j->total_bytes, tensor});
    }
    if (opt->cancel && atomic_load_explicit(opt->cancel, memory_order_relaxed)) {
        return rg_fail(st, RG_CANCELED, "canceled after %llu of %llu MiB",
                       (unsigned long long)(j->done_bytes >> 20),
                       (unsigned long long)(j->total_bytes >> 20));
    }
    return RG_OK;
}

static rg_code write_tensor(job *j, rg_file_out *f, uint32_t tensor, rg_status *st) {
    const rg_synth_tensor *t = &j->plan.tensors[tensor];
    for (uint64_t row = 0; row < t->rows;) {
        size_t room = 0;
        uint8_t *dst = rg_file_out_room(f, &room);
        uint64_t n = room / t->row_bytes + 1; /* the last one may reach into the slack */
        if (n > t->rows - row) n = t->rows - row;
        RG_TRY(rg_synth_fill_rows(j->fill, tensor, row, row + n, dst, st));
        RG_TRY(rg_file_out_advance(f, (size_t)n * t->row_bytes, st));
        row += n;
        RG_TRY(report(j, t->name, n * t->row_bytes, st));
    }
    const size_t over = (size_t)(rg_file_out_size(f) % RG_GGUF_OUT_ALIGN);
    return over ? rg_file_out_zeros(f, RG_GGUF_OUT_ALIGN - over, st) : RG_OK;
}

static rg_code write_shard(job *j, shard *sh, rg_status *st) {
    uint8_t start[24];
    RG_TRY(rg_file_out_create(&sh->file, sh->path, j->plan.row_bytes_max, st));
    rg_gguf_out_start(&sh->head, start);
    RG_TRY(rg_file_out_write(sh->file, start, sizeof start, st));
    RG_TRY(rg_file_out_write(sh->file, sh->head.kv.data, sh->head.kv.len, st));
    if (sh->head.table.len)
        RG_TRY(rg_file_out_write(sh->file, sh->head.table.data, sh->head.table.len, st));
    const uint64_t head_bytes = rg_gguf_out_header_bytes(&sh->head);
    RG_TRY(rg_file_out_zeros(sh->file, (size_t)(head_bytes - rg_file_out_size(sh->file)), st));
    for (uint32_t i = sh->begin; i < sh->end; i++)
        RG_TRY(write_tensor(j, sh->file, i, st));
    RG_ASSERT(rg_file_out_size(sh->file) == rg_gguf_out_file_bytes(&sh->head));
    return rg_file_out_finish(sh->file, st);
}

static rg_code write_all(job *j, rg_status *st) {
    for (uint32_t s = 0; s < j->n_shard; s++)
        RG_TRY(write_shard(j, &j->shards[s], st));
    for (uint32_t s = 0; s < j->n_shard; s++) {
        const rg_code rc = rg_file_out_commit(j->shards[s].file, st);
        if (rc == RG_OK) continue;
        for (uint32_t k = 0; k < s; k++)
            rg_file_out_discard(j->shards[k].file);
        return rc;
    }
    return RG_OK;
}

static void describe(const job *j, rg_synth_result *r) {
    const rg_synth_plan *p = &j->plan;
    r->size_bytes = j->total_bytes;
    r->n_tensor = p->n_tensor;
    r->n_file = j->n_shard;
    r->expert_bytes = 0;
    for (uint32_t i = 0; i < p->n_tensor; i++) {
        if (p->tensors[i].is_expert)
            r->expert_bytes += p->tensors[i].rows * p->tensors[i].row_bytes;
    }
    memcpy(r->first_path, j->shards[0].path, sizeof r->first_path);
}

static void release(job *j) {
    for (uint32_t s = 0; j->shards && s < j->n_shard; s++) {
        rg_file_out_destroy(j->shards[s].file);
        rg_gguf_out_deinit(&j->shards[s].head);
    }
    rg_free(j->shards);
    rg_synth_fill_destroy(j->fill);
    rg_pool_destroy(j->pool);
    rg_synth_plan_deinit(&j->plan);
}

rg_code rg_synth_write(const char *path, const rg_synth_options *opt, rg_synth_result *result,
                       rg_status *st) {
    const uint64_t t0 = rg_now_ns();
    job j = {.opt = opt};
    rg_code rc = RG_OK;
    *result = (rg_synth_result){0};
    RG_GO(rg_synth_plan_init(&j.plan, opt, st));
    RG_GO(lay_out(&j, path, st));
    RG_GO(rg_file_out_check_space(path, j.total_bytes, st));
    RG_GO(rg_pool_create(&j.pool, opt->n_threads > 0 ? opt->n_threads : rg_cpu_count(), st));
    RG_GO(rg_synth_fill_create(&j.fill, &j.plan, j.pool, st));
    RG_GO(write_all(&j, st));
    describe(&j, result);
    result->seconds = (double)(rg_now_ns() - t0) * 1e-9;
cleanup:
    release(&j);
    return rc;
}
