/* regolith trace replay: the stream as it is, asked what a recorded run asked, on a virtual drive.
 *
 * Which experts are hits is a function of the requests and the options alone (stream.h), so with
 * the recorded options the replay counts exactly what the engine counted, window by window. Time is
 * a model: a layer of T rows computes for layer_us + (T - 1) row_us while its reads run, then waits
 * for those that are missing.
 */
#include <stdio.h>
#include <string.h>

#include "forge/forge.h"
#include "forge/trace_walk.h"

#define LATENCY_US_DEFAULT 100.0
#define GB_S_DEFAULT       2.0
#define LAYER_US_DEFAULT   500.0
#define ROW_US_DEFAULT     50.0
#define RANKS_SHOWN        10u
#define SLOTS_MAX          (8u << 20) /* of the smallest size in one arena */

/* One line of the table. */
typedef struct setting {
    uint64_t arena_bytes;
    rg_stream_policy policy;
    int32_t lookahead;
    bool guard;
    bool as_recorded; /* then hits are compared */
} setting;

typedef struct span {
    uint64_t tokens, ns;
} span;

typedef struct replay {
    rg_trace_walk *walk;
    const rg_trace_header *h;
    const rg_replay_options *opt;
    setting set;
    rg_stream *stream;
    uint8_t *wanted;       /* [group_items_max] */
    uint32_t *items;       /* [group_items_max] */
    const rg_turn *turn;   /* NULL: none is open */
    uint64_t compute_ns;   /* of the open turn */
    uint64_t begin_ns;     /* of the window */
    bool prefill;          /* some turn of the window */
    uint64_t hits, misses; /* at the end of the window before */
    span decode, rest;     /* windows of few rows; of many */
    uint64_t n_window, recorded_hits, recorded_misses;
    uint64_t n_differ, first_differ;
    uint32_t slots;
    rg_stream_meters meters;
} replay;

static double or_default(double x, double other) {
    return x > 0.0 ? x : other;
}

/* ---- requests ------------------------------------------------------------------------------- */

static rg_code finish_turn(replay *r, rg_status *st) {
    if (!r->turn) return RG_OK;
    rg_code rc = RG_OK;
    rg_stream_advance(r->stream, r->compute_ns);
    for (bool more = true; more && rc == RG_OK;) {
        for (uint32_t i = 0; i < r->turn->n_pending && rc == RG_OK; i++) {
            uint32_t item;
            rc = rg_stream_wait(r->stream, &item, st);
        }
        more = rc == RG_OK && r->turn->n_left > 0;
        rg_status wave = {0};
        if (more && !rg_stream_wave_next(r->stream, 0, &wave)) {
            rc = rg_fail(st, wave.code ? wave.code : RG_BUG, "%s", wave.message);
        }
    }
    rg_stream_end(r->stream, 0);
    r->turn = NULL;
    return rc;
}

/* Distinct experts, ascending: the order in which the engine asks. */
static uint32_t collect(replay *r, const rg_trace_event *e) {
    const uint32_t n_item = r->h->groups[e->group].n_item, base = r->walk->first_item[e->group];
    uint32_t n = 0;
    memset(r->wanted, 0, n_item);
    for (uint32_t i = 0; i < e->n; i++)
        r->wanted[e->values[i]] = 1;
    for (uint32_t i = 0; i < n_item; i++)
        if (r->wanted[i]) r->items[n++] = base + i;
    return n;
}

static rg_code on_turn(replay *r, const rg_trace_event *e, rg_status *st) {
    RG_TRY(finish_turn(r, st));
    const double layer_us = or_default(r->opt->layer_us, LAYER_US_DEFAULT);
    const double row_us = or_default(r->opt->row_us, ROW_US_DEFAULT);
    r->compute_ns = (uint64_t)(1e3 * (layer_us + row_us * (e->rows - 1)));
    r->prefill = r->prefill || e->mode == RG_MODE_PREFILL;
    const uint32_t n = collect(r, e);
    return rg_stream_begin(r->stream, e->group, r->items, n, e->mode, &r->turn, st);
}

static void on_ahead(replay *r, const rg_trace_event *e) {
    if (r->set.lookahead == 0) return; /* then an engine does not guess at all */
    for (uint32_t i = 0; i < e->n; i++)
        r->items[i] = r->walk->first_item[e->group] + e->values[i];
    rg_stream_ahead(r->stream, e->group, r->items, e->n, UINT32_MAX, e->mode);
}

/* Against what the engine counted, and the depth its governor chose. */
static void compare(replay *r, const rg_trace_event *e) {
    const uint64_t hits = r->meters.hits - r->hits, misses = r->meters.misses - r->misses;
    const bool same_depth = rg_stream_lookahead(r->stream) == e->lookahead;
    if (e->failed || (hits == e->hits && misses == e->misses && same_depth)) return;
    if (r->n_differ++ == 0) r->first_differ = r->n_window;
}

static rg_code on_window(replay *r, const rg_trace_event *e, rg_status *st) {
    RG_TRY(finish_turn(r, st));
    uint32_t n;
    const uint32_t *touched = rg_trace_walk_touched(r->walk, e, &n);
    rg_stream_touch(r->stream, touched, n);
    rg_stream_meters_get(r->stream, &r->meters);
    compare(r, e);
    r->hits = r->meters.hits;
    r->misses = r->meters.misses;
    r->recorded_hits += e->hits;
    r->recorded_misses += e->misses;
    r->n_window++;
    span *s = r->prefill ? &r->rest : &r->decode;
    const uint64_t now = rg_stream_now_ns(r->stream);
    s->tokens += e->accepted;
    s->ns += now - r->begin_ns;
    r->begin_ns = now;
    r->prefill = false;
    return RG_OK;
}

static rg_code run_events(replay *r, rg_status *st) {
    for (;;) {
        rg_trace_event e;
        bool more;
        RG_TRY(rg_trace_walk_next(r->walk, &e, &more, st));
        if (!more) return finish_turn(r, st);
        switch (e.kind) {
        case RG_TRACE_TURN:
            RG_TRY(on_turn(r, &e, st));
            break;
        case RG_TRACE_AHEAD:
            on_ahead(r, &e);
            break;
        case RG_TRACE_WARM:
            RG_TRY(finish_turn(r, st));
            rg_stream_warm(r->stream, e.values, e.n);
            break;
        case RG_TRACE_WINDOW:
            RG_TRY(on_window(r, &e, st));
            break;
        }
    }
}

static rg_code open_stream(replay *r, rg_status *st) {
    static const char *const path = "recorded model";
    const char *paths[RG_STREAM_FILES_MAX];
    for (uint32_t i = 0; i < RG_STREAM_FILES_MAX; i++)
        paths[i] = path;
    const rg_stream_virtual drive = {
        .latency_ns = (uint64_t)(1e3 * or_default(r->opt->latency_us, LATENCY_US_DEFAULT)),
        .bytes_per_s = (uint64_t)(1e9 * or_default(r->opt->gb_s, GB_S_DEFAULT))};
    const rg_stream_options o = {.paths = paths,
                                 .n_file = RG_STREAM_FILES_MAX,
                                 .groups = r->h->groups,
                                 .n_group = r->h->n_group,
                                 .group_noun = "layer",
                                 .item_noun = "expert",
                                 .budget_bytes = r->set.arena_bytes,
                                 .depth = r->h->depth,
                                 .urgent_reserve = r->h->urgent_reserve,
                                 .policy = r->set.policy,
                                 .guard_off = !r->set.guard,
                                 .lookahead = r->set.lookahead,
                                 .ahead_cost_permille = r->h->ahead_cost_permille,
                                 .virtual_drive = &drive};
    return rg_stream_create(&r->stream, &o, st);
}

static rg_code run(replay *r, rg_status *st) {
    rg_code rc = RG_OK;
    r->wanted = rg_alloc(r->walk->group_items_max, sizeof *r->wanted, st);
    r->items = rg_alloc(r->walk->group_items_max, sizeof *r->items, st);
    if (!r->wanted || !r->items) rc = RG_NOMEM;
    if (rc == RG_OK) rc = open_stream(r, st);
    rg_trace_walk_rewind(r->walk);
    if (rc == RG_OK) rc = run_events(r, st);
    if (r->stream) {
        if (r->turn) rg_stream_end(r->stream, 0);
        rg_stream_meters_get(r->stream, &r->meters);
        r->slots = rg_stream_slots(r->stream);
    }
    rg_stream_destroy(r->stream);
    rg_free(r->wanted);
    rg_free(r->items);
    return rc;
}

/* ---- the table ------------------------------------------------------------------------------ */

static const char *policy_name(rg_stream_policy p) {
    static const char *const names[] = {"lru", "slru", "lfu"};
    return (unsigned)p < RG_ARRAY_LEN(names) ? names[p] : "?";
}

static void lookahead_text(int32_t k, char out[16]) {
    if (k < 0)
        snprintf(out, 16, "auto");
    else
        snprintf(out, 16, "%d", k);
}

static double per(double x, double n) {
    return n > 0.0 ? x / n : 0.0;
}

static uint64_t total(const uint64_t *x) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < RG_STREAM_RANKS; i++)
        sum += x[i];
    return sum;
}

/* Useful and wasted reads of each rank: "12/3 8/5 ...". */
static rg_code print_ranks(const rg_stream_meters *m, rg_buf *out, rg_status *st) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < RANKS_SHOWN; i++)
        if (m->ahead_useful[i] + m->ahead_wasted[i]) last = i + 1;
    for (uint32_t i = 0; i < last; i++) {
        RG_TRY(rg_buf_printf(out, st, " %llu/%llu", (unsigned long long)m->ahead_useful[i],
                             (unsigned long long)m->ahead_wasted[i]));
    }
    return rg_buf_puts(out, "\n", st);
}

static rg_code print_row(const replay *r, rg_buf *out, rg_status *st) {
    const rg_stream_meters *m = &r->meters;
    char look[16];
    lookahead_text(r->set.lookahead, look);
    const double wanted = (double)(m->hits + m->misses);
    const double tokens = (double)(r->decode.tokens + r->rest.tokens);
    RG_TRY(rg_buf_printf(out, st, "%s%-6s %5s %5s %7u %7.2f %9llu %9llu %9llu %9.3f %9.1f %9.1f ",
                         r->set.as_recorded ? "*" : " ", policy_name(r->set.policy), look,
                         r->set.guard ? "on" : "off", r->slots,
                         per(100.0 * (double)m->hits, wanted), (unsigned long long)m->late,
                         (unsigned long long)(total(m->ahead_useful) + m->ahead_useful_prefill),
                         (unsigned long long)(total(m->ahead_wasted) + m->ahead_wasted_prefill),
                         per((double)m->read_bytes / 0x1p20, tokens),
                         per(1e9 * (double)r->rest.tokens, (double)r->rest.ns),
                         per(1e9 * (double)r->decode.tokens, (double)r->decode.ns)));
    return print_ranks(m, out, st);
}

static rg_code print_head(const rg_trace_header *h, rg_buf *out, rg_status *st) {
    char look[16];
    lookahead_text(h->lookahead, look);
    for (uint32_t i = 0; i < 4; i++)
        RG_TRY(rg_buf_printf(out, st, "%s%02x", i ? "" : "model ", h->identity[i]));
    RG_TRY(rg_buf_printf(out, st, ", %u layers of %u experts, %u a token; recorded with ",
                         h->n_group, h->groups[0].n_item, h->n_used));
    if (h->arena_bytes) {
        RG_TRY(rg_buf_printf(out, st, "an arena of %.1f MiB, %s, look-ahead %s, guard %s%s\n",
                             (double)h->arena_bytes / 0x1p20, policy_name(h->policy), look,
                             h->guard_off ? "off" : "on", h->null_reads ? ", without reads" : ""));
    } else {
        RG_TRY(rg_buf_puts(out, "all experts in memory\n", st));
    }
    return rg_buf_printf(out, st, " %-6s %5s %5s %7s %7s %9s %9s %9s %9s %9s %9s  %s\n", "policy",
                         "ahead", "guard", "slots", "hits %", "late", "useful", "wasted", "MiB/tok",
                         "prefill/s", "decode/s", "useful/wasted by rank");
}

/* What the run itself counted, and whether the replay agrees. */
static rg_code print_verdict(const replay *r, rg_buf *out, rg_status *st) {
    RG_TRY(rg_buf_printf(
        out, st, "recorded: %llu windows, %llu tokens, %llu hits, %llu misses; ",
        (unsigned long long)r->n_window, (unsigned long long)(r->decode.tokens + r->rest.tokens),
        (unsigned long long)r->recorded_hits, (unsigned long long)r->recorded_misses));
    if (!r->n_differ) return rg_buf_puts(out, "the replay (*) is equal in every window\n", st);
    return rg_buf_printf(out, st, "the replay (*) differs in %llu windows, first in %llu\n",
                         (unsigned long long)r->n_differ, (unsigned long long)r->first_differ);
}

/* ---- combinations --------------------------------------------------------------------------- */

typedef struct lists {
    uint64_t arenas[RG_REPLAY_CHOICES_MAX];
    rg_replay_options o; /* with the recorded values where a list was empty */
} lists;

static rg_code check_arenas(const lists *l, const rg_stream_layout *layout, rg_status *st) {
    for (uint32_t i = 0; i < l->o.n_slots; i++) {
        const uint64_t n = l->arenas[i] / layout->class_bytes[0];
        if (n <= SLOTS_MAX) continue;
        return rg_fail(st, RG_INVALID, "an arena of %llu slots, the replay takes %u",
                       (unsigned long long)n, SLOTS_MAX);
    }
    return RG_OK;
}

static rg_code fill_lists(lists *l, const rg_trace_header *h, const rg_replay_options *opt,
                          rg_status *st) {
    l->o = *opt;
    if (!l->o.n_policies) l->o.policies[l->o.n_policies++] = h->policy;
    if (!l->o.n_lookaheads) l->o.lookaheads[l->o.n_lookaheads++] = h->lookahead;
    if (!l->o.n_guards) l->o.guards[l->o.n_guards++] = !h->guard_off;
    rg_stream_layout layout;
    RG_TRY(rg_stream_layout_of(&layout, h->groups, h->n_group, st));
    for (uint32_t i = 0; i < opt->n_slots; i++) {
        l->arenas[i] = opt->slots[i] * layout.slot_bytes_max;
        if (opt->slots[i] > h->n_used) continue;
        return rg_fail(st, RG_INVALID, "an arena of %u experts, %u at least are needed",
                       opt->slots[i], h->n_used + 1);
    }
    if (l->o.n_slots) return check_arenas(l, &layout, st);
    if (!h->arena_bytes) {
        return rg_fail(st, RG_INVALID,
                       "the run had all experts in memory: name an arena with "
                       "--arena-experts");
    }
    l->arenas[l->o.n_slots++] = h->arena_bytes;
    return check_arenas(l, &layout, st);
}

static bool is_recorded(const rg_trace_header *h, const setting *s) {
    return h->arena_bytes && !h->null_reads && s->arena_bytes == h->arena_bytes &&
           s->policy == h->policy && s->lookahead == h->lookahead && s->guard == !h->guard_off;
}

/* Setting number i of all combinations; the arena changes slowest. */
static setting choose(const lists *l, uint32_t i) {
    setting s = {0};
    s.guard = l->o.guards[i % l->o.n_guards];
    i /= l->o.n_guards;
    s.lookahead = l->o.lookaheads[i % l->o.n_lookaheads];
    i /= l->o.n_lookaheads;
    s.policy = l->o.policies[i % l->o.n_policies];
    s.arena_bytes = l->arenas[i / l->o.n_policies];
    return s;
}

static rg_code replay_all(rg_trace_walk *walk, const rg_replay_options *opt, rg_buf *out,
                          rg_status *st) {
    const rg_trace_header *h = rg_trace_header_of(walk->reader);
    lists l = {0};
    replay same = {0};
    RG_TRY(fill_lists(&l, h, opt, st));
    RG_TRY(print_head(h, out, st));
    const uint32_t n = l.o.n_guards * l.o.n_lookaheads * l.o.n_policies * l.o.n_slots;
    for (uint32_t i = 0; i < n; i++) {
        replay r = {.walk = walk, .h = h, .opt = opt, .set = choose(&l, i)};
        r.set.as_recorded = is_recorded(h, &r.set);
        RG_TRY(run(&r, st));
        RG_TRY(print_row(&r, out, st));
        if (r.set.as_recorded) same = r;
    }
    return same.set.as_recorded ? print_verdict(&same, out, st) : RG_OK;
}

rg_code rg_forge_trace_replay(const char *path, const rg_replay_options *opt, rg_buf *out,
                              rg_status *st) {
    rg_trace_walk walk;
    rg_code rc = rg_trace_walk_open(&walk, path, st);
    if (rc == RG_OK) rc = replay_all(&walk, opt, out, st);
    rg_trace_walk_close(&walk);
    return rc;
}
