/* HTTP: libmicrohttpd's side. It checks who asks, collects bodies, and sends what pipes hold.
 *
 * Life of an exchange (all edges on the HTTP thread, but `start`, which a worker does):
 *
 *   open: first call      -> refused at once (rights, path, length)    -> completed
 *   body: data calls      -> too long: the rest is thrown away         -> 413
 *   dispatch: last call   -> answered at once (GET)                    -> completed
 *                         -> ordered, suspended --start--> replying    -> completed
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "serve/guard.h"
#include "serve/page.h"
#include "serve/server.h"

#define HEADER_BYTES_MAX ((size_t)48 << 10)
#define IDLE_SECONDS     60u
#define BLOCK_BYTES      ((size_t)16 << 10)
#define DISCARD_MAX      (2 * RG_BODY_BYTES_MAX)

static const char JSON_TYPE[] = "application/json";

typedef rg_code status_fn(rg_server *s, rg_buf *out, rg_status *st);

typedef struct route {
    const char *method, *path;
    status_fn *status; /* answered at once; NULL: an order, the page, or refused */
    int order;         /* rg_order_kind, or -1 */
    bool open;         /* needs no key */
    const char *type;
} route;

static const route routes[] = {
    {"POST", "/v1/chat/completions", NULL, RG_ORDER_CHAT, false, NULL},
    {"POST", "/v1/completions", NULL, RG_ORDER_TEXT, false, NULL},
    {"POST", "/v1/responses", NULL, RG_ORDER_RESPONSES, false, NULL},
    {"POST", "/v1/messages", NULL, RG_ORDER_MESSAGES, false, NULL},
    {"POST", "/v1/messages/count_tokens", NULL, RG_ORDER_COUNT, false, NULL},
    {"POST", "/tokenize", NULL, RG_ORDER_TOKENIZE, false, NULL},
    {"POST", "/detokenize", NULL, RG_ORDER_DETOKENIZE, false, NULL},
    {"GET", "/v1/models", rg_status_models, -1, false, JSON_TYPE},
    {"GET", "/v1/models/", rg_status_model, -1, false, JSON_TYPE}, /* and a name behind it */
    {"GET", "/health", rg_status_health, -1, true, JSON_TYPE},
    {"GET", "/props", rg_status_props, -1, false, JSON_TYPE},
    {"GET", "/metrics", rg_status_metrics, -1, false, "text/plain; version=0.0.4"},
    {"GET", "/live", rg_status_live, -1, false, JSON_TYPE},
    {"GET", "/", NULL, -1, true, NULL},
    {"POST", "/v1/embeddings", NULL, -1, false, NULL},
};

typedef struct exchange {
    rg_server *server;
    const route *route;
    rg_pipe *pipe;
    rg_buf body;
    size_t thrown; /* bytes over the limit */
    bool dispatched;
} exchange;

/* ---- answering ------------------------------------------------------------------------------ */

static void add_cors(const rg_server *s, struct MHD_Connection *c, struct MHD_Response *r) {
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    if (!s->opt.cors_origin || !origin) return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(r, "Vary", "Origin");
    MHD_add_response_header(r, "Access-Control-Allow-Headers",
                            "authorization, content-type, x-api-key, anthropic-version, "
                            "anthropic-beta, anthropic-dangerous-direct-browser-access");
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
}

static enum MHD_Result send_response(const rg_server *s, struct MHD_Connection *c, int status,
                                     const char *type, struct MHD_Response *r) {
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    add_cors(s, c, r);
    const enum MHD_Result sent = MHD_queue_response(c, (unsigned)status, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result send_text(const rg_server *s, struct MHD_Connection *c, int status,
                                 const char *type, const rg_buf *b) {
    void *text = (void *)(uintptr_t)(b->data ? b->data : "");
    return send_response(s, c, status, type,
                         MHD_create_response_from_buffer(b->len, text, MHD_RESPMEM_MUST_COPY));
}

static const rg_dialect *dialect_of(const char *path) {
    return strncmp(path, "/v1/messages", 12) == 0 ? &rg_dialect_messages : &rg_dialect_chat;
}

static enum MHD_Result send_error(const rg_server *s, struct MHD_Connection *c, const char *path,
                                  int status, const char *message) {
    rg_buf b;
    rg_buf_init(&b, 0);
    enum MHD_Result sent = MHD_NO;
    if (dialect_of(path)->error(status, message, false, &b, NULL) == RG_OK) {
        sent = send_text(s, c, status, JSON_TYPE, &b);
    }
    rg_buf_deinit(&b);
    return sent;
}

static enum MHD_Result send_page(const rg_server *s, struct MHD_Connection *c) {
    void *page = (void *)(uintptr_t)rg_page;
    struct MHD_Response *r =
        MHD_create_response_from_buffer(rg_page_bytes, page, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; script-src 'unsafe-inline'; style-src "
                            "'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                            "form-action 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    return send_response(s, c, 200, "text/html; charset=utf-8", r);
}

/* ---- the first call ------------------------------------------------------------------------- */

static const char *header(struct MHD_Connection *c, const char *name) {
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static const route *find_route(const char *method, const char *path, bool *path_known) {
    *path_known = false;
    const bool head = strcmp(method, "HEAD") == 0;
    for (size_t i = 0; i < RG_ARRAY_LEN(routes); i++) {
        const size_t len = strlen(routes[i].path);
        const bool prefix = len > 1 && routes[i].path[len - 1] == '/';
        const int apart =
            prefix ? strncmp(routes[i].path, path, len) : strcmp(routes[i].path, path);
        if (apart != 0) continue;
        *path_known = true;
        if (strcmp(routes[i].method, head ? "GET" : method) == 0) return &routes[i];
    }
    return NULL;
}

/* Why the request is refused: an HTTP status and a message; 0: it is not. */
static int check_rights(const rg_server *s, struct MHD_Connection *c, const route *r,
                        const char **message) {
    const char *host = header(c, "Host"), *origin = header(c, "Origin");
    if (!rg_guard_host_ok(host, s->opt.host)) {
        *message = "the Host header names another machine";
        return 403;
    }
    if (!rg_guard_origin_ok(origin, host, s->opt.cors_origin)) {
        *message = "pages of this origin may not ask (see --cors)";
        return 403;
    }
    if (r && !r->open &&
        !rg_guard_key_ok(header(c, "Authorization"), header(c, "x-api-key"), s->opt.api_key)) {
        *message = "a valid API key is needed (Authorization: Bearer KEY)";
        return 401;
    }
    return 0;
}

static enum MHD_Result answer_options(const rg_server *s, struct MHD_Connection *c,
                                      const char *path) {
    if (!s->opt.cors_origin) return send_error(s, c, path, 405, "OPTIONS is not answered here");
    const rg_buf nothing = {0};
    return send_text(s, c, 204, JSON_TYPE, &nothing);
}

static enum MHD_Result refuse_first(const rg_server *s, struct MHD_Connection *c, const char *path,
                                    const char *method, const route *r, bool known, bool *refused) {
    const char *message = NULL;
    *refused = true;
    const int status = check_rights(s, c, r, &message);
    if (status) return send_error(s, c, path, status, message);
    if (strcmp(method, "OPTIONS") == 0) return answer_options(s, c, path);
    if (!r) {
        return send_error(s, c, path, known ? 405 : 404,
                          known ? "the method is not possible here" : "there is nothing here");
    }
    const char *length = header(c, "Content-Length");
    if (length && strtoull(length, NULL, 10) > RG_BODY_BYTES_MAX) {
        return send_error(s, c, path, 413, "the body is larger than 32 MiB");
    }
    *refused = false;
    return MHD_YES;
}

static enum MHD_Result open_exchange(rg_server *s, struct MHD_Connection *c, const route *r,
                                     void **state) {
    exchange *x = rg_alloc(1, sizeof *x, NULL);
    if (!x) return MHD_NO;
    x->server = s;
    x->route = r;
    rg_buf_init(&x->body, RG_BODY_BYTES_MAX);
    if (r->order >= 0 && rg_pipe_create(&x->pipe, c, NULL) != RG_OK) {
        rg_free(x);
        return MHD_NO;
    }
    *state = x;
    return MHD_YES;
}

/* ---- dispatch ------------------------------------------------------------------------------- */

static enum MHD_Result answer_now(exchange *x, struct MHD_Connection *c) {
    rg_server *s = x->server;
    const route *r = x->route;
    if (strcmp(r->path, "/") == 0) return send_page(s, c);
    if (!r->status) {
        return send_error(s, c, r->path, 501,
                          "this model gives no embeddings: it was trained to continue text");
    }
    rg_buf b;
    rg_buf_init(&b, 0);
    rg_status st = {0};
    enum MHD_Result sent = MHD_NO;
    if (r->status(s, &b, &st) == RG_OK) {
        sent = send_text(s, c, 200, r->type, &b);
    } else {
        sent = send_error(s, c, r->path, 500, st.message);
    }
    rg_buf_deinit(&b);
    return sent;
}

static void give_order(exchange *x, struct MHD_Connection *c) {
    rg_server *s = x->server;
    rg_status st = {0};
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    x->dispatched = true;
    if (info) rg_watch_add(s, (int)info->connect_fd, x->pipe);
    if (rg_prepare_add(s, (rg_order_kind)x->route->order, x->pipe, &x->body, &st) != RG_OK) {
        rg_refuse(x->pipe, dialect_of(x->route->path), rg_http_status(st.code), st.message);
    }
}

static void drop_pipe(void *pipe) {
    rg_pipe_drop(pipe);
}

static enum MHD_Result send_pipe(exchange *x, struct MHD_Connection *c) {
    rg_pipe *p = x->pipe;
    if (rg_pipe_wait(p)) return MHD_YES;
    if (!rg_pipe_started(p)) return MHD_NO; /* the client left */
    const uint64_t bytes = p->streams ? MHD_SIZE_UNKNOWN : p->bytes;
    struct MHD_Response *r = MHD_create_response_from_callback(bytes, BLOCK_BYTES, rg_pipe_read,
                                                               rg_pipe_hold(p), drop_pipe);
    if (!r) {
        rg_pipe_drop(p);
        return MHD_NO;
    }
    if (p->retry_after_s) {
        char text[16];
        snprintf(text, sizeof text, "%u", p->retry_after_s);
        MHD_add_response_header(r, "Retry-After", text);
    }
    if (p->streams) MHD_add_response_header(r, "X-Accel-Buffering", "no");
    return send_response(x->server, c, p->status, p->type, r);
}

static enum MHD_Result take_data(exchange *x, const char *data, size_t *len) {
    if (x->thrown || x->body.len + *len > RG_BODY_BYTES_MAX) {
        x->thrown += *len;
        rg_buf_deinit(&x->body);
        if (x->thrown > DISCARD_MAX) return MHD_NO;
    } else if (rg_buf_append(&x->body, data, *len, NULL) != RG_OK) {
        return MHD_NO;
    }
    *len = 0;
    return MHD_YES;
}

static enum MHD_Result handle(void *server, struct MHD_Connection *c, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *len, void **state) {
    rg_server *s = server;
    (void)version;
    if (!*state) {
        bool known = false, refused = false;
        const route *r = find_route(method, path, &known);
        const enum MHD_Result sent = refuse_first(s, c, path, method, r, known, &refused);
        return refused ? sent : open_exchange(s, c, r, state);
    }
    exchange *x = *state;
    if (*len) return take_data(x, data, len);
    if (x->thrown) return send_error(s, c, path, 413, "the body is larger than 32 MiB");
    if (x->route->order < 0) return answer_now(x, c);
    if (!x->dispatched) give_order(x, c);
    return send_pipe(x, c);
}

static void completed(void *server, struct MHD_Connection *c, void **state,
                      enum MHD_RequestTerminationCode why) {
    exchange *x = *state;
    (void)c;
    (void)why;
    if (!x) return;
    if (x->pipe) {
        rg_watch_remove(server, x->pipe);
        rg_pipe_leave(x->pipe, true);
        rg_pipe_drop(x->pipe);
    }
    rg_buf_deinit(&x->body);
    rg_free(x);
    *state = NULL;
}

/* ---- listening ------------------------------------------------------------------------------ */

static void log_mhd(void *server, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void log_mhd(void *server, const char *format, va_list args) {
    char line[256];
    (void)server;
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = 0;
    rg_log(RG_LOG_DEBUG, "http: %s", line);
}

static rg_code resolve(const rg_server *s, struct addrinfo **out, rg_status *st) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char port[8];
    snprintf(port, sizeof port, "%u", s->opt.port);
    const int e = getaddrinfo(s->opt.host, port, &hints, out);
    if (e) return rg_fail(st, RG_INVALID, "host %.100s: %s", s->opt.host, gai_strerror(e));
    return RG_OK;
}

rg_code rg_http_start(rg_server *s, rg_status *st) {
    struct addrinfo *address = NULL;
    RG_TRY(resolve(s, &address, st));
    const unsigned v6 = address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    errno = 0;
    /* poll, not epoll: libmicrohttpd waits for edges there and takes a read that does not fill its
     * buffer for the end of what has come. Where a client's data and its hang-up come together, the
     * hang-up is never seen, and the connection is held until it times out. */
    s->daemon = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | v6,
        s->opt.port, NULL, NULL, handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, s,
        MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_CONNECTION_LIMIT, RG_CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        HEADER_BYTES_MAX, MHD_OPTION_NOTIFY_COMPLETED, completed, s, MHD_OPTION_END);
    const int e = errno;
    freeaddrinfo(address);
    if (!s->daemon) {
        return rg_fail_errno(st, RG_IO, e, "cannot listen on %.100s port %u", s->opt.host,
                             s->opt.port);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->opt.port;
    return RG_OK;
}

void rg_http_stop(rg_server *s) {
    if (!s->daemon) return;
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
