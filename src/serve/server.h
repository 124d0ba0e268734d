/* The server's parts and who may touch them. Private to the room. */
#ifndef RG_SERVE_SERVER_H
#define RG_SERVE_SERVER_H

#include "serve/job.h"

#define RG_CONNECTIONS_MAX 256u
#define RG_ORDERS_MAX      256u /* requests waiting to be prepared */

/* What a request wants of the prepare thread. */
typedef enum rg_order_kind {
    RG_ORDER_CHAT,
    RG_ORDER_TEXT,
    RG_ORDER_RESPONSES,
    RG_ORDER_MESSAGES,
    RG_ORDER_COUNT,
    RG_ORDER_TOKENIZE,
    RG_ORDER_DETOKENIZE
} rg_order_kind;

typedef struct rg_order {
    struct rg_order *next;
    rg_order_kind kind;
    rg_pipe *pipe;
    rg_buf body;
} rg_order;

/* A connection whose client is waited upon. */
typedef struct rg_watched {
    int fd;
    rg_pipe *pipe; /* held */
} rg_watched;

/* What the engine thread lets others see. */
typedef struct rg_live {
    rg_engine_meters meters;
    rg_engine_info info;
    uint8_t *resident;       /* [n_experts] */
    uint32_t *uses, *before; /* [n_experts] now, and when shown last */
    size_t n_experts;
    uint32_t n_active, n_prefill, n_queued;
    uint64_t prompt_tokens, cached_tokens, made_tokens, jobs_done, jobs_failed, jobs_left;
    uint64_t windows, window_rows;
    double decode_tok_s, prefill_tok_s; /* of the last seconds */
    uint64_t snapshots, snapshot_bytes, disk_hits, disk_writes;
} rg_live;

typedef struct rg_turns rg_turns;

struct rg_server {
    rg_engine *engine; /* text functions: any thread; the rest: engine thread */
    rg_serve_options opt;
    char model_name[128];
    rg_lexicon lexicon;  /* immutable */
    rg_engine_info info; /* immutable */
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_t prepare, watch;
    bool has_prepare, has_watch;
    atomic_int stops;    /* times rg_server_stop was called */
    atomic_bool closing; /* no new work */

    pthread_mutex_t order_lock; /* orders, last_order, n_orders */
    pthread_cond_t order_came;
    rg_order *orders, *last_order;
    size_t n_orders;

    pthread_mutex_t job_lock; /* jobs, last_job, n_jobs */
    pthread_cond_t job_came;
    rg_job *jobs, *last_job;
    size_t n_jobs;

    pthread_mutex_t watch_lock; /* watched, n_watched */
    rg_watched watched[RG_CONNECTIONS_MAX];
    size_t n_watched;

    pthread_mutex_t live_lock; /* live */
    rg_live live;

    rg_turns *turns; /* engine thread */
    uint64_t begin_ns;
};

/* http.c */
RG_MUST_CHECK rg_code rg_http_start(rg_server *s, rg_status *st);
void rg_http_stop(rg_server *s);
/* watch.c */
RG_MUST_CHECK rg_code rg_watch_start(rg_server *s, rg_status *st);
void rg_watch_stop(rg_server *s);
void rg_watch_add(rg_server *s, int fd, rg_pipe *pipe);
void rg_watch_remove(rg_server *s, const rg_pipe *pipe);
/* prepare.c */
RG_MUST_CHECK rg_code rg_prepare_start(rg_server *s, rg_status *st);
void rg_prepare_stop(rg_server *s);
/* Takes the body over. BUSY when too many wait; the order is dropped then. */
RG_MUST_CHECK rg_code rg_prepare_add(rg_server *s, rg_order_kind kind, rg_pipe *pipe, rg_buf *body,
                                     rg_status *st);
/* Answers with an error in a dialect's form (NULL: OpenAI's). */
void rg_refuse(rg_pipe *pipe, const rg_dialect *dialect, int http, const char *message);
int rg_http_status(rg_code code);
/* turns.c */
RG_MUST_CHECK rg_code rg_turns_create(rg_turns **out, rg_server *s, rg_status *st);
void rg_turns_destroy(rg_turns *t);
/* One round: takes jobs in, runs a window, gives what came of it. False when there was nothing to
 * do. `cut`: ends all replies. */
bool rg_turns_round(rg_turns *t, bool cut);
bool rg_turns_idle(const rg_turns *t);
/* report.c: bodies of GET requests. */
RG_MUST_CHECK rg_code rg_status_models(rg_server *s, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_status_model(rg_server *s, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_status_health(rg_server *s, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_status_props(rg_server *s, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_status_metrics(rg_server *s, rg_buf *out, rg_status *st);
RG_MUST_CHECK rg_code rg_status_live(rg_server *s, rg_buf *out, rg_status *st);

#endif
