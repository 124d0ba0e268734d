#include "engine/plan.h"

#include <math.h>
#include <stdio.h>

#include "engine/gpu_core.h"

#define CHUNK_MIN      32u
#define CHUNK_AUTO_MAX 4096u
#define SCRATCH_SHARE  6u /* of scratch and arena together, at most one in this many for scratch */
/* The next larger chunk is taken when it saves this part of a token's cost. */
#define CHUNK_GAIN 0.1
/* Against reading a byte of a drive of 2.5 GB/s, measured on two cores: unpacking a byte of an
 * expert; multiplying a byte of weights with one more token. */
#define UNPACK_COST  0.35
#define PRODUCT_COST (1.0 / 72)
/* Buffers of the readers and stacks of the threads. */
#define IO_BYTES ((uint64_t)8 << 20)
/* Without --ram a tenth of the free memory, at least this, is left to others. */
#define MARGIN_BYTES ((uint64_t)512 << 20)

/* An n-gram table is loaded when it takes no more than this part of the budget. */
#define NGRAM_RESIDENT_PART 64u
#define NGRAM_CACHE_PART    256u

static uint64_t scratch_bytes(const rg_model *m, uint32_t chunk, int n_threads) {
    const rg_scratch_shape shape = {.model = m, .chunk = chunk, .n_threads = n_threads};
    rg_scratch s;
    rg_thread_scratch threads[RG_POOL_THREADS_MAX];
    const uint64_t pairs =
        (uint64_t)chunk * m->hp.n_expert_used * (m->hp.n_layer + m->hp.n_mtp) * sizeof(uint32_t);
    return rg_scratch_layout(&shape, &s, threads, NULL) + 2 * pairs; /* and the window's routes */
}

/* A small table is loaded; of others a cache holds rows, and what one chunk wants. */
static void choose_ngram(rg_plan *p, const rg_model *m) {
    rg_ple_reader_options o;
    if (!rg_ple_describe(&o, m, 1)) return;
    p->ngram_table_bytes = o.n_row * o.row_bytes;
    p->ngram_resident = p->ngram_table_bytes <= p->budget_bytes / NGRAM_RESIDENT_PART;
    const uint64_t part = p->budget_bytes / NGRAM_CACHE_PART;
    p->ngram_cache_bytes = part < RG_PLE_CACHE_DEFAULT ? part + 1 : RG_PLE_CACHE_DEFAULT;
}

static uint64_t ngram_bytes(const rg_plan *p, const rg_model *m, uint32_t chunk) {
    rg_ple_reader_options o;
    if (!rg_ple_describe(&o, m, chunk)) return 0;
    o.resident = p->ngram_resident;
    o.cache_bytes = p->ngram_cache_bytes;
    return rg_ple_reader_bytes(&o);
}

/* Bytes of the experts that a chunk touches, for each of its tokens: a chunk of c tokens touches
 * X (1 - (1 - K/X)^c) experts of a layer when uses are spread evenly, about four fifths of that as
 * measured on real text. */
static double touched_per_token(const rg_plan *p, const rg_model *m, uint32_t chunk) {
    const double X = m->hp.n_expert, K = m->hp.n_expert_used;
    return 0.8 * (1.0 - pow(1.0 - K / X, chunk)) * (double)p->experts_bytes / chunk;
}

/* The share of the experts that are not held. Chunk after chunk goes through all layers, so what is
 * held is worth no more than its share, however often it is used. */
static double missing_share(const rg_plan *p, uint64_t arena) {
    return 1.0 - fmin((double)arena / (double)p->slot_bytes / p->n_item, 1.0);
}

static double read_per_token(const rg_plan *p, const rg_model *m, uint32_t chunk, uint64_t arena) {
    return touched_per_token(p, m, chunk) * missing_share(p, arena);
}

/* What a token of a chunk costs, in bytes of reading: its part of the experts, read where they are
 * not held and unpacked once for the whole chunk, and the products that it has for itself. */
static double token_cost(const rg_plan *p, const rg_model *m, uint32_t chunk, uint64_t arena) {
    const double used =
        (double)p->experts_bytes * m->hp.n_expert_used / m->hp.n_expert + (double)p->trunk_bytes;
    return touched_per_token(p, m, chunk) * (missing_share(p, arena) + UNPACK_COST) +
           used * PRODUCT_COST;
}

/* The smallest chunk that makes a token nearly as cheap as it can be: a larger one shares an expert
 * among more tokens, but its scratch comes out of the arena. */
static void choose_chunk(rg_plan *p, const rg_model *m, const rg_plan_request *req,
                         uint64_t fixed_bytes) {
    double best = HUGE_VAL;
    for (uint32_t c = CHUNK_MIN; c <= CHUNK_AUTO_MAX; c *= 2) {
        const uint64_t scratch = scratch_bytes(m, c, req->n_threads) + ngram_bytes(p, m, c);
        if (fixed_bytes + scratch + p->arena_min_bytes > p->budget_bytes) break;
        /* Decode lives on the arena: prefill may take a share of it, not the most. */
        const uint64_t room = p->budget_bytes - fixed_bytes;
        if (p->chunk && scratch > room / SCRATCH_SHARE) break;
        const uint64_t arena = p->budget_bytes - fixed_bytes - scratch;
        const double cost = token_cost(p, m, c, arena);
        /* Where nothing is read a wider chunk takes nothing from anyone, up to the default. */
        const bool spare = missing_share(p, arena) <= 0.0 && c <= RG_CHUNK_DEFAULT;
        if (!spare && cost > best * (1.0 - CHUNK_GAIN)) break;
        best = cost;
        p->chunk = c;
    }
}

static rg_code measure(rg_plan *p, const rg_model *m, const rg_plan_request *req, rg_status *st) {
    rg_stream_layout layout;
    RG_TRY(rg_experts_layout(&layout, m, req->pack, st));
    RG_TRY(rg_weights_count(&p->trunk_bytes, &p->experts_bytes, m, st));
    const rg_seq_options seq = {
        .n_ctx = req->n_ctx, .kv = req->kv, .mtp = req->mtp, .draft_max = req->draft_max};
    const rg_drafter_options drafter = {.mode = RG_DRAFT_AUTO};
    p->n_session = req->n_session ? req->n_session : 1;
    p->snapshot_bytes = req->snapshot_bytes;
    p->seq_bytes = rg_seq_bytes_for(m, &seq, req->n_threads);
    if (req->draft_max) p->seq_bytes += rg_drafter_bytes(&drafter, req->n_ctx);
    p->state_bytes = p->n_session * p->seq_bytes + p->snapshot_bytes;
    p->host_bytes = req->host_bytes;
    p->io_bytes = IO_BYTES;
    p->ahead_bytes = rg_ahead_bytes(m);
    p->head_bytes = req->two_stage_head ? rg_two_stage_bytes(m) : 0;
    p->slot_bytes = layout.slot_bytes_max;
    p->gpu_arena = req->gpu_arena;
    if (req->gpu_arena == RG_GPU_ARENA_STAGED)
        p->staging_bytes = rg_gpu_staging_bytes(p->slot_bytes, req->io_depth);
    p->arena_min_bytes = rg_stream_min_bytes(&layout, m->hp.n_expert_used);
    p->n_item = m->hp.n_expert * (m->hp.n_layer + m->hp.n_mtp);
    p->n_ctx = req->n_ctx;
    return RG_OK;
}

static rg_code refuse(const rg_plan *p, uint64_t need, rg_status *st) {
    char staging[48] = "";
    if (p->staging_bytes)
        snprintf(staging, sizeof staging, " + staging %llu",
                 (unsigned long long)((p->staging_bytes + ((1u << 20) - 1)) >> 20));
    return rg_fail(
        st, RG_INVALID,
        "%s of %llu MiB is too small: trunk %llu + state %llu + scratch %llu + host "
        "%llu + n-gram rows %llu%s + arena at least %llu = %llu MiB",
        p->automatic ? "free memory" : "a budget", (unsigned long long)(p->budget_bytes >> 20),
        (unsigned long long)(p->trunk_bytes >> 20), (unsigned long long)(p->state_bytes >> 20),
        (unsigned long long)(p->scratch_bytes >> 20),
        (unsigned long long)((p->host_bytes + p->io_bytes + p->ahead_bytes + p->head_bytes) >> 20),
        (unsigned long long)(p->ngram_bytes >> 20), staging,
        (unsigned long long)((p->arena_min_bytes + ((1u << 20) - 1)) >> 20),
        (unsigned long long)((need + ((1u << 20) - 1)) >> 20));
}

static uint64_t asked_arena(const rg_plan *p, const rg_plan_request *req) {
    if (req->arena_bytes) return req->arena_bytes;
    return (uint64_t)req->arena_experts * p->slot_bytes;
}

static rg_code check_request(const rg_plan_request *req, rg_status *st) {
    if (req->n_threads < 1 || req->n_threads > RG_POOL_THREADS_MAX) {
        return rg_fail(st, RG_INVALID, "%d threads wanted, 1..%d are possible", req->n_threads,
                       RG_POOL_THREADS_MAX);
    }
    if (req->chunk > RG_CHUNK_MAX) {
        return rg_fail(st, RG_INVALID, "chunks of %u tokens are wanted, %u are possible",
                       req->chunk, RG_CHUNK_MAX);
    }
    return RG_OK;
}

rg_code rg_plan_make(rg_plan *p, const rg_model *m, const rg_plan_request *req, rg_status *st) {
    *p = (rg_plan){.budget_bytes = req->ram_bytes, .automatic = !req->ram_bytes};
    RG_TRY(check_request(req, st));
    RG_TRY(measure(p, m, req, st));
    if (p->automatic) {
        const uint64_t avail = rg_mem_available_bytes() + rg_alloc_live_bytes();
        const uint64_t margin = avail / 10 > MARGIN_BYTES ? avail / 10 : MARGIN_BYTES;
        p->budget_bytes = avail > margin ? avail - margin : 0;
    }
    choose_ngram(p, m);
    const uint64_t fixed = p->trunk_bytes + p->state_bytes + p->host_bytes + p->io_bytes +
                           p->ahead_bytes + p->head_bytes + p->staging_bytes;
    const uint64_t asked = asked_arena(p, req);
    p->chunk = req->chunk;
    if (!p->chunk && !asked) choose_chunk(p, m, req, fixed);
    if (!p->chunk) p->chunk = asked ? RG_CHUNK_DEFAULT : CHUNK_MIN;
    p->scratch_bytes = scratch_bytes(m, p->chunk, req->n_threads);
    p->ngram_bytes = ngram_bytes(p, m, p->chunk);
    uint64_t rest = fixed + p->scratch_bytes + p->ngram_bytes;
    const uint64_t streaming = p->ahead_bytes + p->staging_bytes; /* none of it when all fit */
    if (asked) {
        p->arena_bytes = asked;
    } else if (rest - streaming + p->experts_bytes <= p->budget_bytes) {
        p->resident = true;
        rest -= streaming;
        p->ahead_bytes = p->staging_bytes = 0;
        p->arena_bytes = p->experts_bytes;
        p->n_slot = p->n_item;
    } else if (rest + p->arena_min_bytes > p->budget_bytes) {
        return refuse(p, rest + p->arena_min_bytes, st);
    } else {
        p->arena_bytes = p->budget_bytes - rest;
    }
    p->packed = req->pack && !p->resident;
    if (!p->resident) p->n_slot = (uint32_t)(p->arena_bytes / p->slot_bytes);
    p->total_bytes = rest + p->arena_bytes;
    if (p->total_bytes > p->budget_bytes && !p->automatic) return refuse(p, p->total_bytes, st);
    p->read_bytes_per_token = p->resident ? 0.0 : read_per_token(p, m, p->chunk, p->arena_bytes);
    return RG_OK;
}

static rg_code line(rg_buf *out, const char *what, uint64_t bytes, const char *note,
                    rg_status *st) {
    return rg_buf_printf(out, st, "  %-11s %10.1f MiB  %s\n", what, (double)bytes / 0x1p20, note);
}

static const char *place_of(rg_gpu_arena arena) {
    if (arena == RG_GPU_ARENA_HOST) return " in memory of the host, which the device reads";
    return arena == RG_GPU_ARENA_AUTO ? "" : " on the device";
}

rg_code rg_plan_print(const rg_plan *p, rg_buf *out, rg_status *st) {
    char note[160];
    RG_TRY(line(out, "trunk", p->trunk_bytes, "weights that stay in memory", st));
    if (p->n_session == 1 && !p->snapshot_bytes) {
        snprintf(note, sizeof note, "a context of %u tokens", p->n_ctx);
    } else {
        snprintf(note, sizeof note, "%u context%s of %u tokens, %.1f MiB of earlier states",
                 p->n_session, p->n_session == 1 ? "" : "s", p->n_ctx,
                 (double)p->snapshot_bytes / 0x1p20);
    }
    RG_TRY(line(out, "state", p->state_bytes, note, st));
    snprintf(note, sizeof note, "prefill in chunks of %u tokens, given back after it", p->chunk);
    RG_TRY(line(out, "scratch", p->scratch_bytes, note, st));
    RG_TRY(line(out, "host", p->host_bytes + p->io_bytes, "vocabulary, metadata, threads", st));
    if (p->ahead_bytes) {
        RG_TRY(line(out, "look-ahead", p->ahead_bytes, "8-bit copies of the routers", st));
    }
    if (p->head_bytes) {
        RG_TRY(line(out, "head", p->head_bytes, "3-bit copy of the output matrix", st));
    }
    if (p->ngram_bytes) {
        if (p->ngram_resident) {
            snprintf(note, sizeof note, "the whole table");
        } else {
            snprintf(note, sizeof note, "read as tokens come from a table of %.1f MiB",
                     (double)p->ngram_table_bytes / 0x1p20);
        }
        RG_TRY(line(out, "n-gram rows", p->ngram_bytes, note, st));
    }
    if (p->staging_bytes) {
        RG_TRY(line(out, "staging", p->staging_bytes,
                    "memory of the host that experts pass on their way to the device", st));
    }
    if (p->resident) {
        snprintf(note, sizeof note, "all %u experts", p->n_item);
    } else {
        snprintf(note, sizeof note, "arena%s: %u slots for %u experts (%.1f %% of %.1f MiB)",
                 place_of(p->gpu_arena), p->n_slot, p->n_item,
                 100.0 * (double)p->arena_bytes / (double)p->experts_bytes,
                 (double)p->experts_bytes / 0x1p20);
    }
    RG_TRY(line(out, "experts", p->arena_bytes, note, st));
    RG_TRY(line(out, "sum", p->total_bytes, "", st));
    RG_TRY(line(out, "budget", p->budget_bytes,
                p->automatic ? "free memory less a margin" : "given", st));
    if (p->resident) return RG_OK;
    return rg_buf_printf(out, st, "  a cold prefill reads about %.1f MiB a token from the %s\n",
                         p->read_bytes_per_token / 0x1p20, p->packed ? "pack" : "model file");
}
