/* The examination: machine, model, drive, memory, advice, in this order. */
#include "forge/doctor.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "forge/doctor_parts.h"
#include "model/model.h"

rg_code rg_doctor_step(rg_doctor_steps *s, const char *what, rg_status *st) {
    const rg_doctor_options *opt = s->opt;
    if (opt->cancel && atomic_load_explicit(opt->cancel, memory_order_relaxed))
        return rg_fail(st, RG_CANCELED, "canceled at step %u of %u", s->done, s->total);
    if (opt->progress) opt->progress(opt->progress_user, what, s->done, s->total);
    if (s->done < s->total) s->done++;
    return RG_OK;
}

/* ---- machine --------------------------------------------------------------------------------- */

/* A limit that cannot be read counts as none. */
static uint64_t limit_of(int failed, const struct rlimit *r) {
    return failed || r->rlim_cur == RLIM_INFINITY ? RG_DOCTOR_UNLIMITED : (uint64_t)r->rlim_cur;
}

static void look_at_limits(rg_doctor_machine *m) {
    struct rlimit r = {0};
    int failed = getrlimit(RLIMIT_MEMLOCK, &r);
    m->memlock_bytes = limit_of(failed, &r);
    failed = getrlimit(RLIMIT_AS, &r);
    m->address_space_bytes = limit_of(failed, &r);
    failed = getrlimit(RLIMIT_NOFILE, &r);
    m->nofile = limit_of(failed, &r);
    rg_doctor_cgroup(&m->cgroup_version, &m->cgroup_memory_bytes);
}

static void look_at_machine(rg_doctor_machine *m) {
    rg_cpu_level level = RG_CPU_SCALAR;
    if (rg_cpu_level_pick(&level, NULL, NULL) != RG_OK) level = RG_CPU_SCALAR;
    snprintf(m->cpu_level, sizeof m->cpu_level, "%s", rg_cpu_level_name(level));
    m->cores = rg_cpu_count();
    m->cache_bytes = rg_doctor_cache_bytes();
    m->memory_available_bytes = rg_mem_available_bytes();
    rg_doctor_huge_pages(m->huge_pages);
    m->io_uring = rg_doctor_uring_works(&m->io_uring_errno);
    look_at_limits(m);
}

/* ---- model ----------------------------------------------------------------------------------- */

static uint64_t moe_bytes(const rg_moe_desc *moe) {
    const rg_tensor *parts[4] = {moe->gate, moe->up, moe->gate_up, moe->down};
    uint64_t sum = 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(parts); i++)
        sum += parts[i] ? parts[i]->size_bytes : 0;
    return sum;
}

static void count_experts(rg_doctor_model *m, const rg_moe_desc *moe) {
    const uint64_t layer = moe_bytes(moe);
    m->experts_bytes += layer;
    if (layer / m->n_expert > m->expert_bytes) m->expert_bytes = layer / m->n_expert;
}

static void count_bytes(rg_doctor_model *m, const rg_gguf *g, const rg_model *model) {
    m->n_file = rg_gguf_file_count(g);
    m->n_tensor = rg_gguf_tensor_count(g);
    m->n_layer = model->hp.n_layer;
    m->n_expert = model->hp.n_expert;
    m->n_expert_used = model->hp.n_expert_used;
    for (uint32_t i = 0; i < m->n_file; i++)
        m->size_bytes += rg_gguf_file(g, i)->size_bytes;
    for (uint32_t i = 0; i < m->n_layer; i++)
        count_experts(m, &model->layers[i].moe);
    if (model->hp.n_mtp) count_experts(m, &model->mtp.layer.moe);
    m->ngram_bytes = model->ple_table ? model->ple_table->size_bytes : 0;
    for (size_t i = 0; i < m->n_tensor; i++)
        m->trunk_bytes += rg_gguf_tensor_at(g, i)->size_bytes;
    m->trunk_bytes -= m->experts_bytes + m->ngram_bytes;
}

/* The file with the most bytes: where the experts lie. */
static rg_code largest_file(const rg_gguf *g, char **out, rg_status *st) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < rg_gguf_file_count(g); i++) {
        if (rg_gguf_file(g, i)->size_bytes > rg_gguf_file(g, best)->size_bytes) best = i;
    }
    const char *path = rg_gguf_file_path(g, best);
    *out = rg_strndup(path, strlen(path), st);
    return *out ? RG_OK : RG_NOMEM;
}

typedef struct pack_watch {
    const atomic_bool *cancel; /* or NULL */
} pack_watch;

static bool not_canceled(void *user) {
    const pack_watch *w = user;
    return !w->cancel || !atomic_load_explicit(w->cancel, memory_order_relaxed);
}

/* The pack that runs of this model would stream from. A bad one is a finding. */
static rg_code look_at_pack(rg_doctor_model *m, const rg_doctor_options *opt, const rg_gguf *g,
                            const rg_model *model, rg_doctor_steps *steps, rg_status *st) {
    char *path = NULL;
    rg_pack *pack = NULL;
    rg_status found = {0};
    pack_watch watch = {opt->cancel};
    RG_TRY(rg_pack_default_path(&path, opt->model, st));
    m->pack_found = access(path, F_OK) == 0;
    rg_code rc = RG_OK;
    if (m->pack_found) {
        rc = rg_pack_open(&pack, path, &found);
        if (rc == RG_OK) rc = rg_pack_check(pack, g, model, &found);
        if (rc == RG_OK && !opt->quick) {
            rc = rg_doctor_step(steps, "pack data", &found);
            if (rc == RG_OK) rc = rg_pack_verify(pack, not_canceled, &watch, &found);
            m->pack_checked = rc == RG_OK;
        }
        m->pack_ok = rc == RG_OK;
    }
    rg_pack_close(pack);
    rg_free(path);
    if (rc == RG_NOMEM || rc == RG_CANCELED) return rg_fail(st, rc, "%s", found.message);
    if (rc != RG_OK) memcpy(m->pack_error, found.message, sizeof m->pack_error);
    return RG_OK;
}

/* A bad model is a finding. `*drive_path`: the file to measure, NULL without a readable model. */
static rg_code look_at_model(rg_doctor_model *m, const rg_doctor_options *opt, char **drive_path,
                             rg_doctor_steps *steps, rg_status *st) {
    rg_gguf *g = NULL;
    rg_model *model = NULL;
    rg_status found = {0};
    if (!opt->model) return RG_OK;
    RG_TRY(rg_doctor_step(steps, "model", st));
    m->given = true;
    rg_code rc = rg_gguf_open(&g, opt->model, &found);
    if (rc == RG_OK) rc = largest_file(g, drive_path, &found);
    if (rc == RG_OK) rc = rg_model_create(&model, g, &(rg_model_options){0}, &found);
    if (rc == RG_OK) count_bytes(m, g, model);
    if (rc == RG_OK && !opt->quick) {
        rc = rg_doctor_step(steps, "model data", &found);
        if (rc == RG_OK) rc = rg_gguf_check_data(g, &found);
        m->data_checked = rc == RG_OK;
    }
    m->ok = rc == RG_OK;
    if (m->ok) rc = look_at_pack(m, opt, g, model, steps, &found);
    rg_model_destroy(model);
    rg_gguf_close(g);
    if (rc == RG_NOMEM || rc == RG_CANCELED) {
        if (st && st->code == RG_OK) *st = found;
        return rc;
    }
    if (rc != RG_OK) memcpy(m->error, found.message, sizeof m->error);
    return RG_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

rg_code rg_doctor_run(rg_doctor_report *out, const rg_doctor_options *opt, rg_status *st) {
    const uint64_t t0 = rg_now_ns();
    rg_doctor_steps steps = {.opt = opt, .total = 4 + rg_doctor_drive_steps(opt->quick)};
    char *path = NULL;
    rg_code rc = RG_OK;
    if (opt->n_threads < 0 || opt->n_threads > RG_POOL_THREADS_MAX) {
        return rg_fail(st, RG_INVALID, "%d threads are wanted, %d are possible", opt->n_threads,
                       RG_POOL_THREADS_MAX);
    }
    *out = (rg_doctor_report){.quick = opt->quick};
    look_at_machine(&out->machine);
    RG_GO(look_at_model(&out->model, opt, &path, &steps, st));
    const uint64_t expert = out->model.expert_bytes;
    out->drive.expert_bytes = expert < UINT32_MAX / 2 ? (uint32_t)expert : UINT32_MAX / 2;
    RG_GO(rg_doctor_measure_drive(&out->drive, path, opt->folder ? opt->folder : ".",
                                  out->machine.io_uring, &steps, st));
    RG_GO(rg_doctor_step(&steps, "memory", st));
    RG_GO(rg_doctor_measure_memory(&out->machine, opt->quick, opt->n_threads, st));
    RG_GO(rg_doctor_measure_gpus(out, st));
    out->seconds = (double)(rg_now_ns() - t0) * 1e-9;
    rg_doctor_advise(out);
    if (opt->progress) opt->progress(opt->progress_user, "done", steps.total, steps.total);
cleanup:
    rg_free(path);
    return rc;
}

rg_code rg_doctor_expert_ceiling(double *gb_s, const char *model, uint64_t expert_bytes,
                                 rg_status *st) {
    rg_gguf *g = NULL;
    char *path = NULL;
    int sys_errno = 0;
    rg_code rc = RG_OK;
    *gb_s = 0;
    rg_doctor_drive *drive = rg_alloc(1, sizeof *drive, st);
    if (!drive) return RG_NOMEM;
    *drive = (rg_doctor_drive){
        .expert_bytes = expert_bytes < UINT32_MAX / 2 ? (uint32_t)expert_bytes : UINT32_MAX / 2};
    RG_GO(rg_gguf_open(&g, model, st));
    RG_GO(largest_file(g, &path, st));
    RG_GO(rg_doctor_measure_expert(drive, path, rg_doctor_uring_works(&sys_errno), st));
    *gb_s = drive->expert_ceiling_gb_s;
cleanup:
    rg_gguf_close(g);
    rg_free(path);
    rg_free(drive);
    return rc;
}
