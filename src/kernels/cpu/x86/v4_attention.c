/* AVX-512 attention for several query heads on the same keys: bit-equal to the canonical form,
 * with keys and values loaded and converted once for four heads. Scores: tiles of four heads by
 * four keys, 16 accumulators of 16 lanes, reduced together along the canonical tree. Values: tiles
 * of four heads by 64 columns.
 */
#include <math.h>

#include "kernels/cpu/levels.h"
#include "kernels/cpu/x86/v4_types.h"

#define TILE 4u

/* The open span. Keys are listed by place: only allowed ones are read. */
typedef struct span {
    uint32_t base;          /* first position */
    uint32_t n;             /* allowed keys */
    uint8_t place[RG_SPAN]; /* ascending, position - base */
} span;

typedef struct heads {
    const float *q; /* [n][D] */
    const rg_cache_view *k, *v;
    float *o;      /* [n][D] */
    float *scores; /* [n][RG_SPAN] */
    uint32_t n, D;
    float scale;
    float m[RG_ATTENTION_HEADS], l[RG_ATTENTION_HEADS];     /* running maximum and sum */
    float old[RG_ATTENTION_HEADS], add[RG_ATTENTION_HEADS]; /* factors of a merge */
} heads;

RG_INLINE __m512 load16(const uint8_t *row, uint32_t c, bool f16) {
    if (!f16) return _mm512_loadu_ps(row + (size_t)4 * c);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(row + (size_t)2 * c)));
}

static const uint8_t *row_at(const rg_cache_view *view, uint32_t pos) {
    return (const uint8_t *)view->data + (size_t)pos * view->stride * (view->f16 ? 2 : 4);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The tree of the canonical dot for 16 accumulators a[key][head] at once: lanes l and l + 8, then
 * 4, 2, 1. The 128-bit part h of the result holds head h of keys 0..3. */
RG_INLINE __m512 trees(__m512 a[TILE][TILE]) {
    __m512 eight[TILE][2], four[TILE], two[2];
    for (uint32_t k = 0; k < TILE; k++) {
        for (uint32_t i = 0; i < 2; i++) {
            const __m512 x = a[k][2 * i], y = a[k][2 * i + 1];
            eight[k][i] =
                _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
        }
        four[k] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[k][0], eight[k][1], 0x88),
                                _mm512_shuffle_f32x4(eight[k][0], eight[k][1], 0xDD));
    }
    for (uint32_t i = 0; i < 2; i++) {
        two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                               _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88),
                         _mm512_shuffle_ps(two[0], two[1], 0xDD));
}

RG_INLINE __m512 score_tile(const float *const q[TILE], const uint8_t *const k[TILE], uint32_t D,
                            bool f16) {
    __m512 acc[TILE][TILE];
    for (uint32_t i = 0; i < TILE; i++) {
        for (uint32_t h = 0; h < TILE; h++)
            acc[i][h] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; c < D; c += 16) {
        __m512 x[TILE];
        for (uint32_t i = 0; i < TILE; i++)
            x[i] = load16(k[i], c, f16);
        for (uint32_t h = 0; h < TILE; h++) {
            const __m512 y = _mm512_loadu_ps(q[h] + c);
            for (uint32_t i = 0; i < TILE; i++)
                acc[i][h] = _mm512_fmadd_ps(y, x[i], acc[i][h]);
        }
    }
    return trees(acc);
}

/* Scores of four heads from h0 with all keys of the span; the last tile repeats heads and keys. */
RG_INLINE void score_heads(const heads *a, const span *s, uint32_t h0, bool f16) {
    const float *q[TILE];
    for (uint32_t h = 0; h < TILE; h++)
        q[h] = a->q + (size_t)(h0 + h < a->n ? h0 + h : h0) * a->D;
    for (uint32_t i0 = 0; i0 < s->n; i0 += TILE) {
        const uint8_t *k[TILE];
        uint32_t place[TILE];
        for (uint32_t i = 0; i < TILE; i++) {
            place[i] = s->place[i0 + i < s->n ? i0 + i : s->n - 1];
            k[i] = row_at(a->k, s->base + place[i]);
        }
        float tile[TILE][TILE];
        _mm512_storeu_ps(tile,
                         _mm512_mul_ps(score_tile(q, k, a->D, f16), _mm512_set1_ps(a->scale)));
        for (uint32_t h = 0; h < TILE && h0 + h < a->n; h++) {
            for (uint32_t i = 0; i < TILE; i++)
                a->scores[(size_t)(h0 + h) * RG_SPAN + place[i]] = tile[h][i];
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* rg_expf of math_inline.h, step by step. */
RG_INLINE __m512 exp16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    const __m512 least = _mm512_set1_ps(-104.0f);
    const __m512 c = _mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(least, x));
    const __m512 n = _mm512_sub_ps(
        _mm512_add_ps(_mm512_mul_ps(c, _mm512_set1_ps(1.44269504088896341f)), magic), magic);
    const __m512 r0 = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693145751953125f), c);
    const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-1.42860682030941723212e-6f), r0);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(1.381453825160861e-3f), r,
                               _mm512_set1_ps(8.36874544620514e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.166838899254799e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.1666652113199234f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.4999999403953552f));
    p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0f));
    const __m512 half =
        _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(n, _mm512_set1_ps(0.5f)), magic), magic);
    const __m512i bias = _mm512_set1_epi32(127);
    const __m512i e0 = _mm512_add_epi32(_mm512_cvttps_epi32(half), bias);
    const __m512i e1 = _mm512_add_epi32(_mm512_cvttps_epi32(_mm512_sub_ps(n, half)), bias);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(e0, 23)));
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(e1, 23)));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(x, least, _CMP_LT_OQ), _mm512_setzero_ps());
}

RG_INLINE float lanes_sum(__m512 v) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static float exp1(float x) {
    return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x)));
}

/* Scores to probabilities of the span, and the factors of its merge. A score that is no number
 * loses every comparison, as in the canonical maximum, and shows in the sum. */
static void soften(heads *a, uint32_t h) {
    float *s = a->scores + (size_t)h * RG_SPAN;
    __m512 x[RG_SPAN / 16], most = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < RG_SPAN / 16; i++) {
        x[i] = _mm512_loadu_ps(s + 16 * i);
        most = _mm512_max_ps(x[i], most);
    }
    const float ms = _mm512_reduce_max_ps(most);
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < RG_SPAN / 16; i++) {
        x[i] = exp16(_mm512_sub_ps(x[i], _mm512_set1_ps(ms)));
        _mm512_storeu_ps(s + 16 * i, x[i]);
        sum = i ? _mm512_add_ps(sum, x[i]) : x[i];
    }
    const float ls = lanes_sum(sum);
    const float M = a->m[h] > ms ? a->m[h] : ms;
    a->old[h] = exp1(a->m[h] - M);
    a->add[h] = exp1(ms - M);
    a->l[h] = fmaf(a->l[h], a->old[h], ls * a->add[h]);
    a->m[h] = M;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Adds the span to 16 * C columns from c0 of four heads from h0. */
RG_INLINE void value_tile(const heads *a, const span *s, uint32_t h0, uint32_t c0, uint32_t C,
                          bool f16) {
    __m512 acc[TILE][TILE];
    const float *p[TILE];
    for (uint32_t h = 0; h < TILE; h++) {
        p[h] = a->scores + (size_t)(h0 + h < a->n ? h0 + h : h0) * RG_SPAN;
        for (uint32_t c = 0; c < C; c++)
            acc[h][c] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t place = s->place[i];
        const uint8_t *row = row_at(a->v, s->base + place);
        __m512 v[TILE];
        for (uint32_t c = 0; c < C; c++)
            v[c] = load16(row, c0 + 16 * c, f16);
        for (uint32_t h = 0; h < TILE; h++) {
            const __m512 w = _mm512_set1_ps(p[h][place]);
            for (uint32_t c = 0; c < C; c++)
                acc[h][c] = _mm512_fmadd_ps(w, v[c], acc[h][c]);
        }
    }
    for (uint32_t h = 0; h < TILE && h0 + h < a->n; h++) {
        float *o = a->o + (size_t)(h0 + h) * a->D + c0;
        const __m512 old = _mm512_set1_ps(a->old[h0 + h]), add = _mm512_set1_ps(a->add[h0 + h]);
        for (uint32_t c = 0; c < C; c++) {
            const __m512 x = _mm512_mul_ps(acc[h][c], add);
            _mm512_storeu_ps(o + 16 * c, _mm512_fmadd_ps(_mm512_loadu_ps(o + 16 * c), old, x));
        }
    }
}

RG_INLINE void merge_span(heads *a, const span *s, bool k_f16, bool v_f16) {
    for (uint32_t h = 0; h < a->n; h++) {
        if (s->n == RG_SPAN) break; /* every score is written */
        for (uint32_t i = 0; i < RG_SPAN; i++)
            a->scores[(size_t)h * RG_SPAN + i] = -INFINITY;
    }
    for (uint32_t h = 0; h < a->n; h += TILE)
        score_heads(a, s, h, k_f16);
    for (uint32_t h = 0; h < a->n; h++)
        soften(a, h);
    for (uint32_t h = 0; h < a->n; h += TILE) {
        uint32_t c = 0;
        for (; c + 16 * TILE <= a->D; c += 16 * TILE)
            value_tile(a, s, h, c, TILE, v_f16);
        for (; c < a->D; c += 16)
            value_tile(a, s, h, c, 1, v_f16);
    }
}

static void merge_f16(heads *a, const span *s) {
    merge_span(a, s, true, true);
}

static void merge_f32(heads *a, const span *s) {
    merge_span(a, s, false, false);
}

void rg_v4_attention(const float *q, uint32_t n_q, const rg_cache_view *k, const rg_cache_view *v,
                     uint32_t D, float scale, const uint32_t *run_first, const uint32_t *run_count,
                     uint32_t n_run, float *o, float *tmp) {
    RG_ASSERT(n_q <= RG_ATTENTION_HEADS);
    if (D % 16 || k->f16 != v->f16) {
        rg_attention_v4(q, n_q, k, v, D, scale, run_first, run_count, n_run, o, tmp);
        return;
    }
    heads a = {.q = q, .k = k, .v = v, .o = o, .scores = tmp, .n = n_q, .D = D, .scale = scale};
    span s = {.base = UINT32_MAX};
    void (*const merge)(heads *, const span *) = k->f16 ? merge_f16 : merge_f32;
    for (uint32_t h = 0; h < n_q; h++)
        a.m[h] = -INFINITY;
    for (size_t c = 0; c < (size_t)n_q * D; c++)
        o[c] = 0.0f;
    for (uint32_t r = 0; r < n_run; r++) {
        for (uint32_t j = 0; j < run_count[r]; j++) {
            const uint32_t pos = run_first[r] + j, base = pos - pos % RG_SPAN;
            if (base != s.base) {
                if (s.n) merge(&a, &s);
                s.n = 0;
                s.base = base;
            }
            s.place[s.n++] = (uint8_t)(pos - base);
        }
    }
    if (s.n) merge(&a, &s);
    for (uint32_t h = 0; h < n_q; h++) {
        for (uint32_t c = 0; c < D; c++)
            o[(size_t)h * D + c] /= a.l[h];
    }
}

/* ---- index scores -----------------------------------------------------------------------------
 */

/* Scores of four blocks from b0; the last tile repeats blocks and heads. */
RG_INLINE __m128 block_tile(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                            uint32_t b0, uint32_t b1, bool f16) {
    const uint8_t *k[TILE];
    __m128 sum = _mm_setzero_ps();
    for (uint32_t i = 0; i < TILE; i++)
        k[i] = row_at(keys, b0 + i < b1 ? b0 + i : b1 - 1);
    for (uint32_t h0 = 0; h0 < n_head; h0 += TILE) {
        const float *heads_q[TILE];
        float tile[TILE][TILE];
        for (uint32_t h = 0; h < TILE; h++)
            heads_q[h] = q + (size_t)(h0 + h < n_head ? h0 + h : h0) * D;
        _mm512_storeu_ps(tile, score_tile(heads_q, k, D, f16));
        /* The second operand wins against a score that is no number, and against -0. */
        for (uint32_t h = 0; h < TILE && h0 + h < n_head; h++)
            sum = _mm_add_ps(sum, _mm_max_ps(_mm_loadu_ps(tile[h]), _mm_setzero_ps()));
    }
    return sum;
}

void rg_v4_index_scores(const float *q, uint32_t n_head, uint32_t D, const rg_cache_view *keys,
                        uint32_t b0, uint32_t b1, float *out, float *tmp) {
    if (D % 16) {
        rg_index_scores_v4(q, n_head, D, keys, b0, b1, out, tmp);
        return;
    }
    for (uint32_t b = b0; b < b1; b += TILE) {
        const __m128 sum = keys->f16 ? block_tile(q, n_head, D, keys, b, b1, true)
                                     : block_tile(q, n_head, D, keys, b, b1, false);
        const uint32_t n = b1 - b < TILE ? b1 - b : TILE;
        _mm_mask_storeu_ps(out + b, (__mmask8)((1u << n) - 1), sum);
    }
}
