/* The trace file: writer, and a reader that believes nothing. Layout: trace.h.
 *
 * The writer keeps the events of a window in a buffer that grows with the longest window; an engine
 * that records may therefore allocate inside a window.
 */
#include "engine/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC         "RGTRACE1"
#define MAGIC_BYTES   8u
#define FLAG_PREFILL  1u
#define FLAG_FAILED   1u
#define FLAG_EXPLICIT 2u

struct rg_trace {
    FILE *file;
    char *path;
    uint32_t n_used;
    uint32_t n_group;
    uint32_t *first_item;  /* [n_group] */
    rg_buf events;         /* of the window in progress */
    rg_buf routes;         /* u32 items of its turns, in order */
    uint32_t first_group;  /* lowest of its turns: drafts come before their window's own */
    uint32_t rows;         /* of that group's turn */
    uint64_t hits, misses; /* at the end of the window before */
    rg_status failure;     /* the first one */
};

/* ---- identity ------------------------------------------------------------------------------- */

rg_code rg_trace_identity(uint8_t out[RG_IDENTITY_BYTES], const rg_gguf *g, const rg_model *m,
                          rg_status *st) {
    rg_hash128 identity;
    RG_TRY(rg_model_identity(g, m, &identity, st));
    for (size_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)(identity.low >> (8 * i));
        out[8 + i] = (uint8_t)(identity.high >> (8 * i));
    }
    return RG_OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

static rg_code put(rg_buf *b, uint64_t x, size_t bytes, rg_status *st) {
    uint8_t raw[8];
    for (size_t i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(x >> (8 * i));
    return rg_buf_append(b, raw, bytes, st);
}

static rg_code put_header(rg_buf *b, const rg_trace_header *h, rg_status *st) {
    RG_TRY(rg_buf_append(b, h->identity, RG_IDENTITY_BYTES, st));
    const uint32_t words[] = {h->n_used,
                              h->chunk,
                              (uint32_t)h->policy,
                              (uint32_t)(h->guard_off ? 1 : 0) | (h->null_reads ? 2u : 0u),
                              (uint32_t)h->lookahead,
                              h->ahead_cost_permille,
                              h->depth,
                              h->urgent_reserve};
    for (size_t i = 0; i < RG_ARRAY_LEN(words); i++)
        RG_TRY(put(b, words[i], 4, st));
    RG_TRY(put(b, h->arena_bytes, 8, st));
    RG_TRY(put(b, h->n_group, 4, st));
    for (uint32_t g = 0; g < h->n_group; g++) {
        const rg_stream_group *group = &h->groups[g];
        RG_TRY(put(b, group->n_item, 4, st));
        RG_TRY(put(b, group->n_extent, 4, st));
        for (uint32_t e = 0; e < group->n_extent; e++) {
            RG_TRY(put(b, group->extents[e].file, 4, st));
            RG_TRY(put(b, group->extents[e].bytes, 4, st));
            RG_TRY(put(b, group->extents[e].offset, 8, st));
            RG_TRY(put(b, group->extents[e].stride, 8, st));
        }
    }
    return RG_OK;
}

static rg_code write_out(rg_trace *t, const rg_buf *b, rg_status *st) {
    errno = 0;
    if (b->len && fwrite(b->data, 1, b->len, t->file) != b->len) {
        return rg_fail_errno(st, RG_IO, errno, "writing %s", t->path);
    }
    if (fflush(t->file) != 0) return rg_fail_errno(st, RG_IO, errno, "writing %s", t->path);
    return RG_OK;
}

static rg_code start_file(rg_trace *t, const rg_trace_header *h, rg_status *st) {
    rg_buf header, all;
    rg_buf_init(&header, 0);
    rg_buf_init(&all, 0);
    rg_code rc = put_header(&header, h, st);
    if (rc == RG_OK) rc = rg_buf_append(&all, MAGIC, MAGIC_BYTES, st);
    if (rc == RG_OK) rc = put(&all, header.len, 4, st);
    if (rc == RG_OK) rc = rg_buf_append(&all, header.data, header.len, st);
    if (rc == RG_OK) rc = write_out(t, &all, st);
    rg_buf_deinit(&header);
    rg_buf_deinit(&all);
    return rc;
}

static rg_code open_writer(rg_trace *t, const char *path, const rg_trace_header *h, rg_status *st) {
    t->path = rg_strndup(path, strlen(path), st);
    if (!t->path) return RG_NOMEM;
    t->n_used = h->n_used;
    t->n_group = h->n_group;
    t->first_item = rg_alloc(h->n_group, sizeof *t->first_item, st);
    if (!t->first_item) return RG_NOMEM;
    for (uint32_t g = 0; g < h->n_group; g++) {
        if (h->groups[g].n_item > RG_TRACE_GROUP_ITEMS) {
            return rg_fail(st, RG_UNSUPPORTED, "%s: layer %u has %u experts, a trace takes %u",
                           path, g, h->groups[g].n_item, RG_TRACE_GROUP_ITEMS);
        }
        if (g) t->first_item[g] = t->first_item[g - 1] + h->groups[g - 1].n_item;
    }
    t->file = fopen(path, "wbe");
    if (!t->file) return rg_fail_errno(st, RG_IO, errno, "cannot write %s", path);
    return start_file(t, h, st);
}

rg_code rg_trace_create(rg_trace **out, const char *path, const rg_trace_header *h, rg_status *st) {
    *out = NULL;
    rg_trace *t = rg_alloc(1, sizeof *t, st);
    if (!t) return RG_NOMEM;
    rg_buf_init(&t->events, 0);
    rg_buf_init(&t->routes, 0);
    const rg_code rc = open_writer(t, path, h, st);
    if (rc != RG_OK) {
        rg_trace_close(t);
        return rc;
    }
    *out = t;
    return RG_OK;
}

static void head(rg_trace *t, rg_trace_kind kind, uint32_t flags, uint32_t group, uint32_t rows,
                 uint32_t n) {
    rg_status *st = &t->failure;
    const uint8_t raw[12] = {(uint8_t)kind,         (uint8_t)flags,        (uint8_t)group,
                             (uint8_t)(group >> 8), (uint8_t)rows,         (uint8_t)(rows >> 8),
                             (uint8_t)(rows >> 16), (uint8_t)(rows >> 24), (uint8_t)n,
                             (uint8_t)(n >> 8),     (uint8_t)(n >> 16),    (uint8_t)(n >> 24)};
    if (st->code == RG_OK) st->code = rg_buf_append(&t->events, raw, sizeof raw, st);
}

/* Failures stay in t->failure. */
static void values(rg_trace *t, const uint32_t *x, size_t n, size_t bytes) {
    rg_status *st = &t->failure;
    for (size_t i = 0; i < n && st->code == RG_OK; i++)
        st->code = put(&t->events, x[i], bytes, st);
}

static uint32_t mode_flag(rg_stream_mode mode) {
    return mode == RG_MODE_PREFILL ? FLAG_PREFILL : 0;
}

void rg_trace_turn(rg_trace *t, uint32_t group, const uint32_t *ids, uint32_t rows,
                   rg_stream_mode mode) {
    const size_t n = (size_t)rows * t->n_used;
    RG_ASSERT(group < t->n_group);
    if (t->routes.len == 0 || group < t->first_group) {
        t->rows = rows;
        t->first_group = group;
    }
    head(t, RG_TRACE_TURN, mode_flag(mode), group, rows, (uint32_t)n);
    values(t, ids, n, 2);
    for (size_t i = 0; i < n && t->failure.code == RG_OK; i++) {
        const uint32_t item = t->first_item[group] + ids[i];
        t->failure.code = rg_buf_append(&t->routes, &item, sizeof item, &t->failure);
    }
}

void rg_trace_ahead(rg_trace *t, uint32_t group, const uint32_t *experts, uint32_t n,
                    rg_stream_mode mode) {
    RG_ASSERT(group < t->n_group);
    head(t, RG_TRACE_AHEAD, mode_flag(mode), group, 0, n);
    values(t, experts, n, 2);
}

void rg_trace_warm(rg_trace *t, const uint32_t *items, uint32_t n) {
    head(t, RG_TRACE_WARM, 0, 0, 0, n);
    values(t, items, n, 4);
}

/* Rows that were kept: those of the lowest group among the touched. */
static uint32_t count_accepted(const rg_trace *t, const rg_trace_window *w) {
    uint32_t n = 0;
    const uint32_t begin = t->first_item[t->first_group];
    const uint32_t end =
        t->first_group + 1 < t->n_group ? t->first_item[t->first_group + 1] : UINT32_MAX;
    for (uint32_t i = 0; i < w->n_touched; i++)
        n += w->touched[i] >= begin && w->touched[i] < end;
    return n / t->n_used;
}

rg_code rg_trace_end_window(rg_trace *t, const rg_trace_window *w, rg_status *st) {
    const size_t touched_bytes = w->n_touched * sizeof *w->touched;
    const bool all = !w->touched || (touched_bytes == t->routes.len &&
                                     memcmp(w->touched, t->routes.data, touched_bytes) == 0);
    const bool listed = !w->failed && !all;
    const uint32_t accepted = w->failed ? 0 : listed ? count_accepted(t, w) : t->rows;
    /* A stream whose meters were reset starts from zero again. */
    const uint64_t hits0 = w->hits < t->hits ? 0 : t->hits;
    const uint64_t misses0 = w->misses < t->misses ? 0 : t->misses;
    const uint32_t words[] = {accepted, w->lookahead, (uint32_t)(w->hits - hits0),
                              (uint32_t)(w->misses - misses0)};
    head(t, RG_TRACE_WINDOW, (w->failed ? FLAG_FAILED : 0u) | (listed ? FLAG_EXPLICIT : 0u), 0,
         t->rows, listed ? w->n_touched : 0);
    values(t, words, RG_ARRAY_LEN(words), 4);
    if (listed) values(t, w->touched, w->n_touched, 4);
    if (t->failure.code == RG_OK) t->failure.code = write_out(t, &t->events, &t->failure);
    t->hits = w->hits;
    t->misses = w->misses;
    t->rows = 0;
    rg_buf_clear(&t->events);
    rg_buf_clear(&t->routes);
    if (t->failure.code == RG_OK) return RG_OK;
    return rg_fail(st, t->failure.code, "%s", t->failure.message);
}

void rg_trace_close(rg_trace *t) {
    if (!t) return;
    if (t->file) {
        /* Guesses for a window that never came are left out: they changed nothing. */
        if (fclose(t->file) != 0) {
            char why[96];
            rg_log(RG_LOG_ERROR, "writing %s: %s", t->path, strerror_r(errno, why, sizeof why));
        }
    }
    rg_buf_deinit(&t->events);
    rg_buf_deinit(&t->routes);
    rg_free(t->first_item);
    rg_free(t->path);
    rg_free(t);
}

/* ---- reading -------------------------------------------------------------------------------- */

struct rg_trace_reader {
    char *owned; /* NULL: the bytes are borrowed */
    char *name;
    rg_cursor c;
    size_t first_event;
    rg_trace_header header;
    uint32_t n_item;
    uint32_t *values; /* [cap] */
    size_t cap;
};

static rg_code bad(const rg_trace_reader *r, rg_status *st, const char *what, uint64_t got,
                   uint64_t most) {
    return rg_fail(st, RG_FORMAT, "%s: %s is %llu, at most %llu can be (byte %zu)", r->name, what,
                   (unsigned long long)got, (unsigned long long)most, r->c.pos);
}

static rg_code get_u32(rg_trace_reader *r, uint32_t *out, uint32_t max, const char *what,
                       rg_status *st) {
    RG_TRY(rg_cursor_u32(&r->c, out, what, st));
    return *out <= max ? RG_OK : bad(r, st, what, *out, max);
}

static rg_code get_group(rg_trace_reader *r, rg_stream_group *g, rg_status *st) {
    RG_TRY(get_u32(r, &g->n_item, RG_TRACE_GROUP_ITEMS, "items of a group", st));
    RG_TRY(get_u32(r, &g->n_extent, RG_STREAM_EXTENTS_MAX, "extents of a group", st));
    for (uint32_t e = 0; e < g->n_extent; e++) {
        rg_stream_extent *x = &g->extents[e];
        RG_TRY(get_u32(r, &x->file, RG_STREAM_FILES_MAX - 1, "file of an extent", st));
        RG_TRY(rg_cursor_u32(&r->c, &x->bytes, "bytes of an extent", st));
        RG_TRY(rg_cursor_u64(&r->c, &x->offset, "offset of an extent", st));
        RG_TRY(rg_cursor_u64(&r->c, &x->stride, "stride of an extent", st));
    }
    return RG_OK;
}

static rg_code get_options(rg_trace_reader *r, rg_status *st) {
    rg_trace_header *h = &r->header;
    const uint8_t *identity = NULL;
    uint32_t policy, flags, lookahead;
    RG_TRY(rg_cursor_bytes(&r->c, &identity, RG_IDENTITY_BYTES, "identity", st));
    memcpy(h->identity, identity, RG_IDENTITY_BYTES);
    RG_TRY(get_u32(r, &h->n_used, RG_EXPERT_USED_MAX, "experts of a row", st));
    if (h->n_used == 0) return rg_fail(st, RG_FORMAT, "%s: no expert of 1 a row", r->name);
    RG_TRY(get_u32(r, &h->chunk, RG_TRACE_ROWS_MAX, "chunk", st));
    RG_TRY(get_u32(r, &policy, RG_POLICY_COUNT - 1, "policy", st));
    RG_TRY(get_u32(r, &flags, 3, "flags", st));
    RG_TRY(rg_cursor_u32(&r->c, &lookahead, "look-ahead", st));
    RG_TRY(get_u32(r, &h->ahead_cost_permille, 1000, "cost", st));
    RG_TRY(get_u32(r, &h->depth, RG_STREAM_DEPTH_MAX, "depth", st));
    RG_TRY(get_u32(r, &h->urgent_reserve, RG_STREAM_DEPTH_MAX, "reserve", st));
    RG_TRY(rg_cursor_u64(&r->c, &h->arena_bytes, "arena", st));
    if (h->arena_bytes > RG_TRACE_ARENA_MAX) {
        return bad(r, st, "arena", h->arena_bytes, RG_TRACE_ARENA_MAX);
    }
    h->policy = (rg_stream_policy)policy;
    h->guard_off = flags & 1;
    h->null_reads = flags & 2;
    h->lookahead = (int32_t)lookahead;
    if (h->lookahead < -1 || h->lookahead > RG_TRACE_LOOKAHEAD_MAX) {
        return bad(r, st, "look-ahead", lookahead, RG_TRACE_LOOKAHEAD_MAX);
    }
    return RG_OK;
}

static rg_code get_header(rg_trace_reader *r, rg_status *st) {
    rg_trace_header *h = &r->header;
    const uint8_t *magic = NULL;
    uint32_t header_bytes;
    RG_TRY(rg_cursor_bytes(&r->c, &magic, MAGIC_BYTES, "magic", st));
    if (memcmp(magic, MAGIC, MAGIC_BYTES) != 0) {
        return rg_fail(st, RG_FORMAT,
                       "%s is no trace: it begins with %02x%02x%02x%02x, not with "
                       "%s",
                       r->name, magic[0], magic[1], magic[2], magic[3], MAGIC);
    }
    RG_TRY(rg_cursor_u32(&r->c, &header_bytes, "length of the header", st));
    const size_t begin = r->c.pos;
    RG_TRY(get_options(r, st));
    RG_TRY(get_u32(r, &h->n_group, RG_STREAM_GROUPS_MAX, "groups", st));
    h->groups = rg_alloc(h->n_group, sizeof *h->groups, st);
    if (!h->groups) return RG_NOMEM;
    for (uint32_t g = 0; g < h->n_group; g++)
        RG_TRY(get_group(r, &h->groups[g], st));
    if (r->c.pos - begin != header_bytes) {
        return rg_fail(st, RG_FORMAT, "%s: the header has %zu bytes, it says %u", r->name,
                       r->c.pos - begin, header_bytes);
    }
    rg_stream_layout layout; /* checks the groups as an arena would */
    RG_TRY(rg_stream_layout_of(&layout, h->groups, h->n_group, st));
    for (uint32_t g = 0; g < h->n_group; g++)
        r->n_item += h->groups[g].n_item;
    r->first_event = r->c.pos;
    return RG_OK;
}

static rg_code open_reader(rg_trace_reader *r, const void *data, size_t size, const char *name,
                           rg_status *st) {
    r->c = (rg_cursor){.data = data, .size = size};
    r->name = rg_strndup(name, strlen(name), st);
    if (!r->name) return RG_NOMEM;
    const rg_code rc = get_header(r, st);
    return rc == RG_FORMAT || rc == RG_INVALID ? rg_context(st, rc, "trace") : rc;
}

rg_code rg_trace_parse(rg_trace_reader **out, const void *data, size_t size, const char *name,
                       rg_status *st) {
    *out = NULL;
    rg_trace_reader *r = rg_alloc(1, sizeof *r, st);
    if (!r) return RG_NOMEM;
    const rg_code rc = open_reader(r, data, size, name, st);
    if (rc != RG_OK) {
        rg_trace_reader_destroy(r);
        return rc;
    }
    *out = r;
    return RG_OK;
}

rg_code rg_trace_open(rg_trace_reader **out, const char *path, rg_status *st) {
    *out = NULL;
    char *data = NULL;
    size_t size = 0;
    RG_TRY(rg_file_slurp(&data, &size, path, RG_TRACE_BYTES_MAX, st));
    const rg_code rc = rg_trace_parse(out, data, size, path, st);
    if (rc == RG_OK)
        (*out)->owned = data;
    else
        rg_free(data);
    return rc;
}

void rg_trace_reader_destroy(rg_trace_reader *r) {
    if (!r) return;
    rg_free(r->header.groups);
    rg_free(r->values);
    rg_free(r->name);
    rg_free(r->owned);
    rg_free(r);
}

const rg_trace_header *rg_trace_header_of(const rg_trace_reader *r) {
    return &r->header;
}

void rg_trace_rewind(rg_trace_reader *r) {
    r->c.pos = r->first_event;
}

/* n numbers of `bytes` bytes, each below `limit`, into r->values. */
static rg_code get_values(rg_trace_reader *r, uint32_t n, size_t bytes, uint32_t limit,
                          rg_status *st) {
    const uint8_t *raw = NULL;
    RG_TRY(rg_cursor_bytes(&r->c, &raw, (uint64_t)n * bytes, "values of an event", st));
    if (n > r->cap) {
        uint32_t *grown = rg_realloc(r->values, n, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        r->values = grown;
        r->cap = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = 0;
        for (size_t b = 0; b < bytes; b++)
            x |= (uint32_t)raw[i * bytes + b] << (8 * b);
        if (x >= limit) return bad(r, st, "number of an expert", x, limit - 1);
        r->values[i] = x;
    }
    return RG_OK;
}

static rg_code get_window(rg_trace_reader *r, rg_trace_event *e, uint32_t flags, rg_status *st) {
    if (flags > 3) return bad(r, st, "flags of a window", flags, 3);
    e->failed = flags & FLAG_FAILED;
    e->explicit_touch = flags & FLAG_EXPLICIT;
    if (!e->explicit_touch && e->n) return bad(r, st, "touched items of a window", e->n, 0);
    RG_TRY(get_u32(r, &e->accepted, e->rows, "accepted rows", st));
    RG_TRY(get_u32(r, &e->lookahead, RG_TRACE_LOOKAHEAD_MAX, "look-ahead", st));
    RG_TRY(rg_cursor_u32(&r->c, &e->hits, "hits", st));
    RG_TRY(rg_cursor_u32(&r->c, &e->misses, "misses", st));
    return get_values(r, e->n, 4, r->n_item, st);
}

static rg_code get_event(rg_trace_reader *r, rg_trace_event *e, rg_status *st) {
    const rg_trace_header *h = &r->header;
    uint8_t kind, flags;
    uint16_t group;
    RG_TRY(rg_cursor_u8(&r->c, &kind, "kind of an event", st));
    RG_TRY(rg_cursor_u8(&r->c, &flags, "flags of an event", st));
    RG_TRY(rg_cursor_u16(&r->c, &group, "group of an event", st));
    RG_TRY(get_u32(r, &e->rows, RG_TRACE_ROWS_MAX, "rows", st));
    RG_TRY(rg_cursor_u32(&r->c, &e->n, "length of an event", st));
    if (group >= h->n_group) return bad(r, st, "group of an event", group, h->n_group - 1);
    const uint32_t n_item = h->groups[group].n_item;
    e->group = group;
    e->kind = (rg_trace_kind)kind;
    e->mode = flags & FLAG_PREFILL ? RG_MODE_PREFILL : RG_MODE_DECODE;
    if (kind != RG_TRACE_WINDOW && flags > 1) return bad(r, st, "flags of an event", flags, 1);
    switch (e->kind) {
    case RG_TRACE_TURN:
        if (e->rows == 0 || (uint64_t)e->rows * h->n_used != e->n) {
            return rg_fail(st, RG_FORMAT, "%s: %u rows of %u experts, but %u numbers (byte %zu)",
                           r->name, e->rows, h->n_used, e->n, r->c.pos);
        }
        return get_values(r, e->n, 2, n_item, st);
    case RG_TRACE_AHEAD:
        if (e->n > n_item) return bad(r, st, "guesses", e->n, n_item);
        return get_values(r, e->n, 2, n_item, st);
    case RG_TRACE_WARM:
        if (e->n > r->n_item) return bad(r, st, "items warmed", e->n, r->n_item);
        return get_values(r, e->n, 4, r->n_item, st);
    case RG_TRACE_WINDOW:
        return get_window(r, e, flags, st);
    }
    return bad(r, st, "kind of an event", kind, RG_TRACE_WINDOW);
}

rg_code rg_trace_next(rg_trace_reader *r, rg_trace_event *out, bool *more, rg_status *st) {
    *out = (rg_trace_event){0};
    *more = rg_cursor_remaining(&r->c) > 0;
    if (!*more) return RG_OK;
    const rg_code rc = get_event(r, out, st);
    if (rc != RG_OK) return rg_context(st, rc, "trace");
    out->values = r->values;
    return RG_OK;
}
