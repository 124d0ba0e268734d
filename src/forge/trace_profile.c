/* regolith trace profile: uses of each expert over some traces. */
#include <string.h>

#include "forge/forge.h"
#include "forge/trace_walk.h"

static rg_code check_same(const rg_profile *p, const rg_trace_header *h, const char *path,
                          rg_status *st) {
    if (memcmp(p->identity, h->identity, sizeof p->identity) != 0) {
        return rg_fail(st, RG_INVALID,
                       "%s is of model %02x%02x%02x%02x, the traces before of %02x%02x%02x%02x",
                       path, h->identity[0], h->identity[1], h->identity[2], h->identity[3],
                       p->identity[0], p->identity[1], p->identity[2], p->identity[3]);
    }
    if (p->n_group != h->n_group) {
        return rg_fail(st, RG_INVALID,
                       "%s has %u layers, the traces before have %u (the draft block)", path,
                       h->n_group, p->n_group);
    }
    for (uint32_t g = 0; g < h->n_group; g++) {
        if (p->n_item[g] == h->groups[g].n_item) continue;
        return rg_fail(st, RG_INVALID, "%s: layer %u has %u experts, in the traces before %u", path,
                       g, h->groups[g].n_item, p->n_item[g]);
    }
    return RG_OK;
}

static rg_code start(rg_profile *p, const rg_trace_header *h, rg_status *st) {
    uint32_t n_item[RG_STREAM_GROUPS_MAX];
    for (uint32_t g = 0; g < h->n_group; g++)
        n_item[g] = h->groups[g].n_item;
    return rg_profile_init(p, h->identity, h->n_group, n_item, st);
}

static rg_code add_walk(rg_profile *p, rg_trace_walk *w, uint64_t *tokens, rg_status *st) {
    for (;;) {
        rg_trace_event e;
        bool more;
        RG_TRY(rg_trace_walk_next(w, &e, &more, st));
        if (!more) return RG_OK;
        if (e.kind != RG_TRACE_WINDOW) continue;
        uint32_t n;
        const uint32_t *items = rg_trace_walk_touched(w, &e, &n);
        for (uint32_t i = 0; i < n; i++)
            if (p->uses[items[i]] < UINT32_MAX) p->uses[items[i]]++;
        *tokens += e.accepted;
    }
}

static rg_code add_trace(rg_profile *p, const char *path, uint64_t *tokens, rg_status *st) {
    rg_trace_walk w;
    RG_TRY(rg_trace_walk_open(&w, path, st));
    const rg_trace_header *h = rg_trace_header_of(w.reader);
    rg_code rc = p->uses ? check_same(p, h, path, st) : start(p, h, st);
    if (rc == RG_OK) rc = add_walk(p, &w, tokens, st);
    rg_trace_walk_close(&w);
    return rc;
}

rg_code rg_forge_trace_profile(const char *const *traces, uint32_t n, const char *out_path,
                               rg_buf *out, rg_status *st) {
    rg_profile p = {0};
    uint64_t tokens = 0;
    uint32_t n_used = 0;
    rg_code rc = n ? RG_OK : rg_fail(st, RG_INVALID, "no trace was named");
    for (uint32_t i = 0; i < n && rc == RG_OK; i++)
        rc = add_trace(&p, traces[i], &tokens, st);
    if (rc == RG_OK) rc = rg_profile_write(&p, out_path, st);
    for (uint32_t i = 0; i < p.n_total; i++)
        n_used += p.uses[i] > 0;
    if (rc == RG_OK) {
        rc = rg_buf_printf(out, st, "%s: %u of %u experts used by %llu tokens of %u traces\n",
                           out_path, n_used, p.n_total, (unsigned long long)tokens, n);
    }
    rg_profile_deinit(&p);
    return rc;
}
