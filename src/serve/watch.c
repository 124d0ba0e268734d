/* watch: learns that clients have left, and keeps quiet streams alive.
 *
 * libmicrohttpd tells a suspended connection's end only once it is resumed; a poll on its socket
 * sees the hang-up at once. A client that closes its sending half counts as gone too.
 *
 * A socket is polled without the lock, so its number may name another connection by then: what poll
 * said is used only if the entry still holds the same pipe. The poller holds the pipes that it asks
 * for: one that was freed meanwhile could come back at the same address, as the next client's.
 */
#include <poll.h>
#include <string.h>

#include "serve/server.h"

#define ROUND_MS 20

void rg_watch_add(rg_server *s, int fd, rg_pipe *pipe) {
    pthread_mutex_lock(&s->watch_lock);
    if (s->n_watched < RG_CONNECTIONS_MAX) {
        s->watched[s->n_watched++] = (rg_watched){fd, rg_pipe_hold(pipe)};
    }
    pthread_mutex_unlock(&s->watch_lock);
}

/* With the lock. */
static void remove_at(rg_server *s, size_t i) {
    rg_pipe_drop(s->watched[i].pipe);
    s->watched[i] = s->watched[--s->n_watched];
}

void rg_watch_remove(rg_server *s, const rg_pipe *pipe) {
    pthread_mutex_lock(&s->watch_lock);
    for (size_t i = 0; i < s->n_watched; i++) {
        if (s->watched[i].pipe != pipe) continue;
        remove_at(s, i);
        break;
    }
    pthread_mutex_unlock(&s->watch_lock);
}

/* Marks the pipe of a socket that hung up, unless the socket means another one by now. The entry
 * goes: poll would tell it again and again. */
static void notice(rg_server *s, int fd, const rg_pipe *pipe) {
    pthread_mutex_lock(&s->watch_lock);
    for (size_t i = 0; i < s->n_watched; i++) {
        if (s->watched[i].pipe != pipe || s->watched[i].fd != fd) continue;
        rg_pipe_leave(s->watched[i].pipe, false);
        remove_at(s, i);
        break;
    }
    pthread_mutex_unlock(&s->watch_lock);
}

static void *watch(void *server) {
    rg_server *s = server;
    struct pollfd fds[RG_CONNECTIONS_MAX];
    rg_pipe *pipes[RG_CONNECTIONS_MAX];
    const uint64_t quiet_ns = (uint64_t)s->opt.heartbeat_s * 1000000000u;
    while (atomic_load(&s->stops) >= 0) {
        pthread_mutex_lock(&s->watch_lock);
        const size_t n = s->n_watched;
        for (size_t i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = s->watched[i].fd, .events = POLLRDHUP};
            pipes[i] = rg_pipe_hold(s->watched[i].pipe);
            rg_pipe_beat(s->watched[i].pipe, quiet_ns);
        }
        pthread_mutex_unlock(&s->watch_lock);
        const int got = poll(fds, n, ROUND_MS);
        for (size_t i = 0; i < n; i++) {
            const bool hung_up = got > 0 && (fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
            if (hung_up) notice(s, fds[i].fd, pipes[i]);
            rg_pipe_drop(pipes[i]);
        }
    }
    return NULL;
}

rg_code rg_watch_start(rg_server *s, rg_status *st) {
    const int e = pthread_create(&s->watch, NULL, watch, s);
    if (e) return rg_fail_errno(st, RG_NOMEM, e, "cannot start a thread");
    s->has_watch = true;
    return RG_OK;
}

void rg_watch_stop(rg_server *s) {
    if (!s->has_watch) return;
    atomic_store(&s->stops, INT32_MIN);
    pthread_join(s->watch, NULL);
    s->has_watch = false;
    while (s->n_watched)
        remove_at(s, 0);
}
