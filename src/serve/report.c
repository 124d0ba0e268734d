/* Bodies of GET requests: what the server is, how it is, what it has done. */
#include <string.h>
#include <time.h>

#include "serve/server.h"

rg_code rg_status_health(rg_server *s, rg_buf *out, rg_status *st) {
    pthread_mutex_lock(&s->live_lock);
    const uint32_t active = s->live.n_active, queued = s->live.n_queued;
    pthread_mutex_unlock(&s->live_lock);
    return rg_buf_printf(out, st, "{\"status\":\"%s\",\"active\":%u,\"queued\":%u}",
                         atomic_load(&s->closing) ? "ending" : "ok", active, queued);
}

/* There is one model, whatever name it is asked by. */
rg_code rg_status_model(rg_server *s, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "{\"id\":", st));
    RG_TRY(rg_put_string(out, s->model_name, strlen(s->model_name), st));
    return rg_buf_printf(out, st,
                         ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"regolith\","
                         "\"type\":\"model\",\"display_name\":\"regolith\",\"context_length\":%u}",
                         (long long)time(NULL), s->opt.n_ctx);
}

rg_code rg_status_models(rg_server *s, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_puts(out, "{\"object\":\"list\",\"data\":[", st));
    RG_TRY(rg_status_model(s, out, st));
    return rg_buf_puts(out, "],\"has_more\":false}", st);
}

rg_code rg_status_props(rg_server *s, rg_buf *out, rg_status *st) {
    const rg_engine_info *i = &s->info;
    static const char *const drafts[] = {"off", "mtp", "suffix", "auto"};
    const rg_sampling_params *p = &s->opt.sampling;
    RG_TRY(rg_buf_puts(out, "{\"model\":", st));
    RG_TRY(rg_put_string(out, s->model_name, strlen(s->model_name), st));
    return rg_buf_printf(
        out, st,
        ",\"arch\":\"%s\",\"n_ctx\":%u,\"n_ctx_train\":%u,\"n_vocab\":%u,\"n_layer\":%u,"
        "\"n_expert\":%u,\"n_expert_used\":%u,\"parameters\":%llu,\"file_bytes\":%llu,"
        "\"sessions\":%u,\"queue_max\":%u,\"chunk\":%u,\"threads\":%d,\"cpu_level\":\"%s\","
        "\"io_backend\":\"%s\",\"weight_bytes\":%llu,\"scratch_bytes\":%llu,\"arena_bytes\":%llu,"
        "\"budget_bytes\":%llu,\"snapshot_bytes\":%llu,\"needs_key\":%s,\"thinking\":%s,"
        "\"draft\":\"%s\",\"draft_max\":%u,\"moce\":%.9g,"
        "\"sampling\":{\"temperature\":%g,\"top_p\":%g,\"top_k\":%d,\"min_p\":%g}}",
        i->arch, s->opt.n_ctx, i->n_ctx_train, i->n_vocab, i->n_layer, i->n_expert,
        i->n_expert_used, (unsigned long long)i->n_weight, (unsigned long long)i->file_bytes,
        s->opt.n_session, s->opt.queue_max, i->chunk, i->n_threads, i->cpu_level, i->io_backend,
        (unsigned long long)i->weight_bytes, (unsigned long long)i->scratch_bytes,
        (unsigned long long)i->arena_bytes, (unsigned long long)i->budget_bytes,
        (unsigned long long)s->opt.snapshot_bytes, s->opt.api_key ? "true" : "false",
        s->opt.no_think ? "false" : "true", drafts[s->opt.draft], s->opt.draft_max,
        (double)s->opt.moce, (double)p->temperature, (double)p->top_p, p->top_k, (double)p->min_p);
}

/* ---- meters --------------------------------------------------------------------------------- */

typedef struct meter {
    const char *name; /* "regolith_" in front */
    const char *type;
    double value;
} meter;

#define METERS_MAX 64u

static size_t collect(const rg_server *s, meter m[METERS_MAX]) {
    const rg_live *l = &s->live;
    const rg_engine_meters *e = &l->meters;
    const meter all[] = {
        {"requests_done_total", "counter", (double)l->jobs_done},
        {"requests_failed_total", "counter", (double)l->jobs_failed},
        {"requests_left_total", "counter", (double)l->jobs_left},
        {"requests_active", "gauge", l->n_active},
        {"requests_queued", "gauge", l->n_queued},
        {"prompt_tokens_total", "counter", (double)l->prompt_tokens},
        {"prompt_tokens_cached_total", "counter", (double)l->cached_tokens},
        {"generated_tokens_total", "counter", (double)l->made_tokens},
        {"windows_total", "counter", (double)l->windows},
        {"window_rows_total", "counter", (double)l->window_rows},
        {"decode_tok_s", "gauge", l->decode_tok_s},
        {"prefill_tok_s", "gauge", l->prefill_tok_s},
        {"snapshots", "gauge", (double)l->snapshots},
        {"snapshot_bytes", "gauge", (double)l->snapshot_bytes},
        {"disk_hits_total", "counter", (double)l->disk_hits},
        {"disk_writes_total", "counter", (double)l->disk_writes},
        {"hits_total", "counter", (double)e->hits},
        {"misses_total", "counter", (double)e->misses},
        {"late_total", "counter", (double)e->late},
        {"readahead_useful_total", "counter", (double)e->readahead_useful},
        {"readahead_wasted_total", "counter", (double)e->readahead_wasted},
        {"read_bytes_total", "counter", (double)e->read_bytes},
        {"drive_gb_s", "gauge", e->drive_gb_s},
        {"drive_ceiling_gb_s", "gauge", s->opt.drive_ceiling_gb_s},
        {"drive_ms_total", "counter", e->drive_ms},
        {"total_ms", "counter", e->total_ms},
        {"compute_ms", "counter", e->compute_ms},
        {"wait_ms", "counter", e->wait_ms},
        {"handshake_ms", "counter", e->handshake_ms},
        {"host_ms", "counter", e->host_ms},
        {"read_errors_total", "counter", (double)e->read_errors},
        {"retries_total", "counter", (double)e->retries},
        {"evictions_total", "counter", (double)e->evictions},
        {"arena_bytes", "gauge", (double)l->info.arena_bytes},
        {"arena_peak_bytes", "gauge", (double)e->arena_peak_bytes},
        {"rss_peak_bytes", "gauge", (double)e->rss_peak_bytes},
        {"draft_offered_total", "counter", (double)e->draft_offered},
        {"draft_accepted_total", "counter", (double)e->draft_accepted},
        {"logit_rows_whole_total", "counter", (double)e->logit_rows_whole},
        {"logit_rows_best_total", "counter", (double)e->logit_rows_best},
        {"uptime_s", "gauge", (double)(rg_now_ns() - s->begin_ns) * 1e-9},
    };
    _Static_assert(RG_ARRAY_LEN(all) <= METERS_MAX, "meters fit");
    memcpy(m, all, sizeof all);
    return RG_ARRAY_LEN(all);
}

rg_code rg_status_metrics(rg_server *s, rg_buf *out, rg_status *st) {
    meter m[METERS_MAX];
    pthread_mutex_lock(&s->live_lock);
    const size_t n = collect(s, m);
    pthread_mutex_unlock(&s->live_lock);
    for (size_t i = 0; i < n; i++) {
        RG_TRY(rg_buf_printf(out, st, "# TYPE regolith_%s %s\nregolith_%s %.17g\n", m[i].name,
                             m[i].type, m[i].name, m[i].value));
    }
    return RG_OK;
}

/* ---- live ----------------------------------------------------------------------------------- */

/* One letter an expert: '.' absent, 'o' in memory, 'a'..'j' used since the last look (a, once in
 * memory and now gone, up to j), 'A'..'J' used and in memory. */
static rg_code put_map(rg_live *l, rg_buf *out, rg_status *st) {
    for (size_t i = 0; i < l->n_experts; i++) {
        const uint32_t used = l->uses[i] - l->before[i];
        const uint32_t level = used > 9 ? 9 : used;
        char c = l->resident[i] ? 'o' : '.';
        if (used) c = (char)((l->resident[i] ? 'A' : 'a') + (int)level);
        l->before[i] = l->uses[i];
        RG_TRY(rg_buf_append(out, &c, 1, st));
    }
    return RG_OK;
}

rg_code rg_status_live(rg_server *s, rg_buf *out, rg_status *st) {
    meter m[METERS_MAX];
    pthread_mutex_lock(&s->live_lock);
    const size_t n = collect(s, m);
    rg_code rc = rg_buf_puts(out, "{", st);
    for (size_t i = 0; i < n && rc == RG_OK; i++)
        rc = rg_buf_printf(out, st, "\"%s\":%.17g,", m[i].name, m[i].value);
    const uint32_t per_layer = s->info.n_expert;
    if (rc == RG_OK) rc = rg_buf_printf(out, st, "\"n_expert\":%u,\"experts\":\"", per_layer);
    if (rc == RG_OK) rc = put_map(&s->live, out, st);
    pthread_mutex_unlock(&s->live_lock);
    return rc == RG_OK ? rg_buf_puts(out, "\"}", st) : rc;
}
