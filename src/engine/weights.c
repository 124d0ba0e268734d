/* Weights: what the description names, bound to places in one block of memory, then read from the
 * file by all compute threads. Vectors and convolutions become f32; matrices stay as stored.
 *
 * A large file leaves no copy of itself in the page cache, where it would push out what others keep
 * there and count against a memory cgroup: it is read past the cache through small aligned buffers,
 * or, where the file system has no such reads, forgotten piece by piece. A small one stays cached,
 * and the next start is quick, unless memory is short or promised.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/core.h"

#define PIECE_BYTES ((size_t)4 << 20) /* of one read */
#define ALIGN       64u
/* All buffers of direct reads together, and one at least and at most. */
#define BOUNCE_TOTAL_BYTES ((size_t)16 << 20)
#define BOUNCE_BYTES_MIN   ((size_t)256 << 10)
#define BOUNCE_BYTES_MAX   ((size_t)4 << 20)
/* A load is small when this many of it would fit the free memory. */
#define SMALL_PART 8u

/* One tensor on its way into memory. */
typedef struct load_item {
    const rg_tensor *tensor;
    const uint8_t **data; /* of a matrix */
    const float **f32;    /* of a vector: converted */
    size_t offset;        /* in the block */
    size_t bytes;         /* there */
} load_item;

typedef struct load_piece {
    uint32_t item;
    size_t begin, bytes;
} load_piece;

typedef struct loader {
    rg_core *core;
    bool streamed; /* the experts stay in the file */
    load_item *items;
    uint32_t n_item, cap;
    size_t total;
    load_piece *pieces;
    size_t n_piece;
    bool forget;         /* leave nothing of the file in the page cache */
    rg_file *direct;     /* [file count] fd -1: buffered reads; NULL: all buffered */
    uint8_t *bounce;     /* [n_threads][bounce_bytes], page aligned; NULL without direct files */
    size_t bounce_bytes; /* a multiple of RG_DIRECT_ALIGN */
    atomic_uint_fast64_t done_bytes;
    atomic_bool failed;
    rg_status first; /* written by the thread that flips `failed` */
    rg_code bind_rc; /* first failure while binding */
    rg_status *st;
} loader;

static load_item *add_item(loader *l, const rg_tensor *t, size_t bytes) {
    if (l->bind_rc != RG_OK) return NULL;
    if (l->n_item == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : 256;
        load_item *items = rg_realloc(l->items, cap, sizeof *items, l->st);
        if (!items) {
            l->bind_rc = RG_NOMEM;
            return NULL;
        }
        l->items = items;
        l->cap = cap;
    }
    load_item *it = &l->items[l->n_item++];
    *it = (load_item){.tensor = t, .offset = l->total, .bytes = bytes};
    l->total += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return it;
}

/* The matrix of a tensor: ne[0] columns, ne[1] rows; further dimensions are stacked matrices. */
static rg_mat mat_of(const rg_tensor *t) {
    return (rg_mat){.type = t->type,
                    .n_in = (uint32_t)t->ne[0],
                    .n_out = (uint32_t)t->ne[1],
                    .row_bytes = rg_row_bytes(t->type, (size_t)t->ne[0])};
}

/* Remembers which tensor a matrix came from. */
static void name_mat(loader *l, const rg_mat *mat, const rg_tensor *t) {
    rg_core *core = l->core;
    if (l->bind_rc != RG_OK) return;
    if (core->n_mat == core->mat_cap) {
        const uint32_t cap = core->mat_cap ? 2 * core->mat_cap : 256;
        rg_mat_name *mats = rg_realloc(core->mats, cap, sizeof *mats, l->st);
        if (!mats) {
            l->bind_rc = RG_NOMEM;
            return;
        }
        core->mats = mats;
        core->mat_cap = cap;
    }
    core->mats[core->n_mat++] = (rg_mat_name){mat, t};
}

static void bind_mat(loader *l, const rg_tensor *t, rg_mat *out) {
    *out = (rg_mat){0};
    if (!t) return;
    *out = mat_of(t);
    name_mat(l, out, t);
    load_item *it = add_item(l, t, (size_t)t->size_bytes);
    if (it) it->data = &out->data;
}

static void bind_vec(loader *l, const rg_tensor *t, const float **out) {
    *out = NULL;
    if (!t) return;
    size_t n = 1;
    for (int d = 0; d < 4; d++)
        n *= (size_t)t->ne[d];
    load_item *it = add_item(l, t, n * sizeof(float));
    if (it) it->f32 = out;
}

/* Experts that stream are described, not loaded: their bytes come with each turn. */
static void bind_experts(loader *l, const rg_tensor *t, rg_expert_mat *out) {
    if (l->streamed) {
        out->mat = mat_of(t);
        name_mat(l, &out->mat, t);
    } else {
        bind_mat(l, t, &out->mat);
    }
    out->stride = out->mat.row_bytes * out->mat.n_out;
}

static void bind_hc(loader *l, const rg_hc_desc *d, rg_hc_weights *w) {
    bind_vec(l, d->norm, &w->norm);
    bind_mat(l, d->down, &w->down);
    bind_mat(l, d->up, &w->up);
    bind_mat(l, d->inject, &w->inject);
}

static void bind_moe(loader *l, const rg_moe_desc *d, rg_moe_weights *w) {
    w->n_ff = d->n_ff;
    bind_mat(l, d->router, &w->router);
    bind_mat(l, d->shared_gate_inp, &w->shared_gate_inp);
    bind_mat(l, d->shared_gate, &w->shared_gate);
    bind_mat(l, d->shared_up, &w->shared_up);
    bind_mat(l, d->shared_down, &w->shared_down);
    bind_experts(l, d->down, &w->down);
    bind_experts(l, d->gate_up ? d->gate_up : d->gate, &w->gate);
    if (!d->gate_up) bind_experts(l, d->up, &w->up);
}

/* A fused gate_up is two views of the same rows; to be called when addresses are known. */
static void split_fused(rg_moe_weights *w, const rg_moe_desc *d) {
    if (!d->gate_up) return;
    w->gate.mat.n_out = w->n_ff;
    w->up = w->gate;
    w->up_offset = w->n_ff * w->gate.mat.row_bytes;
    if (w->up.mat.data) w->up.mat.data += w->up_offset;
}

static void bind_layer(loader *l, const rg_layer_desc *d, rg_layer_weights *w) {
    w->is_attn = d->is_attn;
    w->has_ple = d->has_ple;
    bind_hc(l, &d->hc_attn, &w->hc_attn);
    bind_hc(l, &d->hc_ffn, &w->hc_ffn);
    if (d->is_attn) {
        const rg_attn_desc *a = &d->attn;
        w->attn.ratio = a->ratio;
        bind_mat(l, a->q, &w->attn.q);
        bind_mat(l, a->k, &w->attn.k);
        bind_mat(l, a->v, &w->attn.v);
        bind_mat(l, a->out, &w->attn.out);
        bind_vec(l, a->q_norm, &w->attn.q_norm);
        bind_vec(l, a->k_norm, &w->attn.k_norm);
        if (a->ratio) {
            bind_mat(l, a->idx_q, &w->attn.idx_q);
            bind_mat(l, a->idx_k, &w->attn.idx_k);
            bind_vec(l, a->idx_q_norm, &w->attn.idx_q_norm);
            bind_vec(l, a->idx_k_norm, &w->attn.idx_k_norm);
        }
    } else {
        const rg_gdn_desc *g = &d->gdn;
        bind_mat(l, g->qkv, &w->gdn.qkv);
        bind_mat(l, g->gate, &w->gdn.gate);
        bind_mat(l, g->alpha, &w->gdn.alpha);
        bind_mat(l, g->beta, &w->gdn.beta);
        bind_mat(l, g->out, &w->gdn.out);
        bind_vec(l, g->conv, &w->gdn.conv);
        bind_vec(l, g->dt, &w->gdn.dt);
        bind_vec(l, g->a, &w->gdn.a);
        bind_vec(l, g->norm, &w->gdn.norm);
    }
    bind_moe(l, &d->moe, &w->moe);
    if (d->has_ple) {
        bind_mat(l, d->ple.key, &w->ple.key);
        bind_mat(l, d->ple.value, &w->ple.value);
        bind_vec(l, d->ple.norm_key, &w->ple.norm_key);
        bind_vec(l, d->ple.norm_query, &w->ple.norm_query);
        bind_vec(l, d->ple.norm_conv, &w->ple.norm_conv);
        bind_vec(l, d->ple.conv, &w->ple.conv);
    }
}

static void bind_mtp(loader *l, const rg_mtp_desc *d, rg_mtp_weights *w) {
    bind_layer(l, &d->layer, &w->layer);
    bind_vec(l, d->enorm, &w->enorm);
    bind_vec(l, d->hnorm, &w->hnorm);
    bind_mat(l, d->eh_proj, &w->eh_proj);
    bind_mat(l, d->fc_embd, &w->fc_embd);
    bind_mat(l, d->fc_hidden, &w->fc_hidden);
    bind_hc(l, &d->head, &w->head);
    bind_mat(l, d->embed_tokens, &w->embd);
    bind_mat(l, d->shared_head, &w->output);
}

static void bind_all(loader *l, rg_weights *w, const rg_model *m) {
    bind_mat(l, m->token_embd, &w->token_embd);
    if (m->output != m->token_embd) {
        bind_mat(l, m->output, &w->output);
    } else {
        name_mat(l, &w->output, m->output);
    }
    bind_hc(l, &m->output_hc, &w->output_hc);
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        bind_layer(l, &m->layers[i], &w->layers[i]);
    if (m->hp.n_mtp) bind_mtp(l, &m->mtp, &w->mtp);
}

/* Matrices that are other names of matrices already read. */
static void link_shared(rg_weights *w, const rg_model *m) {
    if (m->output == m->token_embd) w->output = w->token_embd;
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        split_fused(&w->layers[i].moe, &m->layers[i].moe);
    if (!m->hp.n_mtp) return;
    split_fused(&w->mtp.layer.moe, &m->mtp.layer.moe);
    if (!w->mtp.embd.data) w->mtp.embd = w->token_embd;
    if (!w->mtp.output.data) w->mtp.output = w->output;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Bytes [begin, begin + len) of a file opened for direct reads, through a buffer. False when a read
 * fails or the file is too short: a buffered read then finds the words for it. */
static bool read_direct(const rg_file *f, uint64_t begin, size_t len, uint8_t *dst, uint8_t *buffer,
                        size_t buffer_bytes) {
    while (len > 0) {
        const uint64_t from = begin - begin % RG_DIRECT_ALIGN;
        const size_t skip = (size_t)(begin - from);
        size_t want = (skip + len + RG_DIRECT_ALIGN - 1) / RG_DIRECT_ALIGN * RG_DIRECT_ALIGN;
        if (want > buffer_bytes) want = buffer_bytes;
        const ssize_t n = pread(f->fd, buffer, want, (off_t)from);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || (size_t)n <= skip) return false;
        const size_t got = (size_t)n - skip < len ? (size_t)n - skip : len;
        memcpy(dst, buffer + skip, got);
        dst += got;
        begin += got;
        len -= got;
    }
    return true;
}

static rg_code read_bytes(const loader *l, const rg_tensor *t, size_t begin, size_t len, void *dst,
                          int thread, rg_status *st) {
    const rg_file *direct = l->direct ? &l->direct[t->file] : NULL;
    if (direct && direct->fd >= 0 && t->offset + begin + len <= direct->size_bytes) {
        uint8_t *buffer = l->bounce + (size_t)thread * l->bounce_bytes;
        if (read_direct(direct, t->offset + begin, len, dst, buffer, l->bounce_bytes)) return RG_OK;
    }
    RG_TRY(rg_gguf_read(l->core->gguf, t, begin, len, dst, st));
    if (l->forget) rg_file_forget(rg_gguf_file(l->core->gguf, t->file), t->offset + begin, len);
    return RG_OK;
}

/* Reads bytes of a tensor and looks for scales and values that are not finite: gates would turn an
 * infinity into a plausible number and the text into a wrong one. */
static rg_code read_checked(const loader *l, const rg_tensor *t, size_t begin, size_t bytes,
                            void *dst, int thread, rg_status *st) {
    RG_TRY(read_bytes(l, t, begin, bytes, dst, thread, st));
    const size_t block_bytes = rg_type_get((uint32_t)t->type)->block_bytes;
    RG_DASSERT(begin % block_bytes == 0 && bytes % block_bytes == 0);
    size_t block = 0;
    if (!rg_blocks_find_nonfinite(t->type, dst, bytes / block_bytes, &block)) return RG_OK;
    char where[32] = "";
    if (strncmp(t->name, "blk.", 4) == 0) {
        snprintf(where, sizeof where, "layer %.*s: ", (int)strspn(t->name + 4, "0123456789"),
                 t->name + 4);
    }
    return rg_fail(st, RG_FORMAT, "%s%s is damaged: block %zu of %zu is not finite", where, t->name,
                   begin / block_bytes + block, (size_t)t->size_bytes / block_bytes);
}

static rg_code read_vector(const loader *l, const load_item *it, uint8_t *dst, int thread,
                           rg_status *st) {
    const size_t n = it->bytes / sizeof(float);
    if (it->tensor->type == RG_TYPE_F32)
        return read_checked(l, it->tensor, 0, it->bytes, dst, thread, st);
    const size_t packed_bytes = (size_t)it->tensor->size_bytes;
    void *packed = rg_alloc(1, packed_bytes, st);
    if (!packed) return RG_NOMEM;
    const rg_code rc = read_checked(l, it->tensor, 0, packed_bytes, packed, thread, st);
    if (rc == RG_OK) rg_unpack_row(it->tensor->type, packed, (float *)(void *)dst, n);
    rg_free(packed);
    return rc;
}

static rg_code read_piece(loader *l, const load_piece *p, int thread, rg_status *st) {
    const load_item *it = &l->items[p->item];
    uint8_t *dst = (uint8_t *)l->core->w.memory + it->offset;
    if (it->f32) return read_vector(l, it, dst, thread, st);
    return read_checked(l, it->tensor, p->begin, p->bytes, dst + p->begin, thread, st);
}

static void read_share(void *arg, size_t begin, size_t end, int thread) {
    loader *l = arg;
    const rg_core_options *opt = &l->core->opt;
    for (size_t i = begin; i < end; i++) {
        if (atomic_load_explicit(&l->failed, memory_order_relaxed)) return;
        rg_status st = {0};
        if (read_piece(l, &l->pieces[i], thread, &st) != RG_OK) {
            bool expected = false;
            if (atomic_compare_exchange_strong(&l->failed, &expected, true)) l->first = st;
            return;
        }
        const uint64_t done =
            atomic_fetch_add_explicit(&l->done_bytes, l->pieces[i].bytes, memory_order_relaxed) +
            l->pieces[i].bytes;
        if (thread == 0 && opt->progress) {
            opt->progress(opt->progress_user, "load", done, l->total);
        }
    }
}

/* Whole blocks of a matrix; a vector is one piece. */
static size_t piece_bytes(const load_item *it) {
    if (it->f32) return it->bytes;
    return PIECE_BYTES - PIECE_BYTES % rg_type_get((uint32_t)it->tensor->type)->block_bytes;
}

static rg_code cut_pieces(loader *l, rg_status *st) {
    size_t n = 0;
    for (uint32_t i = 0; i < l->n_item; i++) {
        const size_t step = piece_bytes(&l->items[i]);
        n += (l->items[i].bytes + step - 1) / step;
    }
    l->pieces = rg_alloc(n, sizeof *l->pieces, st);
    if (!l->pieces) return RG_NOMEM;
    for (uint32_t i = 0; i < l->n_item; i++) {
        const size_t step = piece_bytes(&l->items[i]);
        for (size_t begin = 0; begin < l->items[i].bytes; begin += step) {
            const size_t left = l->items[i].bytes - begin;
            l->pieces[l->n_piece++] =
                (load_piece){.item = i, .begin = begin, .bytes = left < step ? left : step};
        }
    }
    RG_ASSERT(l->n_piece <= n);
    return RG_OK;
}

/* Opens the files past the page cache where they should and can be. */
static rg_code open_direct(loader *l, uint64_t free_bytes, rg_status *st) {
    const rg_core *core = l->core;
    const rg_stream_direct mode = core->opt.io.direct;
    l->forget = core->opt.spare_cache || l->streamed || free_bytes / SMALL_PART < l->total;
    if (mode == RG_DIRECT_OFF || (mode == RG_DIRECT_AUTO && !l->forget)) return RG_OK;
    const uint32_t n_file = rg_gguf_file_count(core->gguf);
    l->direct = rg_alloc(n_file, sizeof *l->direct, st);
    if (!l->direct) return RG_NOMEM;
    bool any = false;
    for (uint32_t i = 0; i < n_file; i++) {
        if (rg_file_open_direct(&l->direct[i], rg_gguf_file_path(core->gguf, i), NULL) == RG_OK)
            any = true;
    }
    if (!any) return RG_OK;
    const size_t n = (size_t)rg_pool_threads(core->pool);
    l->bounce_bytes = BOUNCE_TOTAL_BYTES / n;
    l->bounce_bytes -= l->bounce_bytes % RG_DIRECT_ALIGN;
    if (l->bounce_bytes < BOUNCE_BYTES_MIN) l->bounce_bytes = BOUNCE_BYTES_MIN;
    if (l->bounce_bytes > BOUNCE_BYTES_MAX) l->bounce_bytes = BOUNCE_BYTES_MAX;
    void *memory = NULL;
    RG_TRY(rg_mem_map(&memory, n * l->bounce_bytes, st));
    l->bounce = memory;
    return RG_OK;
}

/* Once more at the end: pages that were still on their way when their piece was forgotten. */
static void forget_all(const loader *l) {
    for (uint32_t i = 0; l->forget && i < l->n_item; i++) {
        const rg_tensor *t = l->items[i].tensor;
        rg_file_forget(rg_gguf_file(l->core->gguf, t->file), t->offset, t->size_bytes);
    }
}

static void close_direct(loader *l) {
    if (l->bounce)
        rg_mem_unmap(l->bounce, (size_t)rg_pool_threads(l->core->pool) * l->bounce_bytes);
    for (uint32_t i = 0; l->direct && i < rg_gguf_file_count(l->core->gguf); i++)
        rg_file_close(&l->direct[i]);
    rg_free(l->direct);
}

static rg_code take_memory(loader *l, rg_status *st) {
    rg_weights *w = &l->core->w;
    const rg_code rc = rg_take_memory(&w->memory, l->total, st);
    if (rc != RG_OK) return rg_context(st, rc, "the weights");
    w->memory_bytes = l->total;
    for (uint32_t i = 0; i < l->n_item; i++) {
        const load_item *it = &l->items[i];
        const uint8_t *at = (const uint8_t *)w->memory + it->offset;
        if (it->data) *it->data = at;
        if (it->f32) *it->f32 = (const float *)(const void *)at;
    }
    return RG_OK;
}

rg_code rg_weights_count(uint64_t *trunk, uint64_t *experts, const rg_model *m, rg_status *st) {
    rg_core core = {.model = m, .hp = &m->hp};
    uint64_t bytes[2] = {0, 0}; /* with experts, without */
    rg_code rc = RG_OK;
    core.w.layers = rg_alloc(m->hp.n_layer, sizeof *core.w.layers, st);
    if (!core.w.layers) return RG_NOMEM;
    for (int streamed = 0; streamed < 2 && rc == RG_OK; streamed++) {
        loader l = {.core = &core, .streamed = streamed != 0, .st = st};
        bind_all(&l, &core.w, m);
        bytes[streamed] = l.total;
        rc = l.bind_rc;
        rg_free(l.items);
        core.n_mat = 0;
    }
    rg_free(core.mats);
    rg_free(core.w.layers);
    *trunk = bytes[1];
    *experts = bytes[0] - bytes[1];
    return rc;
}

rg_code rg_weights_load(rg_core *core, rg_status *st) {
    rg_code rc = RG_OK;
    loader l = {.core = core, .streamed = core->opt.arena_bytes > 0, .st = st};
    const rg_model *m = core->model;
    core->w.layers = rg_alloc(m->hp.n_layer, sizeof *core->w.layers, st);
    if (!core->w.layers) return RG_NOMEM;
    bind_all(&l, &core->w, m);
    RG_GO(l.bind_rc);
    RG_GO(open_direct(&l, rg_mem_available_bytes(), st));
    RG_GO(take_memory(&l, st));
    RG_GO(cut_pieces(&l, st));
    rg_pool_run(core->pool, l.n_piece, 1, read_share, &l);
    forget_all(&l);
    if (atomic_load(&l.failed)) {
        rc = l.first.code;
        if (st && st->code == RG_OK) *st = l.first;
        goto cleanup;
    }
    link_shared(&core->w, m);
cleanup:
    close_direct(&l);
    rg_free(l.items);
    rg_free(l.pieces);
    return rc;
}

void rg_weights_unload(rg_weights *w) {
    rg_mem_unmap(w->memory, w->memory_bytes);
    rg_free(w->layers);
    *w = (rg_weights){0};
}
