/* Shapes of products chosen by measurement. The products are those of the model's own windows: they
 * are recorded once with a notebook open, then each is timed by itself with every shape that the
 * kernels take.
 */
#include <string.h>

#include "engine/gpu_core.h"

#define REPS       7u
#define WARM_NS    ((uint64_t)60 * 1000000u)
#define SIDES      4u   /* of tiles: 1, 2, 4, 8 */
#define GRIDS      64u  /* bytes of a plan's grids */
#define GAIN_LEAST 0.98 /* of the usual shape's time: less is noise */

rg_code rg_gpu_tiles_open(rg_gpu_core *g, rg_status *st) {
    const char *cache = g->core->opt.gpu_cache_path;
    const rg_gpu_info *info = rg_gpu_get_info(g->gpu);
    rg_status why = {0};
    if (!cache) return RG_OK;
    g->tiles_path = rg_gpu_tiles_path(cache, info, st);
    if (!g->tiles_path) return RG_NOMEM;
    const rg_code rc = rg_gpu_tiles_read(&g->tiles, g->tiles_path, info, &why);
    if (rc == RG_NOMEM) return rg_fail(st, rc, "%s", why.message);
    if (rc == RG_OK) {
        rg_log(RG_LOG_INFO, "%u measured shapes of products", g->tiles.n);
    } else if (rc != RG_IO) {
        rg_log(RG_LOG_WARN, "%s: the usual shapes of products are taken", why.message);
    }
    return RG_OK;
}

/* ---- notebook ------------------------------------------------------------------------------- */

/* The entry of a key, a new one without weights if there is none; NULL: the notebook is full. */
static rg_gpu_noted_product *noted_of(rg_gpu_noted *noted, const rg_gpu_tile_key *key) {
    uint32_t i = 0;
    while (i < noted->n && !rg_gpu_tile_same(&noted->all[i].key, key))
        i++;
    if (i == RG_GPU_TILES_MAX) return NULL;
    if (i == noted->n) noted->all[noted->n++] = (rg_gpu_noted_product){.key = *key};
    return &noted->all[i];
}

void rg_gpu_note(rg_gpu_core *g, rg_gpu_tile_op op, const rg_gpu_product *p,
                 const rg_gpu_product_way *way) {
    const rg_gpu_tile_key key = rg_gpu_tile_key_of(op, p, way);
    rg_gpu_noted_product *m = noted_of(g->noted, &key);
    if (!m || m->n_weight == RG_GPU_NOTED_WEIGHTS) return;
    if (!m->n_weight) {
        m->product = *p;
        m->way = *way;
    }
    m->w[m->n_weight] = p->w;
    m->w2[m->n_weight++] = p->w2;
}

void rg_gpu_note_experts(rg_gpu_core *g, const rg_gpu_experts *e) {
    rg_gpu_noted *noted = g->noted;
    const rg_gpu_tile_key key = rg_gpu_tile_key_of(RG_GPU_OP_EXPERTS, &e->gate, &e->gate_way);
    rg_gpu_noted_product *m = noted_of(noted, &key);
    if (!m) return;
    if (!m->n_weight) {
        m->product = e->gate;
        m->up = e->up;
        m->down = e->down;
        m->way = (rg_gpu_product_way){.type = e->gate_way.type};
        m->up_way = (rg_gpu_product_way){.type = e->up_way.type};
        m->down_way = (rg_gpu_product_way){.type = e->down_way.type};
    }
    /* The down rows of another layer may be of another type. */
    if (m->n_weight == RG_GPU_NOTED_WEIGHTS || m->up_way.type != e->up_way.type ||
        m->down_way.type != e->down_way.type)
        return;
    m->w[m->n_weight] = e->gate.w;
    m->w2[m->n_weight] = e->up.w;
    m->w_down[m->n_weight++] = e->down.w;
}

/* Windows of the widths that have keys, and one of a whole chunk. */
static rg_code note_windows(rg_seq *seq, rg_status *st) {
    const uint32_t rows[] = {1, 2, 4, 8, seq->core->chunk};
    for (size_t i = 0; i < RG_ARRAY_LEN(rows); i++) {
        rg_gpu_forget(seq->core->gpu);
        RG_TRY(rg_gpu_record_rows(seq, rows[i], 0, 0, st));
    }
    return RG_OK;
}

rg_code rg_gpu_note_products(rg_core *core, rg_gpu_noted *noted, rg_status *st) {
    const rg_gpu_prewarm prewarm = core->opt.gpu_prewarm;
    const rg_seq_options opt = {.n_ctx = core->chunk > 16 ? core->chunk : 16};
    rg_seq *seq = NULL;
    core->opt.gpu_prewarm = RG_GPU_PREWARM_OFF;
    core->gpu->noted = noted;
    rg_code rc = rg_seq_create(&seq, core, &opt, st);
    if (rc == RG_OK) rc = note_windows(seq, st);
    rg_seq_destroy(seq);
    core->opt.gpu_prewarm = prewarm;
    core->gpu->noted = NULL;
    rg_gpu_forget(core->gpu);
    return rc;
}

/* ---- measurement ---------------------------------------------------------------------------- */

static bool of_experts(const rg_gpu_tile_key *key) {
    return key->op == RG_GPU_OP_SLOTS || key->op == RG_GPU_OP_EXPERTS;
}

typedef struct sweep {
    rg_core *core;
    rg_gpu_core *g;
    rg_gpu_buffer ids; /* experts of slots */
    uint32_t n_id;
    rg_gpu_buffer prompt_ids;   /* experts of a chunk's slots, some asked for more often */
    rg_gpu_buffer plans[SIDES]; /* tiles of them: grids, then the list */
    rg_gpu_list *lists[RG_GPU_CANDIDATES_MAX];
} sweep;

static uint64_t matrix_bytes(const rg_gpu_product *p) {
    return (uint64_t)p->n_out * p->row_bytes;
}

static void place_product(const sweep *s, rg_gpu_product *p, const rg_gpu_buffer *ids) {
    if (s->core->stream) p->stride = matrix_bytes(p);
    p->experts = p->experts2 = p->list = 0;
    p->ids = ids->address;
    RG_ASSERT(p->n <= ids->bytes / sizeof(uint32_t));
}

/* Weights that lie where the product can read them by itself. Experts that stream have their slots:
 * whatever lies there takes the same time. */
static void place_experts(const sweep *s, rg_gpu_noted_product *m) {
    const rg_gpu_buffer *ids = m->key.op == RG_GPU_OP_SLOTS ? &s->ids : &s->prompt_ids;
    if (s->core->stream) {
        m->w[0] = m->w2[0] = m->w_down[0] = s->g->arena.address;
        m->n_weight = 1;
    }
    place_product(s, &m->product, ids);
    if (m->key.op != RG_GPU_OP_EXPERTS) return;
    place_product(s, &m->up, ids);
    place_product(s, &m->down, ids);
}

static uint32_t blocks_of(const rg_gpu_product *p) {
    return (p->n_out + RG_GPU_TILE_ROWS - 1) / RG_GPU_TILE_ROWS;
}

/* Lists the tiles of the products for every side. */
static rg_code plan_tiles(const sweep *s, const rg_gpu_noted_product *m, rg_status *st) {
    rg_gpu_list *list = s->lists[0];
    rg_gpu_list_begin(list, false);
    for (uint32_t i = 0; i < SIDES; i++) {
        const rg_gpu_plan_args plan = {.ids = m->product.ids,
                                       .list = s->plans[i].address + GRIDS,
                                       .grids = s->plans[i].address,
                                       .n = m->product.n,
                                       .n_expert = s->core->hp->n_expert,
                                       .cols = 16u << i,
                                       .x_hidden = blocks_of(&m->product),
                                       .x_out = blocks_of(&m->down)};
        rg_gpu_plan(list, &plan);
    }
    RG_TRY(rg_gpu_list_end(list, st));
    return rg_gpu_run(s->g->gpu, list, st);
}

/* Gate and up, then down, as a window runs them. */
static rg_code record_experts(const sweep *s, const rg_gpu_noted_product *m,
                              const rg_gpu_tile *tile, rg_gpu_list *list, rg_status *st) {
    rg_gpu_product p[3] = {m->product, m->up, m->down};
    rg_gpu_product_way way[3] = {m->way, m->up_way, m->down_way};
    const uint32_t T = m->key.n / s->core->hp->n_expert_used;
    const uint32_t side = tile->side ? tile->side : rg_gpu_usual_side(s->core, T);
    uint32_t i = 0;
    while (i + 1 < SIDES && 1u << i < side)
        i++;
    rg_gpu_list_begin(list, true);
    for (uint32_t n = 0; n < m->n_weight; n++) {
        const rg_gpu_ptr w[3] = {m->w[n], m->w2[n], m->w_down[n]};
        for (uint32_t k = 0; k < 3; k++) {
            p[k].w = w[k];
            p[k].list = s->plans[i].address + GRIDS;
            rg_gpu_tile_put(tile, &way[k]);
            way[k].side = side;
            if (k == 2) rg_gpu_barrier(list); /* hidden */
            rg_gpu_mul_tiles(list, &p[k], &way[k], &s->plans[i], k == 2 ? 12 : 0);
        }
        rg_gpu_barrier(list); /* the same results are written again */
    }
    return rg_gpu_list_end(list, st);
}

static rg_code record(const sweep *s, const rg_gpu_noted_product *m, const rg_gpu_tile *tile,
                      rg_gpu_list *list, rg_status *st) {
    rg_gpu_product p = m->product;
    rg_gpu_product_way way = m->way;
    if (m->key.op == RG_GPU_OP_EXPERTS) return record_experts(s, m, tile, list, st);
    rg_gpu_tile_put(tile, &way);
    rg_gpu_list_begin(list, true);
    for (uint32_t i = 0; i < m->n_weight; i++) {
        p.w = m->w[i];
        p.w2 = m->w2[i];
        if (m->key.op == RG_GPU_OP_SLOTS) {
            rg_gpu_mul_slots(list, &p, &way, NULL, 0);
        } else {
            rg_gpu_mul(list, &p, &way);
        }
        rg_gpu_barrier(list); /* the same results are written again */
    }
    return rg_gpu_list_end(list, st);
}

/* Shapes that are worth a try; those of experts must suit all three products. */
static uint32_t candidates_of(const sweep *s, const rg_gpu_noted_product *m, rg_gpu_tile *tiles) {
    const rg_gpu_info *info = rg_gpu_get_info(s->g->gpu);
    const uint32_t n = rg_gpu_tile_candidates(tiles, &m->key, info);
    const bool matrix =
        rg_gpu_has_matrix(info, m->up_way.type) && rg_gpu_has_matrix(info, m->down_way.type);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (m->key.op == RG_GPU_OP_EXPERTS && !matrix && tiles[i].side > RG_GPU_SIDE_MAX) continue;
        tiles[kept++] = tiles[i];
    }
    return kept;
}

/* Times the shapes of one product; `*best` is what to keep. */
static rg_code measure(const sweep *s, rg_gpu_noted_product *m, rg_gpu_tile *best,
                       rg_gpu_sweep_row *row, rg_status *st) {
    rg_gpu_tile tiles[RG_GPU_CANDIDATES_MAX];
    double ns[RG_GPU_CANDIDATES_MAX];
    const uint32_t n = candidates_of(s, m, tiles);
    uint32_t least = 0;
    if (of_experts(&m->key)) place_experts(s, m);
    if (m->key.op == RG_GPU_OP_EXPERTS) RG_TRY(plan_tiles(s, m, st));
    for (uint32_t i = 0; i < n; i++)
        RG_TRY(record(s, m, &tiles[i], s->lists[i], st));
    RG_TRY(rg_gpu_time_lists(s->g->gpu, s->lists, n, WARM_NS, REPS, ns, st));
    for (uint32_t i = 1; i < n; i++)
        least = ns[i] < ns[least] ? i : least;
    if (ns[least] > GAIN_LEAST * ns[0]) least = 0;
    *best = tiles[least];
    *row = (rg_gpu_sweep_row){.op = rg_gpu_tile_op_name(m->key.op),
                              .type = rg_type_get((uint32_t)m->key.type)->name,
                              .n_in = m->key.n_in,
                              .n_out = m->key.n_out,
                              .columns = m->key.n,
                              .n_out2 = m->key.n_out2,
                              .fused = m->key.fused,
                              .coding = m->key.coding,
                              .group_rows = best->group_rows,
                              .side = best->side,
                              .depth = best->depth,
                              .loop = best->loop,
                              .no_matrix = best->no_matrix,
                              .n_tried = n,
                              .usual_us = ns[0] * 1e-3 / m->n_weight,
                              .best_us = ns[least] * 1e-3 / m->n_weight};
    return RG_OK;
}

/* Experts whose weights can be read: those of a layer, or as many as the arena holds. */
static uint32_t experts_there(const sweep *s, const rg_gpu_noted *noted) {
    uint64_t most = 1;
    if (!s->core->stream) return s->core->hp->n_expert;
    for (uint32_t i = 0; i < noted->n; i++) {
        const uint64_t bytes = matrix_bytes(&noted->all[i].product);
        if (of_experts(&noted->all[i].key) && bytes > most) most = bytes;
    }
    const uint64_t n = s->g->arena.bytes / most;
    RG_ASSERT(n >= 1); /* a slot holds three such matrices */
    return n < s->core->hp->n_expert ? (uint32_t)n : s->core->hp->n_expert;
}

/* A prompt's slots: routers ask for some experts more often than for others, which decides how full
 * tiles are. */
static rg_code open_prompt(sweep *s, uint32_t n_expert, rg_status *st) {
    const rg_hparams *hp = s->core->hp;
    const uint32_t n = s->core->chunk * hp->n_expert_used;
    const size_t words = rg_gpu_plan_words(n, hp->n_expert, 16);
    RG_TRY(
        rg_gpu_buffer_create(s->g->gpu, &s->prompt_ids, n * sizeof(uint32_t), RG_GPU_SHARED, st));
    for (uint32_t i = 0; i < n; i++) {
        const double u = (double)(rg_random_u64(n, i) >> 11) * 0x1p-53;
        ((uint32_t *)s->prompt_ids.mapped)[i] = (uint32_t)(u * u * n_expert);
    }
    for (uint32_t i = 0; i < SIDES; i++)
        RG_TRY(rg_gpu_buffer_create(s->g->gpu, &s->plans[i], GRIDS + words * sizeof(uint32_t),
                                    RG_GPU_DEVICE, st));
    return RG_OK;
}

static rg_code open_sweep(sweep *s, const rg_gpu_noted *noted, rg_status *st) {
    const rg_hparams *hp = s->core->hp;
    const uint32_t n = experts_there(s, noted);
    s->n_id = RG_GPU_ROWS_MAX * hp->n_expert_used;
    RG_TRY(rg_gpu_buffer_create(s->g->gpu, &s->ids, s->n_id * sizeof(uint32_t), RG_GPU_SHARED, st));
    for (uint32_t i = 0; i < s->n_id; i++)
        ((uint32_t *)s->ids.mapped)[i] = i % n;
    RG_TRY(open_prompt(s, n, st));
    for (size_t i = 0; i < RG_ARRAY_LEN(s->lists); i++)
        RG_TRY(rg_gpu_list_create(&s->lists[i], s->g->gpu, st));
    return RG_OK;
}

static void close_sweep(sweep *s) {
    for (size_t i = 0; i < RG_ARRAY_LEN(s->lists); i++)
        rg_gpu_list_destroy(s->lists[i]);
    rg_gpu_buffer_destroy(s->g->gpu, &s->ids);
    rg_gpu_buffer_destroy(s->g->gpu, &s->prompt_ids);
    for (size_t i = 0; i < SIDES; i++)
        rg_gpu_buffer_destroy(s->g->gpu, &s->plans[i]);
}

static bool is_narrow(const rg_gpu_tile_key *key) {
    return key->op == RG_GPU_OP_TILES && key->n_out <= RG_GPU_TILE_ROWS;
}

/* Measures what was noted; the tiles of the other ops stay as they are. */
static rg_code measure_all(sweep *s, rg_gpu_noted *noted, uint32_t ops, rg_gpu_tiles *out,
                           rg_gpu_sweep_see *see, void *user, rg_status *st) {
    const rg_gpu_tiles *old = &s->g->tiles;
    out->all = rg_alloc((size_t)noted->n + old->n + 1, sizeof *out->all, st);
    if (!out->all) return RG_NOMEM;
    for (uint32_t i = 0; i < old->n; i++) {
        bool again = false;
        for (uint32_t k = 0; k < noted->n; k++)
            again = again || rg_gpu_tile_same(&noted->all[k].key, &old->all[i].key);
        if (!again || !(ops >> old->all[i].key.op & 1)) out->all[out->n++] = old->all[i];
    }
    for (uint32_t i = 0; i < noted->n && out->n < RG_GPU_TILES_MAX; i++) {
        rg_gpu_noted_product *m = &noted->all[i];
        rg_gpu_sweep_row row;
        /* Rows of eight, not tiles, make what is narrow: it has no shape to choose. */
        if (!(ops >> m->key.op & 1) || is_narrow(&m->key)) continue;
        RG_TRY(measure(s, m, &out->all[out->n++], &row, st));
        if (see) RG_TRY(see(user, &row, st));
    }
    return RG_OK;
}

rg_code rg_core_gpu_sweep(rg_core *core, uint32_t ops, rg_gpu_sweep_see *see, void *user,
                          rg_status *st) {
    rg_gpu_core *g = core->gpu;
    rg_gpu_tiles tiles = {0};
    if (!g) return rg_fail(st, RG_UNSUPPORTED, "the shapes of products are the GPU's");
    if (!g->tiles_path)
        return rg_fail(st, RG_INVALID, "there is no folder to keep measured shapes in");
    sweep s = {.core = core, .g = g};
    rg_gpu_noted *noted = rg_alloc(1, sizeof *noted, st);
    if (!noted) return RG_NOMEM;
    rg_code rc = rg_gpu_note_products(core, noted, st);
    if (rc == RG_OK) rc = open_sweep(&s, noted, st);
    if (rc == RG_OK) rc = measure_all(&s, noted, ops, &tiles, see, user, st);
    if (rc == RG_OK) rc = rg_gpu_tiles_write(&tiles, g->tiles_path, rg_gpu_get_info(g->gpu), st);
    if (rc == RG_OK) { /* from here on they are obeyed */
        rg_gpu_tiles_deinit(&g->tiles);
        g->tiles = tiles;
    } else {
        rg_gpu_tiles_deinit(&tiles);
    }
    close_sweep(&s);
    rg_free(noted);
    return rc;
}

const char *rg_core_gpu_tiles_path(const rg_core *core) {
    return core->gpu && core->gpu->tiles_path ? core->gpu->tiles_path : "";
}
