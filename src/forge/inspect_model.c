/* The part of `inspect` about a described model: its shape, its classes of experts (what one
 * expert's read costs, layer by layer), and which share of bytes and parameters lies where.
 */
#include "forge/inspect_parts.h"

#include <string.h>

typedef unsigned long long ull;

/* Where a tensor belongs. */
typedef enum tensor_role {
    ROLE_NONE, /* not used by the text model */
    ROLE_TRUNK,
    ROLE_EXPERT,
    ROLE_TABLE,
    ROLE_DRAFT,
    ROLE_DRAFT_EXPERT,
    ROLE_COUNT
} tensor_role;

/* Bytes of one expert of a layer: equal ones share a cache class. */
typedef struct rg_expert_class {
    const rg_tensor *gate, *up, *down; /* up NULL: gate holds both */
    uint64_t gate_bytes, up_bytes, down_bytes;
} rg_expert_class;

typedef struct rg_roles {
    const rg_gguf *g;
    uint8_t *of; /* [tensors] tensor_role */
} rg_roles;

static void mark(rg_roles *r, const rg_tensor *t, tensor_role role) {
    if (t) r->of[t - rg_gguf_tensor_at(r->g, 0)] = (uint8_t)role;
}

static void mark_all(rg_roles *r, const rg_tensor *const *list, size_t n, tensor_role role) {
    for (size_t i = 0; i < n; i++) {
        mark(r, list[i], role);
    }
}

static void mark_hc(rg_roles *r, const rg_hc_desc *h, tensor_role role) {
    const rg_tensor *const list[] = {h->norm, h->down, h->up, h->inject};
    mark_all(r, list, RG_ARRAY_LEN(list), role);
}

static void mark_layer(rg_roles *r, const rg_layer_desc *l, tensor_role role, tensor_role expert) {
    const rg_gdn_desc *n = &l->gdn;
    const rg_attn_desc *a = &l->attn;
    const rg_moe_desc *e = &l->moe;
    const rg_ple_desc *p = &l->ple;
    /* Absent ones are NULL. */
    const rg_tensor *const dense[] = {
        n->qkv,        n->gate,   n->alpha,       n->beta,       n->conv,        n->dt,
        n->a,          n->norm,   n->out,         a->q,          a->k,           a->v,
        a->out,        a->q_norm, a->k_norm,      a->idx_q,      a->idx_k,       a->idx_q_norm,
        a->idx_k_norm, e->router, e->shared_gate, e->shared_up,  e->shared_down, e->shared_gate_inp,
        p->key,        p->value,  p->norm_key,    p->norm_query, p->norm_conv,   p->conv};
    const rg_tensor *const experts[] = {e->gate, e->up, e->gate_up, e->down};
    mark_hc(r, &l->hc_attn, role);
    mark_hc(r, &l->hc_ffn, role);
    mark_all(r, dense, RG_ARRAY_LEN(dense), role);
    mark_all(r, experts, RG_ARRAY_LEN(experts), expert);
}

static void mark_model(rg_roles *r, const rg_model *m) {
    mark(r, m->token_embd, ROLE_TRUNK);
    mark(r, m->output, ROLE_TRUNK);
    mark_hc(r, &m->output_hc, ROLE_TRUNK);
    mark(r, m->ple_table, ROLE_TABLE);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        mark_layer(r, &m->layers[i], ROLE_TRUNK, ROLE_EXPERT);
    }
    if (!m->hp.n_mtp) return;
    const rg_mtp_desc *d = &m->mtp;
    const rg_tensor *const list[] = {d->enorm,     d->hnorm,        d->eh_proj,    d->fc_embd,
                                     d->fc_hidden, d->embed_tokens, d->shared_head};
    mark_layer(r, &d->layer, ROLE_DRAFT, ROLE_DRAFT_EXPERT);
    mark_hc(r, &d->head, ROLE_DRAFT);
    mark_all(r, list, RG_ARRAY_LEN(list), ROLE_DRAFT);
}

/* ---- experts -------------------------------------------------------------------------------- */

static rg_expert_class class_of(const rg_moe_desc *e) {
    rg_expert_class c = {.gate = e->gate_up ? e->gate_up : e->gate,
                         .up = e->gate_up ? NULL : e->up,
                         .down = e->down};
    c.gate_bytes = c.gate->size_bytes / c.gate->ne[2];
    c.up_bytes = c.up ? c.up->size_bytes / c.up->ne[2] : 0;
    c.down_bytes = c.down->size_bytes / c.down->ne[2];
    return c;
}

static bool same_class(const rg_expert_class *a, const rg_expert_class *b) {
    return a->gate->type == b->gate->type && a->down->type == b->down->type &&
           (a->up != NULL) == (b->up != NULL) && (!a->up || a->up->type == b->up->type) &&
           a->gate_bytes == b->gate_bytes && a->up_bytes == b->up_bytes &&
           a->down_bytes == b->down_bytes;
}

static const char *name_of(const rg_tensor *t) {
    return rg_type_get((uint32_t)t->type)->name;
}

/* One line for a class; `layers` is what precedes it. */
static rg_code put_class(rg_buf *out, const rg_expert_class *c, uint32_t n_expert, rg_status *st) {
    const uint64_t all = c->gate_bytes + c->up_bytes + c->down_bytes;
    if (c->up) {
        RG_TRY(rg_buf_printf(out, st, "gate %llu (%s) + up %llu (%s)", (ull)c->gate_bytes,
                             name_of(c->gate), (ull)c->up_bytes, name_of(c->up)));
    } else {
        RG_TRY(rg_buf_printf(out, st, "gate_up %llu (%s)", (ull)c->gate_bytes, name_of(c->gate)));
    }
    return rg_buf_printf(out, st, " + down %llu (%s) = %llu bytes, x %u\n", (ull)c->down_bytes,
                         name_of(c->down), (ull)all, n_expert);
}

/* Layers grouped by equal experts: "layers 0-2,5: ...". `seen` [n_layer] is cleared scratch. */
static rg_code put_classes(rg_buf *out, const rg_model *m, bool *seen, rg_status *st) {
    const uint32_t n = m->hp.n_layer;
    RG_TRY(rg_buf_printf(out, st, "\nexperts (one expert's bytes)\n"));
    for (uint32_t i = 0; i < n; i++) {
        if (seen[i]) continue;
        const rg_expert_class first = class_of(&m->layers[i].moe);
        const char *before = "  layers ";
        for (uint32_t k = i; k < n; k++) {
            const rg_expert_class c = class_of(&m->layers[k].moe);
            if (seen[k] || !same_class(&first, &c)) continue;
            uint32_t end = k;
            for (; end < n && !seen[end]; end++) {
                const rg_expert_class e = class_of(&m->layers[end].moe);
                if (!same_class(&first, &e)) break;
                seen[end] = true;
            }
            RG_TRY(rg_buf_printf(out, st, "%s%u", before, k));
            if (end > k + 1) RG_TRY(rg_buf_printf(out, st, "-%u", end - 1));
            before = ",";
            k = end - 1;
        }
        RG_TRY(rg_buf_puts(out, ": ", st));
        RG_TRY(put_class(out, &first, m->hp.n_expert, st));
    }
    if (!m->hp.n_mtp) return RG_OK;
    const rg_expert_class draft = class_of(&m->mtp.layer.moe);
    RG_TRY(rg_buf_puts(out, "  draft block: ", st));
    return put_class(out, &draft, m->hp.n_expert, st);
}

/* ---- shape and totals ----------------------------------------------------------------------- */

static rg_code put_shape(rg_buf *out, const rg_model *m, rg_status *st) {
    const rg_hparams *hp = &m->hp;
    uint32_t n_attn = 0, n_sparse = 0;
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        n_attn += m->layers[i].is_attn;
        n_sparse += m->layers[i].is_attn && m->layers[i].attn.ratio > 0;
    }
    RG_TRY(rg_buf_printf(out, st,
                         "\nmodel\n"
                         "  layers       %u (%u attention, %u of them sparse; %u delta net)%s\n"
                         "  width        %u, %u residual streams, rank %u\n"
                         "  attention    %u heads on %u, %u dims, %u rotary\n"
                         "  delta net    %u value heads on %u key heads, %u dims\n"
                         "  experts      %u of %u, shared width %u\n",
                         hp->n_layer, n_attn, n_sparse, hp->n_layer - n_attn,
                         hp->n_mtp ? " + 1 draft block" : "", hp->n_embd, hp->n_hc, hp->n_hc_rank,
                         hp->n_head, hp->n_head_kv, hp->head_dim, hp->n_rot, hp->n_v_head,
                         hp->n_k_head, hp->ssm_head_dim, hp->n_expert_used, hp->n_expert,
                         hp->n_ff_shared));
    if (hp->ple_ngram) {
        RG_TRY(rg_buf_printf(out, st, "  n-grams      up to %u, %u heads of %u, %llu rows\n",
                             hp->ple_ngram, hp->ple_n_head, hp->ple_row, (ull)m->ple_table->ne[1]));
    }
    return rg_buf_printf(out, st, "  vocabulary   %u%s\n  context      %u\n", hp->n_vocab,
                         m->output == m->token_embd ? ", head tied" : "", hp->n_ctx_train);
}

static rg_code put_totals(rg_buf *out, const rg_roles *r, const rg_model *m, rg_status *st) {
    static const char *const names[ROLE_COUNT] = {"not used",     "trunk",       "experts",
                                                  "n-gram table", "draft block", "draft experts"};
    static const tensor_role order[] = {ROLE_TRUNK, ROLE_EXPERT,       ROLE_TABLE,
                                        ROLE_DRAFT, ROLE_DRAFT_EXPERT, ROLE_NONE};
    const rg_hparams *hp = &m->hp;
    uint64_t elems[ROLE_COUNT] = {0}, bytes[ROLE_COUNT] = {0}, total = 0;
    for (size_t i = 0; i < rg_gguf_tensor_count(r->g); i++) {
        const rg_tensor *t = rg_gguf_tensor_at(r->g, i);
        elems[r->of[i]] += rg_inspect_elems(t);
        bytes[r->of[i]] += t->size_bytes;
    }
    RG_TRY(rg_buf_printf(out, st, "\nshares\n  %-14s %16s %16s\n", "", "weights", "bytes"));
    for (size_t k = 0; k < RG_ARRAY_LEN(order); k++) {
        const tensor_role role = order[k];
        if (role != ROLE_NONE) total += elems[role];
        if (!elems[role]) continue;
        RG_TRY(rg_buf_printf(out, st, "  %-14s %16llu %16llu\n", names[role], (ull)elems[role],
                             (ull)bytes[role]));
    }
    /* A token uses one row of the embedding (the head is whole), n_expert_used of n_expert experts,
     * and one row of the table for each hash head. */
    uint64_t active = elems[ROLE_TRUNK] + hp->n_embd;
    if (m->output != m->token_embd) active -= rg_inspect_elems(m->token_embd);
    active += elems[ROLE_EXPERT] / hp->n_expert * hp->n_expert_used;
    active += (uint64_t)hp->ple_n_head * hp->ple_row;
    return rg_buf_printf(out, st, "  parameters     %16llu total, %llu active per token (trunk)\n",
                         (ull)total, (ull)active);
}

rg_code rg_inspect_model(const rg_gguf *g, const rg_model *m, rg_buf *out, rg_status *st) {
    rg_roles r = {.g = g};
    rg_code rc = RG_NOMEM;
    bool *seen = rg_alloc(m->hp.n_layer, sizeof *seen, st);
    r.of = rg_alloc(rg_gguf_tensor_count(g), 1, st);
    if (!seen || !r.of) goto cleanup;
    mark_model(&r, m);
    RG_GO(put_shape(out, m, st));
    RG_GO(put_classes(out, m, seen, st));
    rc = put_totals(out, &r, m, st);
cleanup:
    rg_free(r.of);
    rg_free(seen);
    return rc;
}
