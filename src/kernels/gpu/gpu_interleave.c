/* Weights of i-quants with interleaved rows: gpu_interleave.h. */
#include "kernels/gpu/gpu_interleave.h"

#include <string.h>

/* A group of 32 weights of one row. */
typedef struct group {
    uint8_t low[8]; /* of the indices; four of grids of eight */
    uint8_t signs[4];
    uint32_t high;  /* further bits of the indices, the first one's lowest */
    uint32_t scale; /* a nibble, or one for each half */
} group;

/* ---- groups of a block (b, its bytes: quant/blocks.h); e, the group's number in it ----------- */

static uint32_t word_of(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Four codes of seven signs and a scale. */
static void even_signs(uint32_t w, group *g) {
    for (uint32_t l = 0; l < 4; l++)
        g->signs[l] = rg_ksigns_iq2xs[w >> (7 * l) & 127];
    g->scale = w >> 28;
}

static void group_iq2_xxs(const uint8_t *b, uint32_t e, group *g) {
    memcpy(g->low, b + 2 + 8 * e, 4);
    even_signs(word_of(b + 6 + 8 * e), g);
}

static void group_iq2_xs(const uint8_t *b, uint32_t e, group *g) {
    for (uint32_t l = 0; l < 4; l++) {
        const uint8_t *p = b + 2 + 8 * e + 2 * l;
        g->low[l] = p[0];
        g->high |= (uint32_t)(p[1] & 1) << l;
        g->signs[l] = rg_ksigns_iq2xs[p[1] >> 1];
    }
    g->scale = b[66 + e];
}

static void group_iq2_s(const uint8_t *b, uint32_t e, group *g) {
    memcpy(g->low, b + 2 + 4 * e, 4);
    memcpy(g->signs, b + 34 + 4 * e, 4);
    g->high = b[66 + e];
    g->scale = b[74 + e];
}

static void group_iq3_xxs(const uint8_t *b, uint32_t e, group *g) {
    memcpy(g->low, b + 2 + 8 * e, 8);
    even_signs(word_of(b + 66 + 4 * e), g);
}

static void group_iq3_s(const uint8_t *b, uint32_t e, group *g) {
    memcpy(g->low, b + 2 + 8 * e, 8);
    memcpy(g->signs, b + 74 + 4 * e, 4);
    g->high = b[66 + e];
    g->scale = b[106 + e / 2] >> (4 * (e & 1)) & 15u;
}

typedef struct form {
    rg_type type;
    uint32_t n_index; /* of a group: 4 or 8 */
    uint32_t extra;   /* bytes of a row and group */
    void (*read)(const uint8_t *b, uint32_t e, group *g);
} form;

static const form forms[] = {
    {RG_TYPE_IQ2_XXS, 4, 1, group_iq2_xxs}, {RG_TYPE_IQ2_XS, 4, 2, group_iq2_xs},
    {RG_TYPE_IQ2_S, 4, 2, group_iq2_s},     {RG_TYPE_IQ3_XXS, 8, 1, group_iq3_xxs},
    {RG_TYPE_IQ3_S, 8, 2, group_iq3_s},
};

/* NULL: weights of this type have no such layout. */
static const form *form_of(rg_type type) {
    for (size_t i = 0; i < RG_ARRAY_LEN(forms); i++) {
        if (forms[i].type == type) return &forms[i];
    }
    return NULL;
}

/* ---- layout ---------------------------------------------------------------------------------- */

bool rg_gpu_can_interleave(rg_type type, uint32_t n_in) {
    return form_of(type) && n_in && n_in % 256 == 0;
}

static uint64_t whole(uint64_t bytes) {
    return (bytes + 15) / 16 * 16;
}

rg_gpu_interleaved rg_gpu_interleaved_of(rg_type type, uint32_t n_in, uint32_t n_out) {
    const form *f = form_of(type);
    if (!f) return (rg_gpu_interleaved){0};
    RG_ASSERT(n_in % 256 == 0);
    const uint64_t groups = ((uint64_t)n_out + 1) / 2 * (n_in / 32);
    rg_gpu_interleaved p = {.signs = 16 * groups};
    p.extra = p.signs + (f->n_index == 8 ? whole(8 * groups) : 0);
    p.d = p.extra + whole(2 * f->extra * groups);
    p.bytes = p.d + whole(groups / 2);
    return p;
}

/* ---- packing --------------------------------------------------------------------------------- */

static void put_word(uint8_t *to, uint32_t w) {
    for (int k = 0; k < 4; k++)
        to[k] = (uint8_t)(w >> (8 * k));
}

/* Value 4 q + k: bit 8 k + q. */
static uint32_t sign_word(const uint8_t signs[4]) {
    uint32_t w = 0;
    for (uint32_t i = 0; i < 32; i++)
        w |= (uint32_t)(signs[i / 8] >> (i % 8) & 1) << (8 * (i % 4) + i / 4);
    return w;
}

/* Group `at` of the planes, of the first or second row of its pair. */
static void put_group(const form *f, const rg_gpu_interleaved *p, uint8_t *dst, uint64_t at,
                      uint32_t second, const group *g) {
    uint8_t *codes = dst + 16 * at + (size_t)8 * second;
    uint8_t *extra = dst + p->extra + (2 * at + second) * f->extra;
    memcpy(codes, g->low, f->n_index);
    put_word(f->n_index == 8 ? dst + p->signs + 8 * at + (size_t)4 * second : codes + 4,
             sign_word(g->signs));
    extra[0] = (uint8_t)(f->extra == 2 ? g->high : g->scale);
    if (f->extra == 2) extra[1] = (uint8_t)g->scale;
}

/* Row r of the matrix; `row` NULL: zeros. */
static void pack_row(const form *f, uint32_t n_in, const rg_gpu_interleaved *p, const uint8_t *row,
                     uint8_t *dst, uint32_t r) {
    const size_t block_bytes = rg_type_get((uint32_t)f->type)->block_bytes;
    const uint64_t first = (uint64_t)(r / 2) * (n_in / 32);
    for (uint32_t i = 0; i < n_in / 32; i++) {
        static const uint8_t zero[2] = {0};
        const uint8_t *block = row ? row + block_bytes * (i / 8) : NULL;
        group g = {0};
        if (block) f->read(block, i % 8, &g);
        put_group(f, p, dst, first + i, r % 2, &g);
        /* Every block begins with its scale. */
        memcpy(dst + p->d + 4 * ((first + i) / 8) + (size_t)2 * (r % 2), block ? block : zero, 2);
    }
}

void rg_gpu_interleave(rg_type type, uint32_t n_in, uint32_t n_out, const void *src, void *dst,
                       uint32_t pair0, uint32_t pair1) {
    const rg_gpu_interleaved p = rg_gpu_interleaved_of(type, n_in, n_out);
    const form *f = form_of(type);
    const size_t row = rg_row_bytes(type, n_in);
    for (uint32_t r = 2 * pair0; f && r < 2 * pair1; r++)
        pack_row(f, n_in, &p, r < n_out ? (const uint8_t *)src + r * row : NULL, dst, r);
}
