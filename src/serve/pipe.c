#include "serve/pipe.h"

#include <string.h>

rg_code rg_pipe_create(rg_pipe **out, struct MHD_Connection *connection, rg_status *st) {
    *out = NULL;
    rg_pipe *p = rg_alloc(1, sizeof *p, st);
    if (!p) return RG_NOMEM;
    atomic_init(&p->refs, 1);
    atomic_init(&p->left, false);
    if (pthread_mutex_init(&p->lock, NULL) != 0) {
        rg_free(p);
        return rg_fail(st, RG_NOMEM, "no lock for a reply");
    }
    p->connection = connection;
    rg_buf_init(&p->buf, RG_PIPE_BYTES_MAX);
    p->last_ns = rg_now_ns();
    *out = p;
    return RG_OK;
}

rg_pipe *rg_pipe_hold(rg_pipe *p) {
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    return p;
}

void rg_pipe_drop(rg_pipe *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&p->lock);
    rg_buf_deinit(&p->buf);
    rg_free(p);
}

bool rg_pipe_left(const rg_pipe *p) {
    return atomic_load_explicit(&p->left, memory_order_acquire);
}

/* With the lock. */
static void wake(rg_pipe *p) {
    if (!p->suspended || !p->connection) return;
    p->suspended = false;
    MHD_resume_connection(p->connection);
}

/* With the lock. A reply that cannot be held is cut off. */
static void append(rg_pipe *p, const char *data, size_t len) {
    if (p->sent == p->buf.len) {
        rg_buf_clear(&p->buf);
        p->sent = 0;
    }
    if (rg_buf_append(&p->buf, data, len, NULL) != RG_OK) {
        p->broken = true;
        atomic_store_explicit(&p->left, true, memory_order_release);
    }
    p->bytes += len;
    p->last_ns = rg_now_ns();
}

void rg_pipe_start_stream(rg_pipe *p, int status, const char *type) {
    pthread_mutex_lock(&p->lock);
    RG_ASSERT(!p->started);
    p->started = p->streams = true;
    p->status = status;
    p->type = type;
    p->last_ns = rg_now_ns();
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void rg_pipe_write(rg_pipe *p, const char *data, size_t len) {
    pthread_mutex_lock(&p->lock);
    if (!rg_pipe_left(p) && !p->ended) append(p, data, len);
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void rg_pipe_end(rg_pipe *p) {
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void rg_pipe_reply(rg_pipe *p, int status, const char *type, const char *data, size_t len) {
    pthread_mutex_lock(&p->lock);
    RG_ASSERT(!p->started);
    p->started = p->ended = true;
    p->status = status;
    p->type = type;
    append(p, data, len);
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

bool rg_pipe_started(rg_pipe *p) {
    pthread_mutex_lock(&p->lock);
    const bool started = p->started;
    pthread_mutex_unlock(&p->lock);
    return started;
}

bool rg_pipe_wait(rg_pipe *p) {
    pthread_mutex_lock(&p->lock);
    const bool wait = !p->started && !rg_pipe_left(p);
    if (wait) {
        MHD_suspend_connection(p->connection);
        p->suspended = true;
    }
    pthread_mutex_unlock(&p->lock);
    return wait;
}

void rg_pipe_leave(rg_pipe *p, bool over) {
    pthread_mutex_lock(&p->lock);
    atomic_store_explicit(&p->left, true, memory_order_release);
    wake(p);
    if (over) p->connection = NULL;
    pthread_mutex_unlock(&p->lock);
}

void rg_pipe_beat(rg_pipe *p, uint64_t quiet_ns) {
    static const char comment[] = ": still here\n\n";
    pthread_mutex_lock(&p->lock);
    if (p->started && p->streams && !p->ended && !rg_pipe_left(p) && p->sent == p->buf.len &&
        rg_now_ns() - p->last_ns >= quiet_ns) {
        append(p, comment, sizeof comment - 1);
        wake(p);
    }
    pthread_mutex_unlock(&p->lock);
}

ssize_t rg_pipe_read(void *pipe, uint64_t pos, char *to, size_t max) {
    rg_pipe *p = pipe;
    (void)pos;
    ssize_t got = 0;
    pthread_mutex_lock(&p->lock);
    const size_t rest = p->buf.len - p->sent;
    if (rg_pipe_left(p) && !(p->ended && rest)) {
        got = p->ended ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (rest) {
        const size_t n = rest < max ? rest : max;
        memcpy(to, p->buf.data + p->sent, n);
        p->sent += n;
        got = (ssize_t)n;
    } else if (p->ended) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        MHD_suspend_connection(p->connection);
        p->suspended = true;
    }
    pthread_mutex_unlock(&p->lock);
    return got;
}
