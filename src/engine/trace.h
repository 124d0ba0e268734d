/* trace: a file of everything that a run asked of its experts, so that caches and read-ahead can be
 * compared without the model.
 *
 * Layout (little-endian): "RGTRACE1", u32 header bytes, header, then events:
 *     u8 kind, u8 flags, u16 group, u32 rows, u32 n, then n values:
 *     TURN    routes, u16 expert [rows][n_used]; what was wanted are the distinct ones, ascending
 *     AHEAD   guesses for a group, u16, best first
 *     WARM    items filled at the start, u32, warmest first
 *     WINDOW  closes a window: u32 accepted rows, read-ahead depth from now on, hits, misses; then,
 *             when flags has EXPLICIT, n items (u32) that were touched, else all routes in order
 * Flags 1 of TURN and AHEAD: in prefill. Events are flushed a window at a time: a run that was
 * killed leaves a file of whole windows.
 *
 * A writer belongs to the engine's worker, a reader to whoever opened it.
 */
#ifndef RG_ENGINE_TRACE_H
#define RG_ENGINE_TRACE_H

#include "base/base.h"
#include "model/model.h"
#include "stream/stream.h"

#define RG_IDENTITY_BYTES      16u
#define RG_TRACE_ROWS_MAX      65536u
#define RG_TRACE_BYTES_MAX     ((size_t)4 << 30)
#define RG_TRACE_ARENA_MAX     ((uint64_t)1 << 46)
#define RG_TRACE_GROUP_ITEMS   65536u /* experts of a layer: numbers are 16 bits wide */
#define RG_TRACE_LOOKAHEAD_MAX 1024

/* The model's identity as bytes. */
RG_MUST_CHECK rg_code rg_trace_identity(uint8_t out[RG_IDENTITY_BYTES], const rg_gguf *g,
                                        const rg_model *m, rg_status *st);

typedef struct rg_trace_header {
    uint8_t identity[RG_IDENTITY_BYTES];
    uint32_t n_used;      /* experts of a row */
    uint32_t chunk;       /* rows of a window at most */
    uint64_t arena_bytes; /* 0: every expert was in memory */
    /* As in rg_stream_options. */
    rg_stream_policy policy;
    bool guard_off, null_reads;
    int32_t lookahead;
    uint32_t ahead_cost_permille, depth, urgent_reserve;
    uint32_t n_group;
    rg_stream_group *groups; /* [n_group] without checksums */
} rg_trace_header;

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct rg_trace rg_trace;

/* Replaces the file. The header is copied. */
RG_MUST_CHECK rg_code rg_trace_create(rg_trace **out, const char *path, const rg_trace_header *h,
                                      rg_status *st);
/* Events of the window in progress; a failure shows at its end. */
void rg_trace_turn(rg_trace *t, uint32_t group, const uint32_t *ids, uint32_t rows,
                   rg_stream_mode mode);
void rg_trace_ahead(rg_trace *t, uint32_t group, const uint32_t *experts, uint32_t n,
                    rg_stream_mode mode);
void rg_trace_warm(rg_trace *t, const uint32_t *items, uint32_t n);

typedef struct rg_trace_window {
    bool failed;
    const uint32_t *touched; /* [n_touched] items; NULL: all routes, or none when failed */
    uint32_t n_touched;
    uint32_t lookahead;
    uint64_t hits, misses; /* counted since the stream was opened */
} rg_trace_window;

/* Writes the window's events out. */
RG_MUST_CHECK rg_code rg_trace_end_window(rg_trace *t, const rg_trace_window *w, rg_status *st);
/* What has no window yet is written too. NULL is allowed; a failure is logged. */
void rg_trace_close(rg_trace *t);

/* ---- reading -------------------------------------------------------------------------------- */

typedef enum rg_trace_kind {
    RG_TRACE_TURN = 1,
    RG_TRACE_AHEAD,
    RG_TRACE_WARM,
    RG_TRACE_WINDOW
} rg_trace_kind;

typedef struct rg_trace_event {
    rg_trace_kind kind;
    rg_stream_mode mode; /* TURN, AHEAD */
    uint32_t group, rows;
    /* TURN: experts [rows * n_used]; AHEAD: experts; WARM, WINDOW: items. Borrowed until the next
     * event. */
    const uint32_t *values;
    uint32_t n;
    /* WINDOW */
    bool failed, explicit_touch;
    uint32_t accepted, lookahead, hits, misses;
} rg_trace_event;

typedef struct rg_trace_reader rg_trace_reader;

RG_MUST_CHECK rg_code rg_trace_open(rg_trace_reader **out, const char *path, rg_status *st);
/* The same over bytes in memory, borrowed. `name` is for messages. */
RG_MUST_CHECK rg_code rg_trace_parse(rg_trace_reader **out, const void *data, size_t size,
                                     const char *name, rg_status *st);
void rg_trace_reader_destroy(rg_trace_reader *r);
const rg_trace_header *rg_trace_header_of(const rg_trace_reader *r);
/* The next event; *more is false at the end of the file. */
RG_MUST_CHECK rg_code rg_trace_next(rg_trace_reader *r, rg_trace_event *out, bool *more,
                                    rg_status *st);
void rg_trace_rewind(rg_trace_reader *r);

#endif
