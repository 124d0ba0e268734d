#include "forge/trace_walk.h"

rg_code rg_trace_walk_open(rg_trace_walk *out, const char *path, rg_status *st) {
    *out = (rg_trace_walk){0};
    RG_TRY(rg_trace_open(&out->reader, path, st));
    const rg_trace_header *h = rg_trace_header_of(out->reader);
    out->first_item = rg_alloc(h->n_group, sizeof *out->first_item, st);
    if (!out->first_item) {
        rg_trace_walk_close(out);
        return RG_NOMEM;
    }
    for (uint32_t g = 0; g < h->n_group; g++) {
        const uint32_t n = h->groups[g].n_item;
        out->first_item[g] = out->n_item;
        out->n_item += n;
        if (n > out->group_items_max) out->group_items_max = n;
    }
    return RG_OK;
}

void rg_trace_walk_close(rg_trace_walk *w) {
    rg_trace_reader_destroy(w->reader);
    rg_free(w->first_item);
    rg_free(w->routes);
    *w = (rg_trace_walk){0};
}

void rg_trace_walk_rewind(rg_trace_walk *w) {
    rg_trace_rewind(w->reader);
    w->n_route = 0;
    w->closed = false;
}

static rg_code keep_routes(rg_trace_walk *w, const rg_trace_event *e, rg_status *st) {
    if (w->n_route + e->n > w->cap) {
        const size_t cap = 2 * (w->n_route + e->n);
        uint32_t *grown = rg_realloc(w->routes, cap, sizeof *grown, st);
        if (!grown) return RG_NOMEM;
        w->routes = grown;
        w->cap = cap;
    }
    for (uint32_t i = 0; i < e->n; i++)
        w->routes[w->n_route++] = w->first_item[e->group] + e->values[i];
    return RG_OK;
}

rg_code rg_trace_walk_next(rg_trace_walk *w, rg_trace_event *e, bool *more, rg_status *st) {
    if (w->closed) w->n_route = 0;
    w->closed = false;
    RG_TRY(rg_trace_next(w->reader, e, more, st));
    if (!*more) return RG_OK;
    w->closed = e->kind == RG_TRACE_WINDOW;
    if (e->kind == RG_TRACE_TURN) return keep_routes(w, e, st);
    return RG_OK;
}

const uint32_t *rg_trace_walk_touched(const rg_trace_walk *w, const rg_trace_event *e,
                                      uint32_t *n) {
    RG_ASSERT(e->kind == RG_TRACE_WINDOW);
    *n = e->failed ? 0 : e->explicit_touch ? e->n : (uint32_t)w->n_route;
    return e->explicit_touch ? e->values : w->routes;
}
