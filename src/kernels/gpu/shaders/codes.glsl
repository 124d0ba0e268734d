// Thirty-two weights of a row as signed 8-bit codes, four a word, with their exact integer scales
// and the float scale of the block: w = d * (s * code) + dm * m. A row of any quantised type is cut
// into groups of 32 values; a group has one or two scales (of its halves). Formats:
// src/quant/blocks.h. Ids of types: rg_type.
//
// Grids and value tables lie in shared memory (load_tables). Every loop over codes is unrolled:
// arrays indexed at run time would leave the registers.
#extension GL_EXT_control_flow_attributes : require

const uint T_F32 = 0u, T_F16 = 1u, T_Q4_0 = 2u, T_Q4_1 = 3u, T_Q5_0 = 6u, T_Q5_1 = 7u, T_Q8_0 = 8u;
const uint T_Q2_K = 10u, T_Q3_K = 11u, T_Q4_K = 12u, T_Q5_K = 13u, T_Q6_K = 14u;
const uint T_IQ2_XXS = 16u, T_IQ2_XS = 17u, T_IQ3_XXS = 18u, T_IQ1_S = 19u, T_IQ4_NL = 20u;
const uint T_IQ3_S = 21u, T_IQ2_S = 22u, T_IQ4_XS = 23u, T_IQ1_M = 29u, T_BF16 = 30u;
const uint T_TQ1_0 = 34u, T_TQ2_0 = 35u, T_MXFP4 = 39u, T_NVFP4 = 40u, T_Q1_0 = 41u, T_Q2_0 = 42u;

// Where each grid starts in the table buffer, and its size, in words (rg_gpu_tables).
const uint G_IQ2XXS = 0u, G_IQ2XS = 512u, G_IQ2S = 1536u, G_IQ1S = 3584u, G_IQ3XXS = 7680u;
const uint G_IQ3S = 7936u, G_NL = 8480u, G_FP4 = 8484u;

// A grid of word pairs (16 KiB at most) or of words; sized by the host.
layout(constant_id = 0) const uint TYPE = 0u;
layout(constant_id = 1) const uint GRID = 1u; // uvec2 of it
shared uvec2 grid[GRID];

bool is_float(uint type) {
    return type == T_F32 || type == T_F16 || type == T_BF16;
}

bool has_min(uint type) {
    return type == T_Q4_1 || type == T_Q5_1 || type == T_Q2_K || type == T_Q4_K || type == T_Q5_K;
}

// Whether the halves of a group have scales of their own.
bool has_halves(uint type) {
    return type == T_Q2_K || type == T_Q3_K || type == T_Q6_K || type == T_IQ2_XS ||
           type == T_IQ2_S || type == T_IQ1_M;
}

struct Group {
    uint q[8]; // 32 codes
    int s0, s1; // scales of the halves
    float d;
    float d1;   // nvfp4: of the second half
    float dm;   // w += dm * m
    int m0, m1;
};

// ---- reading ------------------------------------------------------------------------------------

uint word_at(uint64_t p) { // aligned
    return U32(p).v[0];
}

uint u16_at(uint64_t p) { // even
    return uint(U16(p).v[0]);
}

uint u8_at(uint64_t p) {
    return uint(U8(p).v[0]);
}

float f16_at(uint64_t p) {
    return unpackHalf2x16(u16_at(p)).x;
}

// The word that starts `shift` bits into a pair of words.
uint funnel(uint low, uint high, uint shift) {
    return uint((uint64_t(high) << 32 | uint64_t(low)) >> shift);
}

uint u32_at(uint64_t p) { // even
    return u16_at(p) | u16_at(p + 2ul) << 16;
}

// Sixteen bytes at an even address.
uvec4 load_16(uint64_t p) {
    uint64_t b = p & ~3ul;
    uint s = 8u * (uint(p) & 2u);
    uint w0 = word_at(b), w1 = word_at(b + 4ul), w2 = word_at(b + 8ul), w3 = word_at(b + 12ul);
    uint w4 = s != 0u ? word_at(b + 16ul) : 0u;
    return uvec4(funnel(w0, w1, s), funnel(w1, w2, s), funnel(w2, w3, s), funnel(w3, w4, s));
}

uvec4 load_aligned(uint64_t p) {
    return uvec4(word_at(p), word_at(p + 4ul), word_at(p + 8ul), word_at(p + 12ul));
}

// Sixteen bytes at any address.
uvec4 load_odd(uint64_t p) {
    uint64_t b = p & ~3ul;
    uint s = 8u * (uint(p) & 3u);
    uint w0 = word_at(b), w1 = word_at(b + 4ul), w2 = word_at(b + 8ul), w3 = word_at(b + 12ul);
    uint w4 = s != 0u ? word_at(b + 16ul) : 0u;
    return uvec4(funnel(w0, w1, s), funnel(w1, w2, s), funnel(w2, w3, s), funnel(w3, w4, s));
}

// ---- bytes in words -----------------------------------------------------------------------------

// Each byte of x, below 128, minus a constant byte.
uint minus(uint x, uint bias) {
    return ((x | 0x80808080u) - bias * 0x01010101u) ^ 0x80808080u;
}

// Four bits, each to a byte of its own.
uint spread(uint bits) {
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}

// Eight bits of pairs, each pair to a byte of its own.
uint spread_2(uint bits) {
    uint v = bits & 255u;
    return (v | v << 6 | v << 12 | v << 18) & 0x03030303u;
}

// Bytes of x, none of them 0, negated where `bits` has a one.
uint with_signs(uint x, uint bits) {
    uint one = spread(bits);
    return (x ^ one * 255u) + one;
}

// Seven signs and the eighth that makes their number even.
uint even_signs(uint code) {
    return code | (uint(bitCount(code)) & 1u) << 7;
}

void put(inout Group u, uint at, uvec4 w) {
    [[unroll]] for (uint k = 0u; k < 4u; k++)
        u.q[at + k] = w[k];
}

// ---- tables -------------------------------------------------------------------------------------

uint grid_start(uint type) {
    if (type == T_IQ2_XXS) return G_IQ2XXS;
    if (type == T_IQ2_XS) return G_IQ2XS;
    if (type == T_IQ2_S) return G_IQ2S;
    if (type == T_IQ3_XXS) return G_IQ3XXS;
    if (type == T_IQ3_S) return G_IQ3S;
    return G_IQ1S;
}

// All threads of a workgroup; a barrier must follow.
void load_tables(uint tid, uint n_thread, U32 t) {
    if (TYPE == T_IQ4_NL || TYPE == T_IQ4_XS || TYPE == T_MXFP4 || TYPE == T_NVFP4) {
        uint base = TYPE == T_IQ4_NL || TYPE == T_IQ4_XS ? G_NL : G_FP4; // one byte a word
        for (uint i = tid; i < 8u; i += n_thread) {
            uint w = t.v[base + i / 2u] >> (16u * (i & 1u));
            grid[i] = uvec2(w & 255u, w >> 8 & 255u);
        }
    } else if (GRID > 1u) {
        uint start = grid_start(TYPE);
        for (uint i = tid; i < GRID; i += n_thread)
            grid[i] = uvec2(t.v[start + 2u * i], t.v[start + 2u * i + 1u]);
    }
}

uint grid_word(uint i) {
    return grid[i >> 1][i & 1u];
}

// Table bytes of the four low nibbles of the bytes of w.
uint looked_up(uint w) {
    return grid_word(w & 15u) | grid_word(w >> 8 & 15u) << 8 | grid_word(w >> 16 & 15u) << 16 |
           grid_word(w >> 24 & 15u) << 24;
}

void nibbles_looked_up(inout Group u, uvec4 w) {
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        u.q[k] = looked_up(w[k]);
        u.q[4u + k] = looked_up(w[k] >> 4);
    }
}

// ---- blocks of 32 values and more ---------------------------------------------------------------

float e8m0_half(uint e) {
    return uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
}

float ue4m3_half(uint b) {
    if (b == 0u || b == 0x7Fu) return 0.0;
    int e = int(b >> 3 & 15u);
    float m = float(b & 7u);
    return e == 0 ? m * (1.0 / 1024.0) : (8.0 + m) * pow2i(float(e - 11));
}

void group_q8_0(uint64_t b, inout Group u) {
    uint64_t base = b & ~3ul;
    uint odd = uint(b) & 2u, shift = 16u + 8u * odd; // of the codes behind the base
    uint w[9];
    [[unroll]] for (uint k = 0u; k < 9u; k++)
        w[k] = word_at(base + 4u * k);
    u.d = unpackHalf2x16(w[0] >> (8u * odd)).x;
    [[unroll]] for (uint k = 0u; k < 8u; k++)
        u.q[k] = funnel(w[k], w[k + 1u], shift);
}

void nibbles(inout Group u, uvec4 w, uint bias) {
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint low = w[k] & 0x0F0F0F0Fu, high = w[k] >> 4 & 0x0F0F0F0Fu;
        u.q[k] = bias != 0u ? minus(low, bias) : low;
        u.q[4u + k] = bias != 0u ? minus(high, bias) : high;
    }
}

// Nibbles with a fifth bit each.
void five_bits(inout Group u, uvec4 w, uint bits, uint bias) {
    [[unroll]] for (uint k = 0u; k < 4u; k++) {
        uint low = (w[k] & 0x0F0F0F0Fu) | spread(bits >> (4u * k)) << 4;
        uint high = (w[k] >> 4 & 0x0F0F0F0Fu) | spread(bits >> (16u + 4u * k)) << 4;
        u.q[k] = bias != 0u ? minus(low, bias) : low;
        u.q[4u + k] = bias != 0u ? minus(high, bias) : high;
    }
}

void group_small(uint64_t row, uint g, inout Group u) {
    if (TYPE == T_Q8_0) {
        group_q8_0(row + 34u * g, u);
    } else if (TYPE == T_Q4_0) {
        uint64_t b = row + 18u * g;
        u.d = f16_at(b);
        nibbles(u, load_16(b + 2ul), 8u);
    } else if (TYPE == T_Q4_1) {
        uint64_t b = row + 20u * g;
        vec2 dm = unpackHalf2x16(word_at(b));
        u.d = dm.x;
        u.dm = dm.y;
        u.m0 = u.m1 = 1;
        nibbles(u, load_aligned(b + 4ul), 0u);
    } else if (TYPE == T_Q5_0) {
        uint64_t b = row + 22u * g;
        u.d = f16_at(b);
        five_bits(u, load_16(b + 6ul), u32_at(b + 2ul), 16u);
    } else if (TYPE == T_Q5_1) {
        uint64_t b = row + 24u * g;
        vec2 dm = unpackHalf2x16(word_at(b));
        u.d = dm.x;
        u.dm = dm.y;
        u.m0 = u.m1 = 1;
        five_bits(u, load_aligned(b + 8ul), word_at(b + 4ul), 0u);
    } else if (TYPE == T_IQ4_NL) {
        uint64_t b = row + 18u * g;
        u.d = f16_at(b);
        nibbles_looked_up(u, load_16(b + 2ul));
    } else if (TYPE == T_MXFP4) {
        uint64_t b = row + 17u * g;
        u.d = e8m0_half(u8_at(b));
        nibbles_looked_up(u, load_odd(b + 1ul));
    } else if (TYPE == T_NVFP4) {
        uint64_t b = row + 36u * (g / 2u);
        uint s = 2u * (g & 1u);
        u.d = ue4m3_half(u8_at(b + s));
        u.d1 = ue4m3_half(u8_at(b + s + 1u));
        uvec4 w = load_aligned(b + 4u + 8u * s);
        [[unroll]] for (uint k = 0u; k < 4u; k++) { // eight bytes a half: low nibbles, then high ones
            uint at = 4u * (k >> 1) + (k & 1u);
            u.q[at] = looked_up(w[k]);
            u.q[at + 2u] = looked_up(w[k] >> 4);
        }
    } else if (TYPE == T_Q1_0) {
        uint64_t b = row + 18u * (g / 4u);
        uint bits = u32_at(b + 2u + 4u * (g & 3u));
        u.d = f16_at(b);
        [[unroll]] for (uint k = 0u; k < 8u; k++)
            u.q[k] = spread(bits >> (4u * k)) * 0xFEu ^ 0xFFFFFFFFu; // 1 or -1
    } else if (TYPE == T_Q2_0) {
        uint64_t b = row + 18u * (g / 2u);
        uint64_t at = b + 2u + 8u * (g & 1u);
        u.d = f16_at(b);
        [[unroll]] for (uint k = 0u; k < 8u; k++)
            u.q[k] = minus(spread_2(u8_at(at + k)), 1u);
    }
}

// ---- blocks of 256; e: the group in its block ---------------------------------------------------

// Scale and minimum number i of the twelve packed bytes of q4_K and q5_K.
void pair_6bit(uint64_t s, uint i, inout Group u) {
    uint w0 = word_at(s), w1 = word_at(s + 4ul), w2 = word_at(s + 8ul), at = 8u * (i & 3u);
    uint a = w0 >> at, b = w1 >> at, c = w2 >> at;
    if (i < 4u) {
        u.s0 = int(a & 63u);
        u.m0 = int(b & 63u);
    } else {
        u.s0 = int((c & 15u) | (a >> 2 & 48u));
        u.m0 = int((c >> 4 & 15u) | (b >> 2 & 48u));
    }
    u.s1 = u.s0;
    u.m1 = u.m0;
}

int ternary_digit(uint byte, uint n) {
    uint power = n == 0u ? 1u : n == 1u ? 3u : n == 2u ? 9u : n == 3u ? 27u : 81u;
    return int((3u * ((byte * power) & 255u)) >> 8) - 1;
}

uint tq1_code(uint64_t b, uint x) {
    uint at = x < 160u ? (x & 31u) : x < 240u ? 32u + ((x - 160u) & 15u) : 48u + ((x - 240u) & 3u);
    uint digit = x < 160u ? x / 32u : x < 240u ? (x - 160u) / 16u : (x - 240u) / 4u;
    return uint(ternary_digit(u8_at(b + at), digit)) & 255u;
}

void group_q6(uint64_t b, uint e, inout Group u) {
    uint half_ = e >> 2, j = e & 3u;
    uint64_t low = b + 64u * half_ + 32u * (j & 1u), high = b + 128u + 32u * half_;
    uint s = u16_at(b + 192u + 2u * e);
    u.s0 = bitfieldExtract(int(s), 0, 8);
    u.s1 = bitfieldExtract(int(s), 8, 8);
    u.d = f16_at(b + 208u);
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uvec4 w = load_16(low + 16u * i), h = load_16(high + 16u * i);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            uint code = ((w[k] >> (4u * (j >> 1))) & 0x0F0F0F0Fu) |
                        ((h[k] >> (2u * j)) & 0x03030303u) << 4;
            u.q[4u * i + k] = minus(code, 32u);
        }
    }
}

void group_q3(uint64_t b, uint e, inout Group u) {
    uint low = u16_at(b + 96u + (2u * e & 7u)) >> (4u * (e >> 2));
    uint high = u16_at(b + 104u + (2u * e & 3u)) >> (2u * (e >> 1));
    u.s0 = int((low & 15u) | (high & 3u) << 4) - 32;
    u.s1 = int((low >> 8 & 15u) | (high >> 8 & 3u) << 4) - 32;
    u.d = f16_at(b + 108u);
    [[unroll]] for (uint i = 0u; i < 2u; i++) {
        uvec4 w = load_16(b + 32u + 32u * (e >> 2) + 16u * i), h = load_16(b + 16u * i);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
            uint code =
                ((w[k] >> (2u * (e & 3u))) & 0x03030303u) | ((h[k] >> e) & 0x01010101u) << 2;
            u.q[4u * i + k] = minus(code, 4u);
        }
    }
}

void group_k(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_Q2_K) {
        uint64_t b = row + 84u * i;
        uint s = u16_at(b + 2u * e);
        vec2 dm = unpackHalf2x16(word_at(b + 80u));
        u.d = dm.x;
        u.dm = -dm.y;
        u.s0 = int(s & 15u);
        u.s1 = int(s >> 8 & 15u);
        u.m0 = int(s >> 4 & 15u);
        u.m1 = int(s >> 12);
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 w = load_aligned(b + 16u + 32u * (e >> 2) + 16u * h);
            put(u, 4u * h, (w >> (2u * (e & 3u))) & 0x03030303u);
        }
    } else if (TYPE == T_Q3_K) {
        group_q3(row + 110u * i, e, u);
    } else if (TYPE == T_Q4_K) {
        uint64_t b = row + 144u * i;
        vec2 dm = unpackHalf2x16(word_at(b));
        pair_6bit(b + 4ul, e, u);
        u.d = dm.x;
        u.dm = -dm.y;
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 w = load_aligned(b + 16u + 32u * (e >> 1) + 16u * h);
            put(u, 4u * h, (w >> (4u * (e & 1u))) & 0x0F0F0F0Fu);
        }
    } else if (TYPE == T_Q5_K) {
        uint64_t b = row + 176u * i;
        vec2 dm = unpackHalf2x16(word_at(b));
        pair_6bit(b + 4ul, e, u);
        u.d = dm.x;
        u.dm = -dm.y;
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 w = load_aligned(b + 48u + 32u * (e >> 1) + 16u * h);
            uvec4 top = load_aligned(b + 16u + 16u * h);
            put(u, 4u * h,
                ((w >> (4u * (e & 1u))) & 0x0F0F0F0Fu) | ((top >> e) & 0x01010101u) << 4);
        }
    } else if (TYPE == T_Q6_K) {
        group_q6(row + 210u * i, e, u);
    } else if (TYPE == T_IQ4_XS) {
        uint64_t b = row + 136u * i;
        uint low = u8_at(b + 4u + (e >> 1)) >> (4u * (e & 1u)) & 15u;
        u.s0 = u.s1 = int(low | (u16_at(b + 2ul) >> (2u * e) & 3u) << 4) - 32;
        u.d = f16_at(b);
        nibbles_looked_up(u, load_aligned(b + 8u + 16u * e));
    } else if (TYPE == T_TQ2_0) {
        uint64_t b = row + 66u * i;
        u.d = f16_at(b + 64ul);
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uvec4 w = load_16(b + 32u * (e >> 2) + 16u * h) >> (2u * (e & 3u));
            [[unroll]] for (uint k = 0u; k < 4u; k++)
                u.q[4u * h + k] = minus(w[k] & 0x03030303u, 1u);
        }
    } else if (TYPE == T_TQ1_0) {
        uint64_t b = row + 54u * i;
        u.d = f16_at(b + 52ul);
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            uint x = 32u * e + 4u * k;
            u.q[k] = tq1_code(b, x) | tq1_code(b, x + 1u) << 8 | tq1_code(b, x + 2u) << 16 |
                     tq1_code(b, x + 3u) << 24;
        }
    }
}

// ---- blocks of 256 over grids -------------------------------------------------------------------

void grid_8(inout Group u, uint at, uint index, uint signs) {
    uvec2 w = grid[index];
    u.q[at] = with_signs(w.x, signs);
    u.q[at + 1u] = with_signs(w.y, signs >> 4);
}

// Ternary bytes shifted by an eighth: 8 * byte + delta, |.| <= 9.
uint eighth(uint w, uint negative) {
    uint eight = (w << 3) & 0xF8F8F8F8u;
    uint delta = negative != 0u ? 0xFFFFFFFFu : 0x01010101u;
    return ((eight & 0x7F7F7F7Fu) + (delta & 0x7F7F7F7Fu)) ^ ((eight ^ delta) & 0x80808080u);
}

void grid_ternary(inout Group u, uint at, uint index, uint negative) {
    uvec2 w = grid[index];
    u.q[at] = eighth(w.x, negative);
    u.q[at + 1u] = eighth(w.y, negative);
}

int odd_scale(uint nibble) {
    return 2 * int(nibble & 15u) + 1;
}

void group_grid_2(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ2_XXS) {
        uint64_t b = row + 66u * i, rec = b + 2u + 8u * e;
        uint ix = u32_at(rec), w = u32_at(rec + 4ul);
        u.s0 = u.s1 = odd_scale(w >> 28);
        u.d = f16_at(b) * 0.125;
        [[unroll]] for (uint l = 0u; l < 4u; l++)
            grid_8(u, 2u * l, ix >> (8u * l) & 255u, even_signs(w >> (7u * l) & 127u));
    } else if (TYPE == T_IQ2_XS) {
        uint64_t b = row + 74u * i, at = b + 2u + 8u * e;
        uint s = u8_at(b + 66u + e);
        u.s0 = odd_scale(s);
        u.s1 = odd_scale(s >> 4);
        u.d = f16_at(b) * 0.125;
        uint both[2] = uint[2](u32_at(at), u32_at(at + 4ul));
        [[unroll]] for (uint l = 0u; l < 4u; l++) {
            uint v = both[l >> 1] >> (16u * (l & 1u)) & 0xFFFFu;
            grid_8(u, 2u * l, v & 511u, even_signs(v >> 9));
        }
    } else {
        uint64_t b = row + 82u * i;
        uint s = u8_at(b + 74u + e), high = u8_at(b + 66u + e);
        uint low = u32_at(b + 2u + 4u * e), signs = u32_at(b + 34u + 4u * e);
        u.s0 = odd_scale(s);
        u.s1 = odd_scale(s >> 4);
        u.d = f16_at(b) * 0.125;
        [[unroll]] for (uint l = 0u; l < 4u; l++) {
            uint index = (low >> (8u * l) & 255u) | (high >> (2u * l) & 3u) << 8;
            grid_8(u, 2u * l, index, signs >> (8u * l));
        }
    }
}

void group_grid_3(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ3_XXS) {
        uint64_t b = row + 98u * i, at = b + 2u + 8u * e;
        uint w = u32_at(b + 66u + 4u * e);
        uint ix[2] = uint[2](u32_at(at), u32_at(at + 4ul));
        u.s0 = u.s1 = odd_scale(w >> 28);
        u.d = f16_at(b) * 0.25;
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            uint signs = even_signs(w >> (7u * (k >> 1)) & 127u);
            uint entry = grid_word(ix[k >> 2] >> (8u * (k & 3u)) & 255u);
            u.q[k] = with_signs(entry, signs >> (4u * (k & 1u)));
        }
    } else {
        uint64_t b = row + 110u * i, at = b + 2u + 8u * e;
        uint ix[2] = uint[2](u32_at(at), u32_at(at + 4ul));
        uint signs = u32_at(b + 74u + 4u * e), high = u8_at(b + 66u + e);
        u.s0 = u.s1 = odd_scale(u8_at(b + 106u + (e >> 1)) >> (4u * (e & 1u)));
        u.d = f16_at(b);
        [[unroll]] for (uint k = 0u; k < 8u; k++) {
            uint index = (ix[k >> 2] >> (8u * (k & 3u)) & 255u) | (high >> k & 1u) << 8;
            u.q[k] = with_signs(grid_word(index), signs >> (4u * k));
        }
    }
}

void group_grid_1(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ1_S) {
        uint64_t b = row + 50u * i;
        uint w = u16_at(b + 34u + 2u * e), ix = u32_at(b + 2u + 4u * e);
        u.s0 = u.s1 = 2 * int(w >> 12 & 7u) + 1;
        u.d = f16_at(b) * 0.125;
        [[unroll]] for (uint l = 0u; l < 4u; l++)
            grid_ternary(u, 2u * l, (ix >> (8u * l) & 255u) | (w >> (3u * l) & 7u) << 8, w >> 15);
    } else {
        uint64_t b = row + 56u * i;
        uint bits = 0u;
        [[unroll]] for (uint k = 0u; k < 4u; k++)
            bits |= (u16_at(b + 48u + 2u * k) >> 12) << (4u * k);
        uint s = u16_at(b + 48u + 2u * (e >> 1)) >> (6u * (e & 1u));
        uint ix = u32_at(b + 4u * e), high = u16_at(b + 32u + 2u * e);
        u.s0 = 2 * int(s & 7u) + 1;
        u.s1 = 2 * int(s >> 3 & 7u) + 1;
        u.d = unpackHalf2x16(bits).x * 0.125;
        [[unroll]] for (uint l = 0u; l < 4u; l++) {
            uint nib = high >> (4u * l) & 15u;
            grid_ternary(u, 2u * l, (ix >> (8u * l) & 255u) | (nib & 7u) << 8, nib >> 3);
        }
    }
}

// Group g of the quantised row that begins at `row`.
Group group_at(uint64_t row, uint g) {
    Group u;
    u.s0 = u.s1 = 1;
    u.m0 = u.m1 = 0;
    u.d = u.d1 = u.dm = 0.0;
    if (TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q4_K || TYPE == T_Q5_K || TYPE == T_Q6_K ||
        TYPE == T_IQ4_XS || TYPE == T_TQ1_0 || TYPE == T_TQ2_0)
        group_k(row, g, u);
    else if (TYPE == T_IQ2_XXS || TYPE == T_IQ2_XS || TYPE == T_IQ2_S) group_grid_2(row, g, u);
    else if (TYPE == T_IQ3_XXS || TYPE == T_IQ3_S) group_grid_3(row, g, u);
    else if (TYPE == T_IQ1_S || TYPE == T_IQ1_M) group_grid_1(row, g, u);
    else group_small(row, g, u);
    return u;
}

// Value i of a float row at a device address.
float float_at(uint64_t row, uint i) {
    if (TYPE == T_F32) return F32(row).v[i];
    if (TYPE == T_F16) return half_at(U16(row), i);
    return uintBitsToFloat(uint(U16(row).v[i]) << 16);
}
