/* One sequence is run with a tap on; ids and guesses of every layer are kept, then counted. One
 * thread: the tap is called on it.
 */
#include "forge/route_stats.h"

#include <math.h>
#include <string.h>

#include "engine/engine.h"

#define CACHE_SHARE  0.2045 /* 5,027 of 24,576 */
#define WARM_UP_MOST 256u   /* tokens the cache sees before it counts */

typedef struct meter {
    const rg_gguf *gguf;
    const rg_model *model;
    const rg_ops *ops;
    uint32_t L, X, K, T, E;
    float *routers;          /* [L][X][E] */
    uint16_t *ids;           /* [L][T][K] */
    uint16_t *guess;         /* [L][T][K], layers from 1 */
    float *logits;           /* [X] */
    uint8_t *chosen;         /* [X] marks of one layer and token */
    uint32_t *newer, *older; /* [L*X + 1] ring of the cache, most recent behind the last entry */
    uint8_t *held;           /* [L*X] */
    double logit_sum, logit_square, logit_n;
    rg_route_stats *out;
} meter;

/* ---- taps ------------------------------------------------------------------------------------ */

static void guess_rows(meter *m, uint32_t layer, uint32_t row0, uint32_t rows, const float *u) {
    uint32_t best[RG_EXPERT_USED_MAX];
    const float *router = m->routers + (size_t)layer * m->X * m->E;
    for (uint32_t t = 0; t < rows; t++) {
        for (uint32_t e = 0; e < m->X; e++)
            m->logits[e] = m->ops->dot(router + (size_t)e * m->E, u + (size_t)t * m->E, m->E);
        rg_top_k(m->logits, m->X, m->K, best);
        for (uint32_t k = 0; k < m->K; k++)
            m->guess[((size_t)layer * m->T + row0 + t) * m->K + k] = (uint16_t)best[k];
    }
}

static rg_code see(void *user, const char *name, uint32_t layer, uint32_t row0, uint32_t rows,
                   uint32_t cols, const float *data, rg_status *st) {
    meter *m = user;
    (void)st;
    const size_t n = (size_t)rows * cols;
    if (layer >= m->L) return RG_OK;
    if (strcmp(name, "mixed_ffn") == 0 && layer + 1 < m->L) {
        guess_rows(m, layer + 1, row0, rows, data);
    } else if (strcmp(name, "router_ids") == 0) {
        uint16_t *ids = m->ids + ((size_t)layer * m->T + row0) * m->K;
        for (size_t i = 0; i < n; i++)
            ids[i] = (uint16_t)data[i];
    } else if (strcmp(name, "router_logits") == 0) {
        for (size_t i = 0; i < n; i++) {
            m->logit_sum += (double)data[i];
            m->logit_square += (double)data[i] * (double)data[i];
        }
        m->logit_n += (double)n;
    } else if (strcmp(name, "residual") == 0) {
        for (uint32_t t = 0; t < rows; t++) {
            double square = 0;
            for (uint32_t i = 0; i < cols; i++)
                square += (double)data[(size_t)t * cols + i] * (double)data[(size_t)t * cols + i];
            m->out->residual_rms_max = fmax(m->out->residual_rms_max, sqrt(square / cols));
        }
    }
    return RG_OK;
}

/* ---- counting -------------------------------------------------------------------------------- */

static const uint16_t *ids_at(const meter *m, uint32_t layer, uint32_t t) {
    return m->ids + ((size_t)layer * m->T + t) * m->K;
}

/* Mean number of different experts of a layer in windows of w tokens. */
static double distinct(meter *m, uint32_t w) {
    double sum = 0, n = 0;
    for (uint32_t l = 0; l < m->L; l++) {
        for (uint32_t t = 0; t + w <= m->T; t += w) {
            memset(m->chosen, 0, m->X);
            for (uint32_t i = 0; i < w * m->K; i++)
                m->chosen[ids_at(m, l, t)[i]] = 1;
            for (uint32_t e = 0; e < m->X; e++)
                sum += m->chosen[e];
            n++;
        }
    }
    return n > 0 ? sum / n : 0;
}

static double reuse(meter *m, uint32_t back) {
    double same = 0, n = 0;
    for (uint32_t l = 0; l < m->L; l++) {
        for (uint32_t t = back; t < m->T; t++) {
            const uint16_t *now = ids_at(m, l, t), *then = ids_at(m, l, t - back);
            for (uint32_t i = 0; i < m->K; i++) {
                for (uint32_t k = 0; k < m->K; k++)
                    same += now[i] == then[k];
            }
            n += m->K;
        }
    }
    return n > 0 ? same / n : 0;
}

static double top_tenth(const meter *m, uint32_t *counts) {
    double share = 0;
    const uint32_t tenth = m->X / 10 ? m->X / 10 : 1;
    for (uint32_t l = 0; l < m->L; l++) {
        memset(counts, 0, m->X * sizeof *counts);
        for (size_t i = 0; i < (size_t)m->T * m->K; i++)
            counts[ids_at(m, l, 0)[i]]++;
        for (uint32_t i = 0; i < tenth; i++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < m->X; e++) {
                if (counts[e] > counts[best]) best = e;
            }
            share += counts[best];
            counts[best] = 0;
        }
    }
    return share / ((double)m->L * m->T * m->K);
}

/* ---- cache ----------------------------------------------------------------------------------- */

static void unlink_entry(meter *m, uint32_t e) {
    m->newer[m->older[e]] = m->newer[e];
    m->older[m->newer[e]] = m->older[e];
}

/* Makes e the most recent; `root` closes the ring: newer[root] is the oldest entry. */
static void touch(meter *m, uint32_t e, uint32_t *count, uint32_t cap) {
    const uint32_t root = m->L * m->X;
    if (m->held[e]) {
        unlink_entry(m, e);
    } else if (*count == cap) {
        const uint32_t oldest = m->newer[root];
        m->held[oldest] = 0;
        unlink_entry(m, oldest);
    } else {
        (*count)++;
    }
    m->held[e] = 1;
    m->newer[e] = root;
    m->older[e] = m->older[root];
    m->newer[m->older[root]] = e;
    m->older[root] = e;
}

static void count_hits(meter *m, double share) {
    rg_route_stats *out = m->out;
    const uint32_t root = m->L * m->X, warm = m->T / 4 < WARM_UP_MOST ? m->T / 4 : WARM_UP_MOST;
    uint32_t cap = (uint32_t)(share * root), count = 0;
    if (cap < m->K) cap = m->K;
    double n = 0, n_missing[RG_ROUTE_RANKS] = {0}, found = 0;
    m->newer[root] = m->older[root] = root;
    for (uint32_t t = 0; t < m->T; t++) {
        for (uint32_t l = 0; l < m->L; l++) {
            const uint16_t *ids = ids_at(m, l, t);
            const uint16_t *guess = m->guess + ((size_t)l * m->T + t) * m->K;
            memset(m->chosen, 0, m->X);
            for (uint32_t k = 0; k < m->K; k++) {
                m->chosen[ids[k]] = 1;
                if (t >= warm) found += m->held[l * m->X + ids[k]];
            }
            for (uint32_t r = 0; r < out->n_rank && l > 0 && t >= warm; r++) {
                const bool missing = !m->held[l * m->X + guess[r]];
                out->hit[r] += m->chosen[guess[r]];
                out->hit_missing[r] += missing && m->chosen[guess[r]];
                n_missing[r] += missing;
            }
            if (t >= warm && l > 0) n++;
            for (uint32_t k = 0; k < m->K; k++)
                touch(m, l * m->X + ids[k], &count, cap);
        }
    }
    out->cache_hit = found / ((double)(m->T - warm) * m->L * m->K);
    for (uint32_t r = 0; r < out->n_rank; r++) {
        out->hit[r] = n > 0 ? out->hit[r] / n : 0;
        out->hit_missing[r] = n_missing[r] > 0 ? out->hit_missing[r] / n_missing[r] : 0;
    }
}

static void count_all(meter *m, const rg_route_options *opt) {
    rg_route_stats *out = m->out;
    out->distinct_3 = distinct(m, 3);
    out->distinct_1024 = distinct(m, 1024);
    out->distinct_2048 = distinct(m, 2048);
    out->reuse_1 = reuse(m, 1);
    out->reuse_64 = reuse(m, 64);
    out->top_tenth_share = top_tenth(m, m->newer);
    count_hits(m, opt->cache_share > 0 ? opt->cache_share : CACHE_SHARE);
    const double mean = m->logit_sum / m->logit_n;
    out->logit_std = sqrt(m->logit_square / m->logit_n - mean * mean);
}

/* ---- running --------------------------------------------------------------------------------- */

static rg_code load_routers(meter *m, rg_status *st) {
    for (uint32_t l = 0; l < m->L; l++) {
        const rg_tensor *t = m->model->layers[l].moe.router;
        uint8_t *raw = rg_alloc(1, (size_t)t->size_bytes, st);
        if (!raw) return RG_NOMEM;
        const rg_code rc = rg_gguf_read(m->gguf, t, 0, (size_t)t->size_bytes, raw, st);
        if (rc == RG_OK) {
            rg_unpack_row(t->type, raw, m->routers + (size_t)l * m->X * m->E, (size_t)m->X * m->E);
        }
        rg_free(raw);
        RG_TRY(rc);
    }
    return RG_OK;
}

static rg_code take_memory(meter *m, rg_status *st) {
    const size_t all = (size_t)m->L * m->X;
    m->routers = rg_alloc(all * m->E, sizeof *m->routers, st);
    m->ids = rg_alloc((size_t)m->L * m->T * m->K, sizeof *m->ids, st);
    m->guess = rg_alloc((size_t)m->L * m->T * m->K, sizeof *m->guess, st);
    m->logits = rg_alloc(m->X, sizeof *m->logits, st);
    m->chosen = rg_alloc(m->X, 1, st);
    m->newer = rg_alloc(all + 1, sizeof *m->newer, st);
    m->older = rg_alloc(all + 1, sizeof *m->older, st);
    m->held = rg_alloc(all, 1, st);
    const bool whole = m->routers && m->ids && m->guess && m->logits && m->chosen && m->newer &&
                       m->older && m->held;
    return whole ? RG_OK : RG_NOMEM;
}

static void release(meter *m) {
    rg_free(m->routers);
    rg_free(m->ids);
    rg_free(m->guess);
    rg_free(m->logits);
    rg_free(m->chosen);
    rg_free(m->newer);
    rg_free(m->older);
    rg_free(m->held);
}

static rg_code run(meter *m, const rg_route_options *opt, const int32_t *ids, rg_status *st) {
    rg_core *core = NULL;
    rg_seq *seq = NULL;
    rg_code rc = RG_OK;
    rg_core_options core_opt = {.n_threads = opt->n_threads, .kernels = RG_KERNELS_AUTO};
    RG_TRY(rg_cpu_level_pick(&core_opt.level, NULL, st));
    m->ops = rg_ops_get(core_opt.level);
    RG_GO(rg_core_create(&core, m->gguf, m->model, &core_opt, st));
    RG_GO(rg_seq_create(&seq, core, &(rg_seq_options){.n_ctx = m->T, .kv = RG_KV_F16}, st));
    rg_core_set_tap(core, &(rg_tap){.see = see, .user = m});
    RG_GO(rg_core_eval(core, seq, ids, m->T, 0, RG_WANT_NONE, NULL, NULL, st));
cleanup:
    rg_seq_destroy(seq);
    rg_core_destroy(core);
    return rc;
}

static rg_code measure(meter *m, const rg_route_options *opt, rg_status *st) {
    const rg_hparams *hp = &m->model->hp;
    m->L = hp->n_layer;
    m->X = hp->n_expert;
    m->K = hp->n_expert_used;
    m->E = hp->n_embd;
    m->T = opt->n_tokens;
    if (m->T < 1 || m->T > hp->n_ctx_train || m->T > RG_ROUTE_TOKENS_MAX) {
        return rg_fail(st, RG_INVALID, "%u tokens are wanted, the limit is %u", m->T,
                       hp->n_ctx_train < RG_ROUTE_TOKENS_MAX ? hp->n_ctx_train
                                                             : RG_ROUTE_TOKENS_MAX);
    }
    *m->out = (rg_route_stats){.n_layer = m->L, .n_expert = m->X, .n_used = m->K, .n_tokens = m->T};
    m->out->n_rank = m->K < RG_ROUTE_RANKS ? m->K : RG_ROUTE_RANKS;
    RG_TRY(take_memory(m, st));
    RG_TRY(load_routers(m, st));
    int32_t *ids = rg_alloc(m->T, sizeof *ids, st);
    if (!ids) return RG_NOMEM;
    for (uint32_t t = 0; t < m->T; t++) {
        ids[t] = opt->ids ? opt->ids[t] : (int32_t)(rg_random_u64(opt->seed, t) % hp->n_vocab);
    }
    const rg_code rc = run(m, opt, ids, st);
    rg_free(ids);
    RG_TRY(rc);
    count_all(m, opt);
    return RG_OK;
}

rg_code rg_route_measure(const char *path, const rg_route_options *opt, rg_route_stats *out,
                         rg_status *st) {
    rg_gguf *g = NULL;
    rg_model *model = NULL;
    meter m = {.out = out};
    rg_code rc = RG_OK;
    *out = (rg_route_stats){0};
    RG_GO(rg_gguf_open(&g, path, st));
    RG_GO(rg_model_create(&model, g, &(rg_model_options){.no_mtp = true}, st));
    m.gguf = g;
    m.model = model;
    RG_GO(measure(&m, opt, st));
cleanup:
    release(&m);
    rg_model_destroy(model);
    rg_gguf_close(g);
    return rc;
}
