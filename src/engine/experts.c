/* Experts out of the stream: what a group is, parts of an expert, guesses, recency.
 *
 * Group = layer (the draft block is the last one), item = expert; up to three parts: gate, up,
 * down, or a fused gate_up and down. In a model file each part is an extent of its own; a pack
 * holds them back to back in one.
 */
#include <string.h>

#include "engine/core.h"
#include "engine/gpu_core.h"

rg_stream_mode rg_experts_mode(uint32_t T) {
    return T <= RG_DECODE_ROWS ? RG_MODE_DECODE : RG_MODE_PREFILL;
}

static rg_stream_extent extent_of(const rg_tensor *t, uint32_t n_expert) {
    const uint64_t bytes = t->size_bytes / n_expert;
    return (rg_stream_extent){
        .file = t->file, .bytes = (uint32_t)bytes, .offset = t->offset, .stride = bytes};
}

static void groups_of_pack(const rg_pack *pack, uint32_t n_group, rg_stream_group *groups) {
    for (uint32_t i = 0; i < n_group; i++) {
        const rg_pack_group *p = rg_pack_group_at(pack, i);
        groups[i] = (rg_stream_group){
            .n_item = p->n_item,
            .n_extent = 1,
            .extents = {{.bytes = p->item_bytes, .offset = p->offset, .stride = p->stride}},
            .checksums = p->checksums};
    }
}

void rg_experts_groups(const rg_model *m, const rg_pack *pack, rg_stream_group *groups) {
    const uint32_t n_group = m->hp.n_layer + m->hp.n_mtp;
    if (pack) {
        groups_of_pack(pack, n_group, groups);
        return;
    }
    for (uint32_t i = 0; i < n_group; i++) {
        const rg_moe_desc *d = rg_model_moe(m, i);
        rg_stream_group *g = &groups[i];
        *g = (rg_stream_group){.n_item = m->hp.n_expert};
        g->extents[g->n_extent++] = extent_of(d->gate_up ? d->gate_up : d->gate, g->n_item);
        if (!d->gate_up) g->extents[g->n_extent++] = extent_of(d->up, g->n_item);
        g->extents[g->n_extent++] = extent_of(d->down, g->n_item);
    }
}

rg_code rg_experts_layout(rg_stream_layout *out, const rg_model *m, const rg_pack *pack,
                          rg_status *st) {
    const uint32_t n = m->hp.n_layer + m->hp.n_mtp;
    rg_stream_group *groups = rg_alloc(n, sizeof *groups, st);
    if (!groups) return RG_NOMEM;
    rg_experts_groups(m, pack, groups);
    const rg_code rc = rg_stream_layout_of(out, groups, n, st);
    rg_free(groups);
    return rc;
}

/* ---- opening -------------------------------------------------------------------------------- */

static rg_code check_arena(const rg_core *core, rg_status *st) {
    rg_stream_layout layout;
    RG_TRY(rg_experts_layout(&layout, core->model, core->opt.pack, st));
    const uint64_t least = rg_stream_min_bytes(&layout, core->hp->n_expert_used);
    if (core->opt.arena_bytes >= least) return RG_OK;
    return rg_fail(st, RG_INVALID,
                   "an arena of %llu bytes is too small: %u experts of %llu bytes take %llu",
                   (unsigned long long)core->opt.arena_bytes, core->hp->n_expert_used + 1,
                   (unsigned long long)layout.slot_bytes_max, (unsigned long long)least);
}

static rg_code open_stream(rg_core *core, rg_stream_group *groups, const char **paths,
                           rg_status *st) {
    rg_stream_options o = core->opt.io;
    const rg_pack *pack = core->opt.pack;
    o.n_file = pack ? 1 : rg_gguf_file_count(core->gguf);
    for (uint32_t i = 0; i < o.n_file; i++)
        paths[i] = pack ? rg_pack_path(pack) : rg_gguf_file_path(core->gguf, i);
    rg_experts_groups(core->model, pack, groups);
    o.paths = paths;
    o.groups = groups;
    o.n_group = core->hp->n_layer + core->hp->n_mtp;
    o.group_noun = "layer";
    o.item_noun = "expert";
    o.budget_bytes = core->opt.arena_bytes;
    rg_stream_landing landing;
    if (core->gpu) RG_TRY(rg_gpu_core_arena(core->gpu, &o, &landing, st));
    return rg_stream_create(&core->stream, &o, st);
}

rg_code rg_experts_open(rg_core *core, rg_status *st) {
    RG_TRY(check_arena(core, st));
    const size_t n_group = core->hp->n_layer + core->hp->n_mtp;
    const size_t pairs = (size_t)core->chunk * core->hp->n_expert_used;
    rg_stream_group *groups = rg_alloc(n_group, sizeof *groups, st);
    const char **paths = rg_alloc(rg_gguf_file_count(core->gguf), sizeof *paths, st);
    core->routes = rg_alloc(n_group * pairs, sizeof *core->routes, st);
    core->touched = rg_alloc(n_group * pairs, sizeof *core->touched, st);
    core->route_rows = rg_alloc(n_group, sizeof *core->route_rows, st);
    rg_code rc = RG_NOMEM;
    if (groups && paths && core->routes && core->touched && core->route_rows) {
        rc = open_stream(core, groups, paths, st);
    }
    rg_free(groups);
    rg_free(paths);
    return rc;
}

void rg_experts_close(rg_core *core) {
    rg_trace_close(core->trace);
    core->trace = NULL;
    rg_stream_destroy(core->stream);
    core->stream = NULL;
    rg_free(core->routes);
    rg_free(core->touched);
    rg_free(core->route_rows);
    core->routes = core->touched = core->route_rows = NULL;
    rg_ahead_close(core);
}

rg_expert_bytes rg_experts_at(const rg_core *core, const rg_moe_weights *w, uint32_t layer,
                              uint32_t expert) {
    rg_expert_bytes b = {.expert = expert};
    if (!core->stream) {
        b.gate = w->gate.mat.data + expert * w->gate.stride;
        b.up = w->up.mat.data + expert * w->up.stride;
        b.down = w->down.mat.data + expert * w->down.stride;
        return b;
    }
    const uint32_t item = rg_stream_item(core->stream, layer, expert);
    if (core->opt.pack) {
        const uint32_t *bytes = rg_pack_group_at(core->opt.pack, layer)->part_bytes;
        b.gate = rg_stream_payload(core->stream, item, 0);
        b.up = b.gate + (w->up_offset ? w->up_offset : bytes[0]);
        b.down = b.gate + bytes[0] + (w->up_offset ? 0 : bytes[1]);
        return b;
    }
    uint32_t part = 0;
    b.gate = rg_stream_payload(core->stream, item, part++);
    b.up = w->up_offset ? b.gate + w->up_offset : rg_stream_payload(core->stream, item, part++);
    b.down = rg_stream_payload(core->stream, item, part);
    return b;
}

/* ---- recency -------------------------------------------------------------------------------- */

static uint64_t expert_bytes(const rg_moe_weights *w) {
    return w->gate.stride + (w->up_offset ? 0 : w->up.stride) + w->down.stride;
}

void rg_experts_count_pending(rg_core *core, const rg_moe_weights *w, uint32_t layer,
                              const rg_turn *turn) {
    rg_layer_times *times = &core->layer_times[layer];
    const uint64_t bytes = expert_bytes(w);
    const uint32_t n_miss = turn->n_ready + turn->n_pending - turn->n_hit;
    const uint32_t n_urgent = n_miss < turn->n_pending ? n_miss : turn->n_pending;
    times->urgent_bytes += n_urgent * bytes;
    times->late_bytes += (turn->n_pending - n_urgent) * bytes;
}

void rg_experts_record(rg_core *core, uint32_t layer, uint32_t T) {
    const size_t pairs = (size_t)core->chunk * core->hp->n_expert_used;
    const size_t n = (size_t)T * core->hp->n_expert_used;
    const uint32_t base = rg_stream_item(core->stream, layer, 0);
    uint32_t *to = core->routes + layer * pairs;
    for (size_t i = 0; i < n; i++)
        to[i] = base + core->s.expert_ids[i];
    core->route_rows[layer] = T;
}

/* The first layer has no router in front of it: the usage profile guesses. */
static void guess_first(rg_core *core) {
    const uint32_t n = core->n_first_guess;
    if (!n) return;
    if (core->trace) rg_trace_ahead(core->trace, 0, core->first_guess, n, RG_MODE_DECODE);
    /* Item numbers of the first group are its expert numbers. */
    rg_stream_ahead(core->stream, 0, core->first_guess, n, UINT32_MAX, RG_MODE_DECODE);
}

static rg_code end_trace_window(const rg_core *core, bool failed, const uint32_t *touched,
                                uint32_t n, rg_status *st) {
    rg_trace_window w = {.failed = failed, .touched = touched, .n_touched = n};
    if (core->stream) {
        rg_stream_meters m;
        rg_stream_meters_get(core->stream, &m);
        w.lookahead = rg_stream_lookahead(core->stream);
        w.hits = m.hits;
        w.misses = m.misses;
    }
    return rg_trace_end_window(core->trace, &w, st);
}

rg_code rg_experts_touch(rg_core *core, bool failed, rg_status *st) {
    if (!core->stream) return core->trace ? end_trace_window(core, failed, NULL, 0, st) : RG_OK;
    const size_t pairs = (size_t)core->chunk * core->hp->n_expert_used;
    const uint32_t n_group = core->hp->n_layer + core->hp->n_mtp;
    size_t n = 0;
    for (uint32_t g = 0; g < n_group; g++) {
        const size_t rows = failed ? 0 : (size_t)core->route_rows[g] * core->hp->n_expert_used;
        memcpy(core->touched + n, core->routes + g * pairs, rows * sizeof *core->touched);
        n += rows;
        core->route_rows[g] = 0;
    }
    rg_stream_touch(core->stream, core->touched, (uint32_t)n);
    rg_code rc = RG_OK;
    if (core->trace) rc = end_trace_window(core, failed, core->touched, (uint32_t)n, st);
    guess_first(core);
    return rc;
}

/* ---- recording and the warm start ----------------------------------------------------------- */

static rg_code open_trace(rg_core *core, rg_status *st) {
    rg_trace_header h = {.n_used = core->hp->n_expert_used,
                         .chunk = core->chunk,
                         .arena_bytes = core->opt.arena_bytes,
                         .policy = core->opt.io.policy,
                         .guard_off = core->opt.io.guard_off,
                         .null_reads = core->opt.io.null_reads,
                         .lookahead = core->opt.io.lookahead,
                         .ahead_cost_permille = core->opt.io.ahead_cost_permille,
                         .depth = core->opt.io.depth,
                         .urgent_reserve = core->opt.io.urgent_reserve,
                         .n_group = core->hp->n_layer + core->hp->n_mtp};
    RG_TRY(rg_trace_identity(h.identity, core->gguf, core->model, st));
    h.groups = rg_alloc(h.n_group, sizeof *h.groups, st);
    if (!h.groups) return RG_NOMEM;
    rg_experts_groups(core->model, core->opt.pack, h.groups);
    const rg_code rc = rg_trace_create(&core->trace, core->opt.trace_path, &h, st);
    rg_free(h.groups);
    return rc;
}

/* A profile of another model, or of the model with or without its draft block, does not fit: its
 * items have other numbers. */
static rg_code check_profile(const rg_core *core, const rg_profile *p, rg_status *st) {
    uint8_t identity[RG_IDENTITY_BYTES];
    RG_TRY(rg_trace_identity(identity, core->gguf, core->model, st));
    const char *path = core->opt.profile_path;
    if (memcmp(identity, p->identity, sizeof identity) != 0) {
        return rg_fail(st, RG_INVALID,
                       "%s belongs to model %02x%02x%02x%02x, this is %02x%02x"
                       "%02x%02x",
                       path, p->identity[0], p->identity[1], p->identity[2], p->identity[3],
                       identity[0], identity[1], identity[2], identity[3]);
    }
    for (uint32_t g = 0; g < p->n_group; g++) {
        if (p->n_item[g] == core->hp->n_expert) continue;
        return rg_fail(st, RG_INVALID, "%s: layer %u has %u experts, the model %u", path, g,
                       p->n_item[g], core->hp->n_expert);
    }
    if (p->n_group >= core->hp->n_layer) return RG_OK;
    return rg_fail(st, RG_INVALID, "%s has %u layers, the model %u", path, p->n_group,
                   core->hp->n_layer);
}

/* Fills the arena's free slots with the most used experts, and remembers the first layer's. */
static rg_code warm(rg_core *core, const rg_profile *p, rg_status *st) {
    const uint32_t n_group = core->hp->n_layer + core->hp->n_mtp, X = core->hp->n_expert;
    const uint32_t n_known = p->n_group < n_group ? p->n_group : n_group;
    uint32_t *items = rg_alloc(p->n_total, sizeof *items, st);
    if (!items) return RG_NOMEM;
    uint32_t n = rg_profile_rank(p, 0, X, items);
    if (core->opt.io.lookahead == 0) n = 0;
    core->n_first_guess = n < RG_GUESSES_MAX ? n : RG_GUESSES_MAX;
    memcpy(core->first_guess, items, core->n_first_guess * sizeof *items);
    n = rg_profile_rank(p, 0, n_known * X, items);
    if (core->trace) rg_trace_warm(core->trace, items, n);
    const uint32_t taken = rg_stream_warm(core->stream, items, n);
    guess_first(core);
    rg_free(items);
    rg_log(RG_LOG_INFO, "%u of %u experts of the usage profile fill the arena", taken, n);
    return RG_OK;
}

static rg_code start_warm(rg_core *core, rg_status *st) {
    rg_profile p;
    rg_status why = {0};
    rg_code rc = rg_profile_read(&p, core->opt.profile_path, &why);
    if (rc == RG_OK) rc = check_profile(core, &p, &why);
    if (rc == RG_OK) {
        rc = warm(core, &p, &why);
    } else if (core->opt.profile_found && rc != RG_NOMEM) {
        rg_log(RG_LOG_WARN, "usage profile passed over: %s", why.message);
        rc = RG_OK;
    }
    rg_profile_deinit(&p);
    /* The message names the system's reason already. */
    return rc == RG_OK ? RG_OK : rg_fail(st, rc, "%s", why.message);
}

rg_code rg_experts_start(rg_core *core, rg_status *st) {
    /* A trace of resident experts records what streaming ones would guess. */
    if (core->stream || core->opt.trace_path) RG_TRY(rg_ahead_open(core, st));
    if (core->opt.trace_path) RG_TRY(open_trace(core, st));
    return core->stream && core->opt.profile_path ? start_warm(core, st) : RG_OK;
}
