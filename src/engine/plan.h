/* plan: where a memory budget goes. Trunk + state + scratch + host + n-gram rows + staging + arena
 * <= budget.
 *
 * Pure arithmetic over the description of a model; a budget that cannot work is refused with the
 * sum.
 */
#ifndef RG_ENGINE_PLAN_H
#define RG_ENGINE_PLAN_H

#include "base/base.h"
#include "model/model.h"

typedef struct rg_plan_request {
    uint64_t ram_bytes;     /* the whole budget; 0 = what the machine has free */
    uint64_t arena_bytes;   /* the arena asked for; 0 = what the budget leaves */
    uint32_t arena_experts; /* or that many slots of the largest expert */
    uint64_t host_bytes;    /* tokenizer, metadata, program: measured by the caller */
    uint32_t chunk;         /* 0 = chosen here */
    uint32_t n_ctx;
    uint32_t n_session;      /* sequences of n_ctx at once; 0 = 1 */
    uint64_t snapshot_bytes; /* kept for states of earlier lengths */
    rg_kv_type kv;
    uint32_t draft_max;
    bool two_stage_head;
    bool mtp;
    int n_threads;
    const rg_pack *pack;    /* what experts would stream from; NULL: the model file */
    rg_gpu_arena gpu_arena; /* where they would lie for a GPU; AUTO: the CPU computes */
    uint32_t io_depth;      /* reads in flight; 0: the usual */
} rg_plan_request;

typedef struct rg_plan {
    uint64_t budget_bytes; /* given, or found free */
    bool automatic;        /* found free */
    bool resident;         /* every expert is loaded, nothing streams */
    bool packed;           /* experts stream from a pack */
    uint32_t n_session;
    uint64_t snapshot_bytes;
    uint64_t seq_bytes; /* of one sequence; state_bytes is all of them and the snapshots */
    uint64_t trunk_bytes, state_bytes, scratch_bytes, host_bytes, io_bytes;
    uint64_t ahead_bytes;       /* of what the next layer's experts are guessed with */
    uint64_t head_bytes;        /* of the two-stage head's copy of the output matrix */
    uint64_t staging_bytes;     /* of the host, that experts pass on their way to a GPU */
    uint64_t ngram_bytes;       /* of the n-gram table's rows in memory; 0 without a table */
    uint64_t ngram_cache_bytes; /* of their cache, as asked for */
    uint64_t ngram_table_bytes;
    bool ngram_resident;  /* the table is loaded */
    uint64_t arena_bytes; /* of the arena, or of all experts when resident */
    rg_gpu_arena gpu_arena;
    uint64_t total_bytes;
    uint64_t experts_bytes; /* of all experts in the file */
    uint64_t slot_bytes;    /* of the largest expert */
    uint64_t arena_min_bytes;
    uint32_t n_slot, n_item;
    uint32_t chunk, n_ctx;
    double read_bytes_per_token; /* expected of a cold prefill */
} rg_plan;

/* INVALID with the sum when the budget cannot hold the parts and the smallest arena. */
RG_MUST_CHECK rg_code rg_plan_make(rg_plan *out, const rg_model *m, const rg_plan_request *req,
                                   rg_status *st);
/* The table. */
RG_MUST_CHECK rg_code rg_plan_print(const rg_plan *p, rg_buf *out, rg_status *st);

#endif
