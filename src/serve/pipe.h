/* What a worker says and the HTTP thread sends: the reply to one request.
 *
 * A pipe is born with its request and dies with the last of its holders (exchange, order or job).
 *
 *   waiting --start--> started --(write)*--> ended --> read empty
 *      |                  |
 *      +----- leave ------+----> left: nobody reads any more, writes are dropped
 *
 * Lock: `lock` guards every field below it; `left` is also read without it by workers that poll it.
 * MHD's suspend and resume are called with the lock held; MHD takes no lock of ours.
 */
#ifndef RG_SERVE_PIPE_H
#define RG_SERVE_PIPE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"

#define RG_PIPE_BYTES_MAX ((size_t)64 << 20) /* unread by a slow client; then it is cut off */

typedef struct rg_pipe {
    atomic_int refs;
    atomic_bool left; /* set by watch or HTTP (release), polled by workers (acquire) */
    pthread_mutex_t lock;
    struct MHD_Connection *connection; /* NULL once the exchange is over */
    bool suspended;                    /* the connection waits for us */
    bool started, ended, broken;
    bool streams;           /* written piece by piece; else complete when it starts */
    bool closes;            /* the connection ends behind this reply */
    int status;             /* HTTP */
    const char *type;       /* content type; static */
    uint32_t retry_after_s; /* 0 = not said */
    rg_buf buf;
    size_t sent;
    uint64_t last_ns; /* of the last write: heartbeats */
    uint64_t bytes;   /* written in all */
} rg_pipe;

RG_MUST_CHECK rg_code rg_pipe_create(rg_pipe **out, struct MHD_Connection *connection,
                                     rg_status *st);
rg_pipe *rg_pipe_hold(rg_pipe *p);
void rg_pipe_drop(rg_pipe *p); /* NULL is allowed */

/* Workers. A stream starts before its first piece; a whole reply is one call. */
void rg_pipe_start_stream(rg_pipe *p, int status, const char *type);
void rg_pipe_write(rg_pipe *p, const char *data, size_t len);
void rg_pipe_end(rg_pipe *p);
void rg_pipe_reply(rg_pipe *p, int status, const char *type, const char *data, size_t len);
bool rg_pipe_left(const rg_pipe *p);
bool rg_pipe_started(rg_pipe *p);

/* HTTP and watch. */
/* Suspends the connection unless the reply has started; tells whether it did. */
bool rg_pipe_wait(rg_pipe *p);
/* Nobody reads any more. With `resume` a waiting connection is woken to notice. */
void rg_pipe_leave(rg_pipe *p, bool over);
/* A comment for a stream that was quiet for `quiet_ns`. */
void rg_pipe_beat(rg_pipe *p, uint64_t quiet_ns);
/* MHD's content reader over a pipe. */
ssize_t rg_pipe_read(void *pipe, uint64_t pos, char *to, size_t max);

#endif
