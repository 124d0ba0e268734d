/* The server as a whole: its parts made, run and taken down in order. */
#include "serve/serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "serve/guard.h"
#include "serve/server.h"

#define QUEUE_DEFAULT     64u
#define GRACE_DEFAULT     10u
#define HEARTBEAT_DEFAULT 10u
#define CACHE_DEFAULT     ((uint64_t)4 << 30)
#define SEND_WAIT_NS      2000000000u
#define IDLE_WAIT_NS      50000000 /* a stop from a signal handler is seen within this */

static rg_code fill_defaults(rg_server *s, rg_status *st) {
    rg_serve_options *o = &s->opt;
    if (!o->host) o->host = "127.0.0.1";
    if (!o->n_session) o->n_session = 1;
    if (!o->queue_max) o->queue_max = QUEUE_DEFAULT;
    if (!o->grace_s) o->grace_s = GRACE_DEFAULT;
    if (!o->heartbeat_s) o->heartbeat_s = HEARTBEAT_DEFAULT;
    if (!o->cache_bytes) o->cache_bytes = CACHE_DEFAULT;
    snprintf(s->model_name, sizeof s->model_name, "%s", o->model_name ? o->model_name : "regolith");
    if (o->n_session > RG_SERVE_SESSIONS_MAX) {
        return rg_fail(st, RG_INVALID, "%u sessions are wanted, %d are possible", o->n_session,
                       RG_SERVE_SESSIONS_MAX);
    }
    if (!rg_guard_is_loopback(o->host) && !o->api_key && !o->insecure) {
        return rg_fail(st, RG_INVALID,
                       "%.100s can be reached by others: give --api-key KEY, or --insecure",
                       o->host);
    }
    return RG_OK;
}

static rg_code init_locks(rg_server *s, rg_status *st) {
    pthread_mutex_t *const locks[] = {&s->order_lock, &s->job_lock, &s->watch_lock, &s->live_lock};
    for (size_t i = 0; i < RG_ARRAY_LEN(locks); i++) {
        if (pthread_mutex_init(locks[i], NULL) != 0) return rg_fail(st, RG_NOMEM, "no lock");
    }
    if (pthread_cond_init(&s->order_came, NULL) != 0 ||
        pthread_cond_init(&s->job_came, NULL) != 0) {
        return rg_fail(st, RG_NOMEM, "no condition");
    }
    return RG_OK;
}

static rg_code take_live(rg_server *s, rg_status *st) {
    rg_live *l = &s->live;
    l->info = s->info;
    l->n_experts = rg_engine_get_experts(s->engine, NULL, NULL, 0);
    l->resident = rg_alloc(l->n_experts + 1, 1, st);
    l->uses = rg_alloc(l->n_experts + 1, sizeof *l->uses, st);
    l->before = rg_alloc(l->n_experts + 1, sizeof *l->before, st);
    return l->resident && l->uses && l->before ? RG_OK : RG_NOMEM;
}

/* Signals are for the caller's thread: the server's threads block them all. */
static rg_code start_threads(rg_server *s, rg_status *st) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rg_code rc = rg_watch_start(s, st);
    if (rc == RG_OK) rc = rg_prepare_start(s, st);
    if (rc == RG_OK) rc = rg_http_start(s, st);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

rg_code rg_server_create(rg_server **out, rg_engine *engine, const rg_serve_options *opt,
                         rg_status *st) {
    *out = NULL;
    rg_code rc = RG_OK;
    rg_server *s = rg_alloc(1, sizeof *s, st);
    if (!s) return RG_NOMEM;
    s->engine = engine;
    s->opt = *opt;
    s->begin_ns = rg_now_ns();
    rg_engine_get_info(engine, &s->info);
    RG_GO(init_locks(s, st));
    RG_GO(fill_defaults(s, st));
    RG_GO(rg_lexicon_init(&s->lexicon, rg_engine_vocab(engine), st));
    RG_GO(take_live(s, st));
    RG_GO(rg_turns_create(&s->turns, s, st));
    RG_GO(start_threads(s, st));
    *out = s;
    return RG_OK;
cleanup:
    rg_server_destroy(s);
    return rc;
}

uint16_t rg_server_port(const rg_server *s) {
    return s->port;
}

void rg_server_stop(rg_server *s) {
    if (atomic_load(&s->stops) >= 0) atomic_fetch_add(&s->stops, 1);
}

static void wait_for_jobs(rg_server *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += IDLE_WAIT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->job_lock);
    if (!s->jobs) pthread_cond_timedwait(&s->job_came, &s->job_lock, &until);
    pthread_mutex_unlock(&s->job_lock);
}

/* Replies that are complete still lie in pipes: a request is watched until it is answered. */
static void wait_until_sent(rg_server *s) {
    const uint64_t end = rg_now_ns() + SEND_WAIT_NS;
    size_t n = 1;
    while (n && rg_now_ns() < end) {
        pthread_mutex_lock(&s->watch_lock);
        n = s->n_watched;
        pthread_mutex_unlock(&s->watch_lock);
        if (n) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

void rg_server_run(rg_server *s) {
    while (atomic_load(&s->stops) == 0) {
        if (!rg_turns_round(s->turns, false)) wait_for_jobs(s);
    }
    atomic_store(&s->closing, true);
    const uint64_t end = rg_now_ns() + (uint64_t)s->opt.grace_s * 1000000000u;
    while (!rg_turns_idle(s->turns)) {
        rg_turns_round(s->turns, rg_now_ns() >= end || atomic_load(&s->stops) > 1);
    }
    rg_prepare_stop(s);
    while (!rg_turns_idle(s->turns)) /* what was prepared in the meantime */
        rg_turns_round(s->turns, true);
    wait_until_sent(s);
}

void rg_server_destroy(rg_server *s) {
    if (!s) return;
    atomic_store(&s->closing, true);
    rg_prepare_stop(s);
    /* libmicrohttpd must not end while a connection is suspended: all are answered first. */
    while (s->jobs) {
        rg_job *next = s->jobs->next;
        rg_job_fail(s->jobs, 503, "the server is ending");
        rg_job_destroy(s->jobs);
        s->jobs = next;
    }
    rg_http_stop(s);
    rg_watch_stop(s);
    rg_turns_destroy(s->turns);
    rg_lexicon_deinit(&s->lexicon);
    rg_free(s->live.resident);
    rg_free(s->live.uses);
    rg_free(s->live.before);
    pthread_mutex_destroy(&s->order_lock);
    pthread_mutex_destroy(&s->job_lock);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_mutex_destroy(&s->live_lock);
    pthread_cond_destroy(&s->order_came);
    pthread_cond_destroy(&s->job_came);
    rg_free(s);
}
