/* Any bytes as a trace and as a usage profile: every event is read, nothing beyond the input. */
#include "fuzz_target.h"

#include "engine/usage.h"

static void read_trace(const uint8_t *data, size_t size) {
    rg_trace_reader *r;
    if (rg_trace_parse(&r, data, size, "input", NULL) != RG_OK) return;
    const rg_trace_header *h = rg_trace_header_of(r);
    rg_trace_event e;
    bool more = true;
    while (rg_trace_next(r, &e, &more, NULL) == RG_OK && more) {
        RG_ASSERT(e.group < h->n_group);
        for (uint32_t i = 0; i < e.n && (e.kind == RG_TRACE_TURN || e.kind == RG_TRACE_AHEAD); i++)
            RG_ASSERT(e.values[i] < h->groups[e.group].n_item);
    }
    rg_trace_reader_destroy(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_trace(data, size);
    rg_profile p;
    if (rg_profile_parse(&p, data, size, "input", NULL) == RG_OK) {
        uint32_t *rank = rg_alloc(p.n_total, sizeof *rank, NULL);
        if (rank) RG_ASSERT(rg_profile_rank(&p, 0, p.n_total, rank) <= p.n_total);
        rg_free(rank);
    }
    rg_profile_deinit(&p);
    return 0;
}
