/* Ops: which program, which constants, which grid. */
#include <string.h>

#include "kernels/gpu/gpu_ops.h"

/* ---- tables --------------------------------------------------------------------------------- */

/* Words, in the order of codes.glsl. */
#define TABLE_WORDS 8488u

static void put(uint32_t *words, size_t at, const void *from, size_t bytes) {
    memcpy(words + at, from, bytes);
}

rg_code rg_gpu_tables_create(rg_gpu *gpu, rg_gpu_buffer *out, rg_status *st) {
    uint32_t *words = rg_alloc(TABLE_WORDS, sizeof *words, st);
    *out = (rg_gpu_buffer){0};
    if (!words) return RG_NOMEM;
    put(words, 0, rg_grid_iq2xxs, sizeof rg_grid_iq2xxs);
    put(words, 512, rg_grid_iq2xs, sizeof rg_grid_iq2xs);
    put(words, 1536, rg_grid_iq2s, sizeof rg_grid_iq2s);
    put(words, 3584, rg_grid_iq1s, sizeof rg_grid_iq1s);
    put(words, 7680, rg_grid_iq3xxs, sizeof rg_grid_iq3xxs);
    put(words, 7936, rg_grid_iq3s, sizeof rg_grid_iq3s);
    put(words, 8448, rg_ksigns_iq2xs, sizeof rg_ksigns_iq2xs);
    put(words, 8480, rg_kvalues_iq4nl, sizeof rg_kvalues_iq4nl);
    put(words, 8484, rg_kvalues_mxfp4, sizeof rg_kvalues_mxfp4);
    rg_code rc = rg_gpu_buffer_create(gpu, out, TABLE_WORDS * sizeof *words, RG_GPU_DEVICE, st);
    if (rc == RG_OK) rc = rg_gpu_write(gpu, out, 0, words, TABLE_WORDS * sizeof *words, st);
    rg_free(words);
    return rc;
}

bool rg_gpu_computes(rg_type type) {
    const rg_type_info *info = rg_type_get((uint32_t)type);
    return info && info->use == RG_USE_WEIGHT;
}

/* ---- products ------------------------------------------------------------------------------- */

#define GRID_MAX    65535u /* workgroups on a side that every device takes */
#define ROW_THREADS 128u   /* of a workgroup of mul_rows */
#define CLASSES     8u     /* of a stream: product.glsl */
#define FEW         256u   /* workgroups that keep a large device busy */
#define FEW_TILES   128u
#define NARROW      64u /* matrices of so few rows would leave it idle in tiles */

bool rg_gpu_takes_floats(rg_type type) {
    return type == RG_TYPE_F32 || type == RG_TYPE_F16 || type == RG_TYPE_BF16;
}

size_t rg_gpu_act_bytes(uint32_t n) {
    return ((size_t)n + n / 4 + 15) / 16 * 16;
}

static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* Streams of a row: part of the canonical order of sums, so a function of the row and of its kind
 * alone. Rows of floats are few and wait on their loads: more lanes, shorter ways. */
static uint32_t streams_of(uint32_t n_in, bool floats) {
    const uint32_t eights = ceil_div(n_in, 32 * CLASSES);
    if (floats) return eights <= 1 ? 1 : eights <= 2 ? 2 : eights <= 4 ? 4 : eights <= 8 ? 8 : 16;
    return eights <= 4 ? 1 : eights <= 12 ? 2 : eights <= 24 ? 4 : 8;
}

/* Rows of a workgroup of mul_rows when a lane takes `rows`. */
static uint32_t tile_rows(uint32_t streams, uint32_t rows) {
    return ROW_THREADS / (CLASSES * streams) * rows;
}

static uint32_t streams_for(const rg_gpu_product *p, const rg_gpu_product_way *way) {
    return streams_of(p->n_in, rg_gpu_takes_floats(way->type));
}

#define INTERLEAVED_FORM 64u /* behind the types: codes.glsl */

/* What the programs call weights of this type in this layout. */
static uint32_t form_of(const rg_gpu_product_way *way) {
    return (uint32_t)way->type + (way->interleaved ? INTERLEAVED_FORM : 0);
}

/* A lane takes whole pairs of interleaved rows. */
static uint32_t whole_rows(const rg_gpu_product_way *way, uint32_t rows) {
    return way->interleaved && rows < 2 ? 2 : rows;
}

/* Rows of a lane for slots. */
static uint32_t slot_rows(uint32_t n_in, const rg_gpu_product_way *way) {
    if (way->interleaved) return whole_rows(way, way->group_rows);
    if (way->group_rows) return way->group_rows;
    return streams_of(n_in, rg_gpu_takes_floats(way->type)) <= 2 ? 2 : 1;
}

/* Rows of a lane; changes no bit. */
static uint32_t lane_rows(const rg_gpu_product *p, const rg_gpu_product_way *way, uint32_t cols) {
    if (way->group_rows) return whole_rows(way, way->group_rows);
    uint32_t rows = cols == 1 && !way->interleaved ? 2 : 4;
    const uint32_t n_out = p->n_out + p->n_out2;
    while (rows > 1 && (rows * cols > 16 || n_out / tile_rows(streams_for(p, way), rows) < FEW))
        rows /= 2;
    return whole_rows(way, rows);
}

#define UNROLL_MAX 6u /* eights of a stream whose loop is written out */

static rg_gpu_kernel rows_kernel(const rg_gpu_product *p, const rg_gpu_product_way *way,
                                 uint32_t rows, uint32_t cols, bool pair) {
    const uint32_t streams = streams_for(p, way);
    const uint32_t share = ceil_div(ceil_div(p->n_in, 32 * CLASSES), streams);
    const bool coding = way->coding && !rg_gpu_takes_floats(way->type);
    RG_ASSERT(!coding || p->n_in % 32 == 0);
    RG_ASSERT(!p->n_out2 || (!pair && !way->fused));
    return (rg_gpu_kernel){.program = "mul_rows",
                           .spec = {form_of(way), cols, rows, streams, (uint32_t)way->epilogue,
                                    pair, way->fused, p->n_in, coding,
                                    !way->loop && share <= UNROLL_MAX,
                                    p->n_out2 ? 1 + (uint32_t)way->epilogue2 : 0},
                           .n_spec = 11};
}

bool rg_gpu_has_matrix(const rg_gpu_info *info, rg_type type) {
    return info->matrix && !rg_gpu_takes_floats(type) && type != RG_TYPE_NVFP4;
}

/* Whether matrix units make the tiles. */
static bool by_matrix(const rg_gpu_list *list, const rg_gpu_product_way *way) {
    return !way->no_matrix && rg_gpu_has_matrix(rg_gpu_list_info(list), way->type);
}

/* Bytes of a table of mul_mat.comp's types in shared memory, and of what its tiles take. */
static uint32_t table_bytes(rg_type type) {
    switch (type) {
    case RG_TYPE_IQ2_XXS:
    case RG_TYPE_IQ3_S:
        return 2048;
    case RG_TYPE_IQ2_XS:
        return 4096;
    case RG_TYPE_IQ2_S:
        return 8192;
    case RG_TYPE_IQ3_XXS:
        return 1024;
    case RG_TYPE_IQ1_S:
    case RG_TYPE_IQ1_M:
        return 16384;
    case RG_TYPE_IQ4_NL:
    case RG_TYPE_IQ4_XS:
    case RG_TYPE_MXFP4:
        return 256;
    default:
        return 64;
    }
}

#define TILE_FIXED 2048u /* numbers of elements, slots */
#define TILE_W     4096u /* of a group: 64 rows of W and their scales */
#define TILE_COL   104u  /* of a group and column: codes, second halves, scale, sum */
#define DEPTH_MAX  6u

/* Groups of a class that shared memory holds, no more than a stream has. */
static uint32_t depth_of(const rg_gpu_list *list, const rg_gpu_product *p,
                         const rg_gpu_product_way *way, uint32_t side) {
    const uint32_t eights = ceil_div(p->n_in, 32 * CLASSES);
    const uint32_t share = ceil_div(eights, streams_for(p, way));
    const uint32_t room =
        rg_gpu_list_info(list)->shared_bytes - TILE_FIXED - table_bytes(way->type);
    uint32_t depth = room / (TILE_W + 16 * side * TILE_COL);
    if (way->depth && depth > way->depth) depth = way->depth;
    if (depth > DEPTH_MAX) depth = DEPTH_MAX;
    return depth < 1 ? 1 : depth < share ? depth : share;
}

static rg_gpu_kernel tile_kernel(const rg_gpu_list *list, const rg_gpu_product *p,
                                 const rg_gpu_product_way *way, uint32_t side, bool pair,
                                 uint32_t part) {
    const uint32_t type = form_of(way), end = (uint32_t)way->epilogue;
    const uint32_t streams = streams_for(p, way);
    if (!by_matrix(list, way))
        return (rg_gpu_kernel){
            .program = "mul_tile", .spec = {type, side, end, pair, streams, part}, .n_spec = 6};
    return (rg_gpu_kernel){
        .program = "mul_mat",
        .spec = {type, side, end, pair, streams, depth_of(list, p, way, side), p->n_in, part},
        .n_spec = 8};
}

/* Few tiles of long rows leave most of a device idle: their classes are shared among workgroups. */
#define PART_STREAMS 4u   /* rows of so many streams are long */
#define PART_GROUPS  512u /* workgroups wanted */
#define PART_SIDE    4u
#define PLANES_MAX   ((size_t)96 << 20)

static uint32_t part_tiles(uint32_t n_out, uint32_t n) {
    return ceil_div(n_out, RG_GPU_TILE_ROWS) * ceil_div(n, 16 * PART_SIDE);
}

size_t rg_gpu_planes_bytes(rg_type type, uint32_t n_in, uint32_t n_out, uint32_t n) {
    const bool floats = rg_gpu_takes_floats(type);
    const uint32_t streams = streams_of(n_in, floats);
    if (floats || streams < PART_STREAMS || n <= RG_GPU_ROWS_MAX || n_out <= NARROW) return 0;
    if (part_tiles(n_out, n) >= PART_GROUPS / 2) return 0;
    const size_t bytes = (size_t)CLASSES * streams * n * n_out * sizeof(float);
    return bytes <= PLANES_MAX ? bytes : 0;
}

/* Classes of a workgroup; 0: all of them. */
static uint32_t part_of(const rg_gpu_product *p, const rg_gpu_product_way *way) {
    const size_t bytes = rg_gpu_planes_bytes(way->type, p->n_in, p->n_out, p->n);
    uint32_t part = CLASSES * streams_for(p, way);
    if (!bytes || !way->planes || bytes > way->planes_bytes || way->side) return 0;
    const uint32_t tiles = part_tiles(p->n_out, p->n), all = part;
    while (part > 1 && tiles * (all / part) < PART_GROUPS)
        part /= 2;
    return part < all ? part : 0;
}

static void mul_in_parts(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way,
                         uint32_t part) {
    const uint32_t planes = CLASSES * streams_for(p, way);
    const rg_gpu_kernel k = tile_kernel(list, p, way, PART_SIDE, false, part);
    rg_gpu_product parts = *p, sum = *p;
    parts.y = sum.w = way->planes;
    rg_gpu_dispatch(list, &k, &parts, sizeof parts,
                    (rg_gpu_grid){ceil_div(p->n_out, RG_GPU_TILE_ROWS),
                                  ceil_div(p->n, 16 * PART_SIDE), planes / part});
    rg_gpu_barrier(list); /* planes */
    const rg_gpu_kernel add = {
        .program = "sum_planes", .spec = {0, (uint32_t)way->epilogue, planes}, .n_spec = 3};
    rg_gpu_list_moves(list, ((uint64_t)planes + 1) * p->n * p->n_out * sizeof(float));
    rg_gpu_dispatch(list, &add, &sum, sizeof sum,
                    (rg_gpu_grid){ceil_div(p->n * p->n_out, ROW_THREADS), 1, 1});
}

bool rg_gpu_mul_codes(rg_type type, uint32_t n_in) {
    /* Shared memory holds eight rows of codes and the table of the type. */
    return !rg_gpu_takes_floats(type) && n_in % 32 == 0 && n_in <= 1024 && type != RG_TYPE_IQ1_S &&
           type != RG_TYPE_IQ1_M;
}

void rg_gpu_product_counts(rg_gpu_list *list, const rg_gpu_product *p,
                           const rg_gpu_product_way *way, uint32_t matrices, uint32_t n) {
    const bool f32 = rg_gpu_takes_floats(way->type) || way->coding;
    const uint64_t x = f32 ? (uint64_t)p->n_in * sizeof(float) : rg_gpu_act_bytes(p->n_in);
    const uint64_t n_out = (uint64_t)p->n_out + p->n_out2, w_rows = n_out * (way->fused ? 2 : 1);
    const uint64_t bytes = matrices * w_rows * p->row_bytes + n * (x + n_out * sizeof(float));
    rg_gpu_list_moves(list, matrices ? bytes : 0);
    rg_gpu_list_multiplies(list, n * w_rows * p->n_in);
}

void rg_gpu_mul(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way) {
    _Static_assert(sizeof *p == RG_GPU_PUSH_BYTES_MAX, "as product.glsl");
    rg_gpu_product_counts(list, p, way, 1, p->n);
    const bool narrow = p->n_out <= NARROW && !way->side;
    if (p->n <= RG_GPU_ROWS_MAX || narrow) {
        const uint32_t cols = p->n <= RG_GPU_ROWS_MAX ? p->n : RG_GPU_ROWS_MAX;
        const uint32_t rows = lane_rows(p, way, cols);
        const rg_gpu_kernel k = rows_kernel(p, way, rows, cols, false);
        const uint32_t tile = tile_rows(streams_for(p, way), rows);
        const uint32_t groups = ceil_div(p->n_out, tile) + ceil_div(p->n_out2, tile);
        rg_gpu_dispatch(list, &k, p, sizeof *p, (rg_gpu_grid){groups, ceil_div(p->n, cols), 1});
        return;
    }
    RG_ASSERT(!p->n_out2);
    const uint32_t part = part_of(p, way);
    if (part) {
        mul_in_parts(list, p, way, part);
        return;
    }
    uint32_t side = way->side ? way->side : p->n <= 16 ? 1 : p->n <= 32 ? 2 : 4;
    if (!way->side && p->n > 64 && by_matrix(list, way)) side = 8;
    /* Matrices of few rows make few tiles: smaller ones keep the device busy. */
    while (!way->side && side > 1 &&
           ceil_div(p->n_out, RG_GPU_TILE_ROWS) * ceil_div(p->n, 16 * side) < FEW_TILES)
        side /= 2;
    const rg_gpu_kernel k = tile_kernel(list, p, way, side, false, 0);
    rg_gpu_dispatch(
        list, &k, p, sizeof *p,
        (rg_gpu_grid){ceil_div(p->n_out, RG_GPU_TILE_ROWS), ceil_div(p->n, 16 * side), 1});
}

uint32_t rg_gpu_slot_groups(uint32_t n_in, uint32_t n_out, const rg_gpu_product_way *way) {
    const uint32_t streams = streams_of(n_in, rg_gpu_takes_floats(way->type));
    return ceil_div(n_out, tile_rows(streams, slot_rows(n_in, way)));
}

void rg_gpu_mul_slots(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way,
                      const rg_gpu_buffer *grid, size_t offset) {
    const rg_gpu_kernel k = rows_kernel(p, way, slot_rows(p->n_in, way), 1, true);
    if (grid) {
        rg_gpu_dispatch_indirect(list, &k, p, sizeof *p, grid, offset);
    } else {
        rg_gpu_product_counts(list, p, way, p->n, p->n);
        rg_gpu_dispatch(list, &k, p, sizeof *p,
                        (rg_gpu_grid){rg_gpu_slot_groups(p->n_in, p->n_out, way), p->n, 1});
    }
}

void rg_gpu_mul_tiles(rg_gpu_list *list, const rg_gpu_product *p, const rg_gpu_product_way *way,
                      const rg_gpu_buffer *grid, size_t offset) {
    const rg_gpu_kernel k = tile_kernel(list, p, way, way->side, true, 0);
    rg_gpu_dispatch_indirect(list, &k, p, sizeof *p, grid, offset);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void run(rg_gpu_list *list, const char *program, const uint32_t *spec, uint32_t n_spec,
                const void *push, size_t bytes, rg_gpu_grid grid) {
    rg_gpu_kernel k = {.program = program, .n_spec = n_spec};
    for (uint32_t i = 0; i < n_spec; i++)
        k.spec[i] = spec[i];
    rg_gpu_dispatch(list, &k, push, bytes, grid);
}

static uint64_t floats(uint64_t rows, uint64_t n) {
    return rows * n * sizeof(float);
}

/* The struct ends where the program's block does: no padding is pushed. */
#define PUSH(a, last) (a), offsetof(__typeof__(*(a)), last) + sizeof(a)->last

void rg_gpu_embed(rg_gpu_list *list, const rg_gpu_embed_args *a, rg_type type, uint32_t rows) {
    const uint32_t spec = (uint32_t)type;
    rg_gpu_list_moves(list, rows * (a->row_bytes + floats(a->n_hc, a->n)));
    run(list, "embed", &spec, 1, PUSH(a, row_bytes),
        (rg_gpu_grid){ceil_div(a->n, 4 * 64), rows, 1});
}

void rg_gpu_quantize(rg_gpu_list *list, const rg_gpu_quantize_args *a, uint32_t rows) {
    for (uint32_t first = 0; first < rows; first += GRID_MAX) {
        rg_gpu_quantize_args part = *a;
        const uint32_t n = rows - first < GRID_MAX ? rows - first : GRID_MAX;
        part.x += (uint64_t)first * a->x_stride * sizeof(float);
        part.y += (uint64_t)first * rg_gpu_act_bytes(a->n);
        rg_gpu_list_moves(list, n * (floats(1, a->n) + rg_gpu_act_bytes(a->n)));
        run(list, "quantize", NULL, 0, PUSH(&part, x_stride),
            (rg_gpu_grid){ceil_div(a->n, 512), n, 1});
    }
}

void rg_gpu_norm(rg_gpu_list *list, const rg_gpu_norm_args *a, rg_gpu_norm_mode mode,
                 uint32_t rows) {
    const uint32_t spec[] = {(uint32_t)mode};
    const uint32_t most = GRID_MAX / a->per * a->per; /* whole stretches */
    for (uint32_t first = 0; first < rows; first += most) {
        rg_gpu_norm_args part = *a;
        const uint32_t n = rows - first < most ? rows - first : most;
        part.x += (uint64_t)(first / a->per) * a->x_stride * sizeof(float);
        part.y += (uint64_t)(first / a->per) * a->y_stride * sizeof(float);
        if (part.codes) part.codes += (uint64_t)(first / a->per) * rg_gpu_act_bytes(a->per * a->n);
        if (part.gate) part.gate += (uint64_t)first * a->n * sizeof(float);
        rg_gpu_list_moves(list, floats(n, a->n) * (a->gate ? 3 : 2) +
                                    (part.codes ? n * rg_gpu_act_bytes(a->n) : 0));
        run(list, "norm", spec, 1, PUSH(&part, code), (rg_gpu_grid){n, 1, 1});
    }
}

void rg_gpu_hc_mix(rg_gpu_list *list, const rg_gpu_hc_mix_args *a, uint32_t rows) {
    rg_gpu_list_moves(list, rows * (floats(2 * a->n_hc + 1, a->n) + rg_gpu_act_bytes(a->n)));
    run(list, "hc_mix", NULL, 0, PUSH(a, n_hc), (rg_gpu_grid){ceil_div(a->n, 512), rows, 1});
}

void rg_gpu_hc_write(rg_gpu_list *list, const rg_gpu_hc_write_args *a, uint32_t rows) {
    const uint32_t spec[] = {a->experts != 0};
    rg_gpu_list_moves(list, rows * floats(2 * a->n_hc + 1 + (a->experts ? a->n_used : 0), a->n));
    run(list, "hc_write", spec, 1, PUSH(a, n_used), (rg_gpu_grid){ceil_div(a->n, 128), rows, 1});
}

bool rg_gpu_hc_norm_takes(uint32_t n, uint32_t n_used) {
    return n % 32 == 0 && n <= 4096 && n_used <= 16; /* what a thread holds in registers */
}

void rg_gpu_hc_norm(rg_gpu_list *list, const rg_gpu_hc_norm_args *a, rg_gpu_owed owed,
                    uint32_t n_used, uint32_t rows) {
    const uint32_t spec[] = {(uint32_t)owed, ceil_div(a->n, 1024), n_used};
    const uint64_t streams = owed == RG_GPU_OWED_NOTHING ? 2 : 3;
    const uint64_t more = owed == RG_GPU_OWED_EXPERTS ? n_used + 1 : owed == RG_GPU_OWED_Y;
    rg_gpu_list_moves(
        list, rows * (floats(streams * a->n_hc + more, a->n) + rg_gpu_act_bytes(a->n_hc * a->n)));
    run(list, "hc_norm", spec, 3, PUSH(a, code), (rg_gpu_grid){a->n_hc, rows, 1});
}

bool rg_gpu_hc_up_takes(rg_type type, uint32_t n, uint32_t n_hc, uint32_t n_in) {
    const bool floats = rg_gpu_takes_floats(type);
    return n % 32 == 0 && n_hc <= 8 && n_in <= 1024 && streams_of(n_in, floats) == 1 &&
           (floats || n_in % 32 == 0);
}

void rg_gpu_hc_up(rg_gpu_list *list, const rg_gpu_hc_up_args *a, rg_type type, uint32_t n_hc,
                  uint32_t n_in, uint32_t rows) {
    const uint32_t spec[] = {(uint32_t)type, rows, n_hc, n_in};
    RG_ASSERT(rows <= RG_GPU_ROWS_MAX);
    rg_gpu_list_moves(
        list, (uint64_t)n_hc * a->n * a->row_bytes +
                  rows * (floats(1, n_in) + floats(n_hc + 1, a->n) + rg_gpu_act_bytes(a->n)));
    rg_gpu_list_multiplies(list, (uint64_t)rows * n_hc * a->n * n_in);
    run(list, "hc_up", spec, 4, PUSH(a, row_bytes), (rg_gpu_grid){a->n / 32, 1, 1});
}

void rg_gpu_silu_mul(rg_gpu_list *list, const rg_gpu_silu_mul_args *a, uint32_t rows) {
    for (uint32_t first = 0; first < rows; first += GRID_MAX) {
        rg_gpu_silu_mul_args part = *a;
        const uint32_t n = rows - first < GRID_MAX ? rows - first : GRID_MAX;
        part.g += (uint64_t)first * a->n * sizeof(float);
        part.u += (uint64_t)first * a->n * sizeof(float);
        if (part.codes) part.codes += (uint64_t)first * rg_gpu_act_bytes(a->n);
        rg_gpu_list_moves(list, n * (floats(3, a->n) + (a->codes ? rg_gpu_act_bytes(a->n) : 0)));
        run(list, "silu_mul", NULL, 0, PUSH(&part, n), (rg_gpu_grid){ceil_div(a->n, 512), n, 1});
    }
}

void rg_gpu_conv(rg_gpu_list *list, const rg_gpu_conv_args *a, uint32_t rows) {
    const uint32_t spec[] = {a->gated != 0};
    rg_gpu_list_moves(list, floats(2 * (uint64_t)rows + a->n_tap, a->n));
    run(list, "conv", spec, 1, PUSH(a, dilation), (rg_gpu_grid){ceil_div(a->n, 128), rows, 1});
}

void rg_gpu_history(rg_gpu_list *list, const rg_gpu_history_args *a) {
    run(list, "history", NULL, 0, PUSH(a, n_head),
        (rg_gpu_grid){ceil_div(a->n + a->n_head, 128), 1, 1});
}

void rg_gpu_gdn(rg_gpu_list *list, const rg_gpu_gdn_args *a) {
    const uint32_t spec[] = {ceil_div(a->D, 4)};
    const uint64_t channels = (uint64_t)(2 * a->n_k + 2 * a->n_head) * a->D; /* and outputs */
    rg_gpu_list_moves(list,
                      floats(2 * (uint64_t)a->n_head * a->D, a->D) + floats(channels, a->rows));
    run(list, "gdn", spec, 1, PUSH(a, rows), (rg_gpu_grid){ceil_div(a->D, 32), a->n_head, 1});
}

bool rg_gpu_gdn_whole_takes(const rg_gpu_info *info, uint32_t D) {
    return D % 32 == 0 && D <= 128 && 4 * D <= info->group_threads;
}

void rg_gpu_gdn_whole(rg_gpu_list *list, const rg_gpu_gdn_whole_args *a, uint32_t D,
                      uint32_t n_tap) {
    const uint32_t spec[] = {D / 4, n_tap, D};
    RG_ASSERT(a->rows <= RG_GPU_ROWS_MAX);
    const uint64_t channels = (uint64_t)(2 * a->n_k + 3 * a->n_head) * D; /* z and outputs too */
    rg_gpu_list_moves(list, floats(2 * (uint64_t)a->n_head * D, D) + floats(channels, a->rows));
    run(list, "gdn_whole", spec, 3, PUSH(a, scale), (rg_gpu_grid){a->n_head, 1, 1});
}

void rg_gpu_prepare(rg_gpu_list *list, const rg_gpu_prepare_args *a, bool f16, uint32_t heads,
                    uint32_t rows) {
    const uint32_t spec[] = {f16};
    run(list, "attn_prepare", spec, 1, PUSH(a, code), (rg_gpu_grid){heads, rows, 1});
}

void rg_gpu_block_keys(rg_gpu_list *list, const rg_gpu_block_keys_args *a, bool f16) {
    const uint32_t spec[] = {f16};
    run(list, "block_keys", spec, 1, PUSH(a, code), (rg_gpu_grid){a->rows / a->ratio + 1, 1, 1});
}

void rg_gpu_scores(rg_gpu_list *list, const rg_gpu_scores_args *a, bool f16, uint32_t rows) {
    const uint32_t spec[] = {f16};
    run(list, "index_scores", spec, 1, PUSH(a, code), (rg_gpu_grid){ceil_div(a->cap, 64), rows, 1});
}

void rg_gpu_select(rg_gpu_list *list, const rg_gpu_select_args *a, uint32_t rows) {
    run(list, "select_blocks", NULL, 0, PUSH(a, keep), (rg_gpu_grid){rows, 1, 1});
}

#define SHARED_QUERIES 4096u /* floats of shared memory for the queries of a workgroup */

/* Heads of one workgroup of many rows: they share keys and values. */
static uint32_t heads_together(const rg_gpu_attention_args *a) {
    const uint32_t group = a->n_head / a->n_kv;
    uint32_t heads = SHARED_QUERIES / a->D;
    if (heads > 16) heads = 16;
    while (heads > 1 && group % heads)
        heads--;
    return heads;
}

void rg_gpu_attention(rg_gpu_list *list, const rg_gpu_attention_args *a, bool f16, uint32_t rows) {
    if (rows > RG_GPU_ROWS_MAX) {
        const uint32_t heads = heads_together(a);
        const uint32_t spec[] = {f16, ceil_div(a->D, 256), heads, a->D};
        run(list, "attention_rows", spec, 4, PUSH(a, scale),
            (rg_gpu_grid){a->n_head / heads, rows, 1});
        return;
    }
    const uint32_t spec[] = {f16, ceil_div(a->D, 64)};
    run(list, "attention", spec, 2, PUSH(a, scale), (rg_gpu_grid){a->n_head, rows, 1});
}

void rg_gpu_route(rg_gpu_list *list, const rg_gpu_route_args *a, bool given, uint32_t rows) {
    const uint32_t spec[] = {given};
    run(list, "route", spec, 1, PUSH(a, scale), (rg_gpu_grid){rows, 1, 1});
}

/* Stretches of a row, a workgroup each: enough for a large device, and so short that a workgroup
 * can hold all of one. */
#define BEST_PARTS   64u
#define BEST_INDICES 4096u /* ranks.glsl */

static uint32_t best_parts(uint32_t n) {
    const uint32_t least = ceil_div(n, BEST_INDICES);
    return least > BEST_PARTS ? least : BEST_PARTS;
}

bool rg_gpu_best_takes(uint32_t n, uint32_t k) {
    _Static_assert(2 * BEST_INDICES <= RG_GPU_BEST_WORDS, "ids of all parts and a word for each");
    return k >= 1 && k <= RG_GPU_BEST_MAX && k <= BEST_INDICES / best_parts(n);
}

void rg_gpu_best(rg_gpu_list *list, const rg_gpu_best_args *a, uint32_t rows) {
    const uint32_t first = 0, last = 1;
    rg_gpu_best_args own = *a;
    RG_ASSERT(rg_gpu_best_takes(a->n, a->k));
    own.n_part = best_parts(a->n);
    rg_gpu_list_moves(list, floats(rows, a->n));
    run(list, "best", &first, 1, PUSH(&own, k), (rg_gpu_grid){own.n_part, rows, 1});
    rg_gpu_barrier(list); /* parts */
    rg_gpu_list_moves(list, floats(rows, own.n_part * a->k));
    run(list, "best", &last, 1, PUSH(&own, k), (rg_gpu_grid){1, rows, 1});
}

void rg_gpu_plan(rg_gpu_list *list, const rg_gpu_plan_args *a) {
    run(list, "plan", NULL, 0, PUSH(a, x_out), (rg_gpu_grid){1, 1, 1});
}

size_t rg_gpu_plan_words(uint32_t n, uint32_t n_expert, uint32_t cols) {
    return n + 4 * ((size_t)n / cols + n_expert + 1);
}

void rg_gpu_ple_gate(rg_gpu_list *list, const rg_gpu_ple_gate_args *a, uint32_t rows) {
    run(list, "ple_gate", NULL, 0, PUSH(a, eps), (rg_gpu_grid){rows, 1, 1});
}

void rg_gpu_draft_rows(rg_gpu_list *list, const rg_gpu_draft_rows_args *a, rg_type type, bool apart,
                       uint32_t rows) {
    const uint32_t spec[] = {(uint32_t)type, apart};
    const uint64_t made = apart ? 1 + a->n_hc : 2 * (uint64_t)a->n_hc;
    rg_gpu_list_moves(list, rows * (a->row_bytes + floats(a->n_hc + made, a->n) +
                                    (a->codes ? made * rg_gpu_act_bytes(a->n) : 0)));
    run(list, "draft_rows", spec, 2, PUSH(a, code), (rg_gpu_grid){rows, 2, 1});
}

void rg_gpu_add(rg_gpu_list *list, const rg_gpu_add_args *a, uint32_t rows) {
    rg_gpu_list_moves(list, floats(2 * (uint64_t)rows + rows / a->per, a->n));
    run(list, "add", NULL, 0, PUSH(a, per), (rg_gpu_grid){ceil_div(a->n, 128), rows, 1});
}
