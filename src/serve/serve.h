/* serve: one engine behind HTTP. OpenAI and Anthropic dialects, server-sent events, a queue of jobs
 * and the turns they take on the engine, a web page. Knows no tensor: it sees include/regolith.h.
 *
 * Threads (each struct's comment says which of them may touch it):
 *   HTTP     libmicrohttpd's own; owns sockets and exchanges, never waits for anything
 *   prepare  parses bodies, renders and tokenises prompts, so that HTTP never does
 *   watch    learns that a client has left, and beats the heart of quiet streams
 *   engine   the caller of rg_server_run; owns the engine and all sessions
 * They meet at bounded queues (order.h) and at pipes (pipe.h).
 */
#ifndef RG_SERVE_H
#define RG_SERVE_H

#include "base/base.h"

#define RG_SERVE_SESSIONS_MAX RG_BATCH_MAX

typedef struct rg_server rg_server;

/* Zeroed = defaults, but for `sampling`. Strings are borrowed for the life of the server. */
typedef struct rg_serve_options {
    const char *host;    /* NULL = 127.0.0.1 */
    uint16_t port;       /* 0 = any free one */
    const char *api_key; /* NULL = none; then only a loopback host is allowed, but for `insecure` */
    bool insecure;
    const char
        *cors_origin;       /* the one foreign origin pages may come from; "*" = any; NULL = none */
    const char *model_name; /* what clients see */
    uint32_t n_session;     /* at once; 0 = 1 */
    uint32_t queue_max;     /* jobs that wait; 0 = 64 */
    uint32_t n_ctx;         /* of a session; 0 = the plan's */
    rg_kv_type kv;
    rg_draft_mode draft; /* guesses of every session, as rg_session_options has them */
    uint32_t draft_max;
    bool draft_fixed;
    float moce; /* cache-aware routing of replies that do not ask for another; 0 = off */
    uint32_t moce_slots;
    uint64_t
        snapshot_bytes;    /* for states of earlier lengths; 0 = none but the sessions themselves */
    const char *cache_dir; /* prefixes are kept there over restarts; NULL = no */
    uint64_t cache_bytes;  /* quota of the folder; 0 = 4 GiB */
    uint32_t grace_s;      /* what running replies get after a stop; 0 = 10 */
    uint32_t heartbeat_s;  /* of quiet streams; 0 = 10 */
    uint32_t time_limit_s; /* of one reply, waiting included; 0 = none */
    bool no_think;         /* unless a request asks for it */
    double drive_ceiling_gb_s; /* best rate of the drive at the size of an expert; 0 = not known */
    rg_sampling_params sampling; /* where a request says nothing */
} rg_serve_options;

/* Takes the sessions and listens. The engine is borrowed. */
RG_MUST_CHECK rg_code rg_server_create(rg_server **out, rg_engine *engine,
                                       const rg_serve_options *opt, rg_status *st);
uint16_t rg_server_port(const rg_server *server);
/* Serves until rg_server_stop, then lets running replies end, for grace_s at most. */
void rg_server_run(rg_server *server);
/* From any thread and from a signal handler. A second call cuts running replies off. */
void rg_server_stop(rg_server *server);
void rg_server_destroy(rg_server *server); /* NULL is allowed */

#endif
