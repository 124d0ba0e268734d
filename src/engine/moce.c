#include "engine/moce.h"

#include <math.h>
#include <string.h>

#include "model/model.h"

#define NONE UINT32_MAX

/* What one row of the window chose in one layer. */
typedef struct row_route {
    uint32_t changed; /* experts that the plain router would not have chosen */
    float moved;      /* share of the plain route's weight that was given up */
    float range;      /* of the router logits */
} row_route;

struct rg_moce {
    rg_moce_shape shape;
    uint32_t n_item;
    /* Shadow directory: a list of items, newest at the head. */
    uint32_t *prev, *next; /* [n_item] */
    uint8_t *held;         /* [n_item] */
    uint32_t head, tail, count;
    /* The copy that routers see. */
    uint8_t *resident; /* [n_item] */
    float *bonus;      /* [n_layer] */
    /* Mean ranges. */
    double *range_sum; /* [n_layer] */
    uint64_t n_range;  /* tokens in each sum */
    /* The window. */
    uint32_t rows;
    row_route *routes;       /* [RG_MOCE_PERIOD][n_layer] */
    uint32_t *ids;           /* [RG_MOCE_PERIOD][n_layer][n_used] */
    float *scores;           /* [RG_MOCE_PERIOD][n_expert] */
    rg_moce_receipt receipt; /* mass_moved is a sum here */
};

/* ---- life ----------------------------------------------------------------------------------- */

static bool allocate(rg_moce *m, rg_status *st) {
    const size_t n = m->n_item, L = m->shape.n_layer, P = RG_MOCE_PERIOD;
    m->prev = rg_alloc(n, sizeof *m->prev, st);
    m->next = rg_alloc(n, sizeof *m->next, st);
    m->held = rg_alloc(n, sizeof *m->held, st);
    m->resident = rg_alloc(n, sizeof *m->resident, st);
    m->bonus = rg_alloc(L, sizeof *m->bonus, st);
    m->range_sum = rg_alloc(L, sizeof *m->range_sum, st);
    m->routes = rg_alloc(P * L, sizeof *m->routes, st);
    m->ids = rg_alloc(P * L * m->shape.n_used, sizeof *m->ids, st);
    m->scores = rg_alloc(P * m->shape.n_expert, sizeof *m->scores, st);
    return m->prev && m->next && m->held && m->resident && m->bonus && m->range_sum && m->routes &&
           m->ids && m->scores;
}

rg_code rg_moce_create(rg_moce **out, const rg_moce_shape *shape, rg_status *st) {
    *out = NULL;
    if (!(shape->lambda >= 0.0f && shape->lambda <= 1.0f)) {
        return rg_fail(st, RG_INVALID, "cache-aware routing of strength %g, 0 to 1 can be",
                       (double)shape->lambda);
    }
    RG_ASSERT(shape->n_used >= 1);
    RG_ASSERT(shape->n_used <= RG_EXPERT_USED_MAX);
    RG_ASSERT(shape->n_used <= shape->n_expert);
    rg_moce *m = rg_alloc(1, sizeof *m, st);
    if (!m) return RG_NOMEM;
    m->shape = *shape;
    m->n_item = shape->n_layer * shape->n_expert;
    m->head = m->tail = NONE;
    if (!allocate(m, st)) {
        rg_moce_destroy(m);
        return RG_NOMEM;
    }
    *out = m;
    return RG_OK;
}

void rg_moce_destroy(rg_moce *m) {
    if (!m) return;
    rg_free(m->prev);
    rg_free(m->next);
    rg_free(m->held);
    rg_free(m->resident);
    rg_free(m->bonus);
    rg_free(m->range_sum);
    rg_free(m->routes);
    rg_free(m->ids);
    rg_free(m->scores);
    rg_free(m);
}

rg_moce_receipt rg_moce_get_receipt(const rg_moce *m) {
    rg_moce_receipt r = m->receipt;
    if (r.tokens) r.mass_moved /= (double)r.tokens * m->shape.n_layer;
    return r;
}

/* ---- shadow directory ----------------------------------------------------------------------- */

static void unlink_item(rg_moce *m, uint32_t item) {
    RG_ASSERT(m->held[item]);
    const uint32_t p = m->prev[item], n = m->next[item];
    if (p != NONE)
        m->next[p] = n;
    else
        m->head = n;
    if (n != NONE)
        m->prev[n] = p;
    else
        m->tail = p;
    m->held[item] = 0;
    m->count--;
}

static void use_item(rg_moce *m, uint32_t item) {
    RG_ASSERT(item < m->n_item);
    if (m->shape.n_slot == 0) return;
    if (m->held[item])
        unlink_item(m, item);
    else if (m->count == m->shape.n_slot)
        unlink_item(m, m->tail);
    m->prev[item] = NONE;
    m->next[item] = m->head;
    if (m->head != NONE)
        m->prev[m->head] = item;
    else
        m->tail = item;
    m->head = item;
    m->held[item] = 1;
    m->count++;
}

bool rg_moce_holds(const rg_moce *m, uint32_t layer, uint32_t expert) {
    return m->held[layer * m->shape.n_expert + expert];
}

bool rg_moce_copy_holds(const rg_moce *m, uint32_t layer, uint32_t expert) {
    return m->resident[layer * m->shape.n_expert + expert];
}

/* ---- windows -------------------------------------------------------------------------------- */

uint32_t rg_moce_rows(uint32_t position, uint32_t n) {
    const uint32_t left = RG_MOCE_PERIOD - position % RG_MOCE_PERIOD;
    return n < left ? n : left;
}

void rg_moce_begin(rg_moce *m, uint32_t position, uint32_t rows) {
    RG_ASSERT(rows >= 1);
    RG_ASSERT(rows == rg_moce_rows(position, rows));
    m->rows = rows;
    if (position % RG_MOCE_PERIOD != 0) return;
    memcpy(m->resident, m->held, m->n_item);
    for (uint32_t l = 0; l < m->shape.n_layer && m->n_range; l++) {
        const double mean = m->range_sum[l] / (double)m->n_range;
        m->bonus[l] = (float)((double)m->shape.lambda * mean);
    }
}

/* Best plain logit first, ties by lower index: ids come in any order. */
static void sort_plain(const float *logits, uint32_t k, uint32_t *ids) {
    for (uint32_t i = 1; i < k; i++) {
        const uint32_t id = ids[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            const uint32_t before = ids[at - 1];
            const bool above =
                logits[id] > logits[before] || (!(logits[id] < logits[before]) && id < before);
            if (!above) break;
            ids[at] = before;
        }
        ids[at] = id;
    }
}

void rg_moce_select(const float *logits, const uint8_t *resident, float bonus, uint32_t n,
                    uint32_t k, float *scores, uint32_t *ids) {
    uint32_t best;
    rg_top_k(logits, n, 1, &best);
    for (uint32_t e = 0; e < n; e++)
        scores[e] = resident[e] ? logits[e] + bonus : logits[e];
    scores[best] = INFINITY;
    rg_top_k(scores, n, k, ids);
    sort_plain(logits, k, ids);
}

static bool contains(const uint32_t *ids, uint32_t k, uint32_t id) {
    for (uint32_t i = 0; i < k; i++)
        if (ids[i] == id) return true;
    return false;
}

/* What the choice gave up against the plain route. */
static void compare(const rg_moce *m, const rg_ops *ops, const float *logits, const uint32_t *ids,
                    row_route *r) {
    const uint32_t K = m->shape.n_used;
    uint32_t plain[RG_EXPERT_USED_MAX];
    float w[RG_EXPERT_USED_MAX];
    rg_top_k(logits, m->shape.n_expert, K, plain);
    r->changed = 0;
    r->moved = 0.0f;
    if (memcmp(plain, ids, K * sizeof *ids) == 0) return;
    ops->route_weights(logits, plain, K, 1.0f, w);
    for (uint32_t i = 0; i < K; i++) {
        if (contains(ids, K, plain[i])) continue;
        r->changed++;
        r->moved += w[i];
    }
}

void rg_moce_route(rg_moce *m, const rg_ops *ops, uint32_t layer, uint32_t row, const float *logits,
                   uint32_t *ids) {
    RG_ASSERT(layer < m->shape.n_layer);
    RG_ASSERT(row < m->rows);
    const uint32_t X = m->shape.n_expert, K = m->shape.n_used;
    rg_moce_select(logits, m->resident + (size_t)layer * X, m->bonus[layer], X, K,
                   m->scores + (size_t)row * X, ids);
    const size_t at = (size_t)row * m->shape.n_layer + layer;
    memcpy(m->ids + at * K, ids, K * sizeof *ids);
    compare(m, ops, logits, ids, &m->routes[at]);
    float least = logits[0], most = logits[0];
    for (uint32_t e = 1; e < X; e++) {
        least = logits[e] < least ? logits[e] : least;
        most = logits[e] > most ? logits[e] : most;
    }
    m->routes[at].range = most - least;
}

void rg_moce_accept(rg_moce *m, uint32_t rows) {
    RG_ASSERT(rows <= m->rows);
    const uint32_t L = m->shape.n_layer, K = m->shape.n_used;
    for (uint32_t t = 0; t < rows; t++) {
        for (uint32_t l = 0; l < L; l++) {
            const size_t at = (size_t)t * L + l;
            for (uint32_t k = 0; k < K; k++)
                use_item(m, l * m->shape.n_expert + m->ids[at * K + k]);
            m->range_sum[l] += (double)m->routes[at].range;
            m->receipt.routes_changed += m->routes[at].changed;
            m->receipt.mass_moved += (double)m->routes[at].moved;
        }
        m->n_range++;
        m->receipt.tokens++;
        m->receipt.routes += (uint64_t)L * K;
    }
    m->rows = 0;
}
