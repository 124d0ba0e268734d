/* A walk over a trace, window by window, for the commands that read traces. */
#ifndef RG_FORGE_TRACE_WALK_H
#define RG_FORGE_TRACE_WALK_H

#include "engine/engine.h"

typedef struct rg_trace_walk {
    rg_trace_reader *reader;
    uint32_t *first_item; /* [n_group] */
    uint32_t n_item;
    uint32_t group_items_max;
    /* Items of the turns of the window in progress, in order: what a window touches by default. */
    uint32_t *routes;
    size_t n_route, cap;
    bool closed; /* the last event was a WINDOW */
} rg_trace_walk;

RG_MUST_CHECK rg_code rg_trace_walk_open(rg_trace_walk *out, const char *path, rg_status *st);
void rg_trace_walk_close(rg_trace_walk *w);
/* Back to the first event. */
void rg_trace_walk_rewind(rg_trace_walk *w);
/* As rg_trace_next; keeps w->routes, which begin anew behind a WINDOW. */
RG_MUST_CHECK rg_code rg_trace_walk_next(rg_trace_walk *w, rg_trace_event *e, bool *more,
                                         rg_status *st);
/* What a WINDOW event touched. */
const uint32_t *rg_trace_walk_touched(const rg_trace_walk *w, const rg_trace_event *e, uint32_t *n);

#endif
