// Thirty-two weights of a row as signed 8-bit codes, four a word, with their exact integer scales
// and the float scale of the block: w = d * (s * code) + dm * m. A row of any quantised type is cut
// into groups of 32 values; a group has one or two scales (of its halves). Formats:
// src/quant/blocks.h. Ids of types: rg_type.
//
// Grids and value tables lie in shared memory (load_tables). Codes are vectors and there is no loop
// over them: compilers put arrays in memory when they do not see through the loops.

const uint T_F32 = 0u, T_F16 = 1u, T_Q4_0 = 2u, T_Q4_1 = 3u, T_Q5_0 = 6u, T_Q5_1 = 7u, T_Q8_0 = 8u;
const uint T_Q2_K = 10u, T_Q3_K = 11u, T_Q4_K = 12u, T_Q5_K = 13u, T_Q6_K = 14u;
const uint T_IQ2_XXS = 16u, T_IQ2_XS = 17u, T_IQ3_XXS = 18u, T_IQ1_S = 19u, T_IQ4_NL = 20u;
const uint T_IQ3_S = 21u, T_IQ2_S = 22u, T_IQ4_XS = 23u, T_IQ1_M = 29u, T_BF16 = 30u;
const uint T_TQ1_0 = 34u, T_TQ2_0 = 35u, T_MXFP4 = 39u, T_NVFP4 = 40u, T_Q1_0 = 41u, T_Q2_0 = 42u;

// Where each grid starts in the table buffer, and its size, in words (rg_gpu_tables).
const uint G_IQ2XXS = 0u, G_IQ2XS = 512u, G_IQ2S = 1536u, G_IQ1S = 3584u, G_IQ3XXS = 7680u;
const uint G_IQ3S = 7936u, G_NL = 8480u, G_FP4 = 8484u;

// The type is a constant of the pipeline, or of the program where that is compiled for one type
// (RG_TYPE): drivers make better code of a small program than of a large one with dead branches.
// From INTERLEAVED_FORM on: the type with interleaved rows.
#ifdef RG_TYPE
const uint FORM = RG_TYPE;
#else
layout(constant_id = 0) const uint FORM = 0u;
#endif
const uint INTERLEAVED_FORM = 64u;
const uint TYPE = FORM % INTERLEAVED_FORM;
const bool INTERLEAVED = FORM >= INTERLEAVED_FORM;
// Words of the type's table; of types without one, the least that an array can have.
const uint N_VALUES = TYPE == T_IQ4_NL || TYPE == T_IQ4_XS || TYPE == T_MXFP4 || TYPE == T_NVFP4
    ? 64u : 0u;
const uint N_GRID = TYPE == T_IQ2_XXS ? 512u : TYPE == T_IQ2_XS ? 1024u : TYPE == T_IQ2_S ? 2048u
    : TYPE == T_IQ3_XXS ? 256u : TYPE == T_IQ3_S ? 512u
    : TYPE == T_IQ1_S || TYPE == T_IQ1_M ? 4096u : 0u;
// Entries of eight codes are pairs of words.
const bool PAIRS = TYPE == T_IQ2_XXS || TYPE == T_IQ2_XS || TYPE == T_IQ2_S || TYPE == T_IQ1_S ||
                   TYPE == T_IQ1_M;
const uint N_WORDS = PAIRS ? 1u : N_VALUES + N_GRID, N_PAIRS = PAIRS ? N_GRID / 2u : 1u;
shared uint grid[N_WORDS > 0u ? N_WORDS : 1u];
shared uvec2 grid_pairs[N_PAIRS];

const bool FLOATS = TYPE == T_F32 || TYPE == T_F16 || TYPE == T_BF16;
const bool MINS = TYPE == T_Q4_1 || TYPE == T_Q5_1 || TYPE == T_Q2_K || TYPE == T_Q4_K ||
                  TYPE == T_Q5_K;
// The halves of a group have scales of their own.
const bool HALVES = TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q6_K || TYPE == T_IQ2_XS ||
                    TYPE == T_IQ2_S || TYPE == T_IQ1_M;

struct Group {
    uvec4 a, b; // codes of the halves
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

// Bytes at an even address come as pairs of words from the multiple of eight before it: a load of
// few bytes keeps a device as busy as one of many. No pair without a wanted byte is read.

// Whether they begin in the second word of the first pair; how many bits into their first word.
bool in_second(uint64_t p) {
    return (uint(p) & 4u) != 0u;
}

uint bits_in(uint64_t p) {
    return 8u * (uint(p) & 2u);
}

uvec2 pair_at(uint64_t p, uint i) {
    return U32x2(p & ~7ul).v[i];
}

// Pair i if the bytes reach it, which they do unless the address is a multiple of eight.
uvec2 last_pair(uint64_t p, uint i) {
    return U32x2(p & ~7ul).v[(uint(p) & 7u) != 0u ? i : i - 1u];
}

// Four words, and the one behind them, of three pairs.
uvec4 four_words(bool second, uvec2 a, uvec2 b, uvec2 c, out uint next) {
    next = second ? c.y : c.x;
    return second ? uvec4(a.y, b, c.x) : uvec4(a, b);
}

uvec4 funnels(uvec4 w, uint next, uint shift) {
    return uvec4(funnel(w.x, w.y, shift), funnel(w.y, w.z, shift), funnel(w.z, w.w, shift),
                 funnel(w.w, next, shift));
}

// Sixteen bytes at an even address, word by word: the quicker way where two such lie apart (q3_K).
uvec4 load_16(uint64_t p) {
    uint64_t at = p & ~3ul;
    uint w0 = word_at(at), w1 = word_at(at + 4ul), w2 = word_at(at + 8ul), w3 = word_at(at + 12ul);
    uint w4 = word_at(at + (bits_in(p) != 0u ? 16u : 12u));
    return funnels(uvec4(w0, w1, w2, w3), w4, bits_in(p));
}

// Thirty-two bytes at an even address.
void load_32(uint64_t p, out uvec4 a, out uvec4 b) {
    uvec2 p0 = pair_at(p, 0u), p1 = pair_at(p, 1u), p2 = pair_at(p, 2u), p3 = pair_at(p, 3u);
    uvec2 p4 = last_pair(p, 4u);
    uint next, end;
    uvec4 w = four_words(in_second(p), p0, p1, p2, next);
    uvec4 v = four_words(in_second(p), p2, p3, p4, end);
    a = funnels(w, next, bits_in(p));
    b = funnels(v, end, bits_in(p));
}

// Eight bytes at an even address.
uvec2 load_8(uint64_t p) {
    uvec2 a = pair_at(p, 0u), b = last_pair(p, 1u);
    bool second = in_second(p);
    uint w0 = second ? a.y : a.x, w1 = second ? b.x : a.y, w2 = second ? b.y : b.x;
    return uvec2(funnel(w0, w1, bits_in(p)), funnel(w1, w2, bits_in(p)));
}

uvec4 load_aligned(uint64_t p) {
    return uvec4(word_at(p), word_at(p + 4ul), word_at(p + 8ul), word_at(p + 12ul));
}

// Sixteen bytes at a multiple of eight, of sixteen: as few loads as a device has. Tensors begin at
// multiples of 16, and so does every row of a type whose block is one.
uvec4 load_pairs(uint64_t p) {
    return uvec4(U32x2(p).v[0], U32x2(p).v[1]);
}

uvec4 load_whole(uint64_t p) {
    return U32x4(p).v[0];
}

// Sixteen bytes at any address.
uvec4 load_odd(uint64_t p) {
    uint64_t b = p & ~3ul;
    uint s = 8u * (uint(p) & 3u);
    uint w0 = word_at(b), w1 = word_at(b + 4ul), w2 = word_at(b + 8ul), w3 = word_at(b + 12ul);
    uint w4 = word_at(b + (s != 0u ? 16u : 12u));
    return uvec4(funnel(w0, w1, s), funnel(w1, w2, s), funnel(w2, w3, s), funnel(w3, w4, s));
}

// ---- bytes in words -----------------------------------------------------------------------------

// Each byte of x, below 128, minus a constant byte: the bias of the type's codes. Programs that
// know the sums of the codes of x (RG_BIASED) take bias * sum from the dot instead: the same
// integers.
#ifdef RG_BIASED
const int BIAS = TYPE == T_Q4_0 ? 8 : TYPE == T_Q5_0 ? 16 : TYPE == T_Q6_K ? 32
    : TYPE == T_Q3_K ? 4 : TYPE == T_TQ2_0 || TYPE == T_Q2_0 ? 1 : 0;
uvec4 minus(uvec4 x, uint bias) {
    return x;
}
#else
uvec4 minus(uvec4 x, uint bias) {
    return ((x | 0x80808080u) - bias * 0x01010101u) ^ 0x80808080u;
}
#endif

// Four bits, each to a byte of its own.
uvec4 spread(uvec4 bits) {
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}

// Eight bits of pairs, each pair to a byte of its own.
uvec4 spread_2(uvec4 bits) {
    uvec4 v = bits & 255u;
    return (v | v << 6 | v << 12 | v << 18) & 0x03030303u;
}

// Four numbers of 4 bits, of 8 bits.
uvec4 nibbles_of(uint bits) {
    return uvec4(bits, bits >> 4, bits >> 8, bits >> 12);
}

uvec4 bytes_of(uint w) {
    return uvec4(w & 255u, w >> 8 & 255u, w >> 16 & 255u, w >> 24);
}

// Bytes of x, none of them 0, negated where `one` has a one.
uvec4 negated(uvec4 x, uvec4 one) {
    return (x ^ one * 255u) + one;
}

// The same where the four low bits of `bits` have a one.
uvec4 with_signs(uvec4 x, uvec4 bits) {
    return negated(x, spread(bits));
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
        for (uint i = tid; i < N_VALUES; i += n_thread) // once for each byte of a word
            grid[i] = (t.v[base + (i & 15u) / 4u] >> (8u * (i & 3u)) & 255u) << (8u * (i >> 4));
        return;
    }
    U32x4 from = U32x4(uint64_t(t) + 4u * grid_start(TYPE));
    for (uint i = tid; i < N_GRID / 4u; i += n_thread) {
        uvec4 w = from.v[i];
        if (PAIRS) {
            grid_pairs[2u * i] = w.xy;
            grid_pairs[2u * i + 1u] = w.zw;
        } else {
            grid[4u * i] = w.x;
            grid[4u * i + 1u] = w.y;
            grid[4u * i + 2u] = w.z;
            grid[4u * i + 3u] = w.w;
        }
    }
}

uvec2 grid_pair(uint i) {
    return grid_pairs[i];
}

uvec4 grid_words(uvec4 i) {
    return uvec4(grid[i.x], grid[i.y], grid[i.z], grid[i.w]);
}

// Table bytes of the four low nibbles of the bytes of w.
uint looked_up(uint w) {
    return grid[w & 15u] | grid[16u + (w >> 8 & 15u)] | grid[32u + (w >> 16 & 15u)] |
           grid[48u + (w >> 24 & 15u)];
}

uvec4 looked_up_4(uvec4 w) {
    return uvec4(looked_up(w.x), looked_up(w.y), looked_up(w.z), looked_up(w.w));
}

void nibbles_looked_up(inout Group u, uvec4 w) {
    u.a = looked_up_4(w);
    u.b = looked_up_4(w >> 4);
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

// Thirty-two bytes behind their f16 scale.
void group_q8_0(uint64_t b, inout Group u) {
    uvec2 p0 = pair_at(b, 0u), p1 = pair_at(b, 1u), p2 = pair_at(b, 2u), p3 = pair_at(b, 3u);
    uvec2 p4 = pair_at(b, 4u);
    uint next, end;
    uvec4 w = four_words(in_second(b), p0, p1, p2, next);
    uvec4 v = four_words(in_second(b), p2, p3, p4, end);
    u.d = unpackHalf2x16(w.x >> bits_in(b)).x;
    u.a = funnels(w, next, 16u + bits_in(b));
    u.b = funnels(v, end, 16u + bits_in(b));
}

// Sixteen bytes behind their f16 scale: three pairs of words hold both, wherever an even address
// lies.
uvec4 scaled_16(uint64_t b, out float d) {
    uint next;
    uvec4 w = four_words(in_second(b), pair_at(b, 0u), pair_at(b, 1u), pair_at(b, 2u), next);
    d = unpackHalf2x16(w.x >> bits_in(b)).x;
    return funnels(w, next, 16u + bits_in(b));
}

void nibbles(inout Group u, uvec4 w, uint bias) {
    u.a = w & 0x0F0F0F0Fu;
    u.b = w >> 4 & 0x0F0F0F0Fu;
    if (bias == 0u) return;
    u.a = minus(u.a, bias);
    u.b = minus(u.b, bias);
}

// Nibbles with a fifth bit each.
void five_bits(inout Group u, uvec4 w, uint bits, uint bias) {
    u.a = (w & 0x0F0F0F0Fu) | spread(nibbles_of(bits)) << 4;
    u.b = (w >> 4 & 0x0F0F0F0Fu) | spread(nibbles_of(bits >> 16)) << 4;
    if (bias == 0u) return;
    u.a = minus(u.a, bias);
    u.b = minus(u.b, bias);
}

void group_small(uint64_t row, uint g, inout Group u) {
    if (TYPE == T_Q8_0) {
        group_q8_0(row + 34u * g, u);
    } else if (TYPE == T_Q4_0) {
        nibbles(u, scaled_16(row + 18u * g, u.d), 8u);
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
        uvec2 head = U32x2(b).v[0];
        vec2 dm = unpackHalf2x16(head.x);
        u.d = dm.x;
        u.dm = dm.y;
        u.m0 = u.m1 = 1;
        five_bits(u, load_pairs(b + 8ul), head.y, 0u);
    } else if (TYPE == T_IQ4_NL) {
        nibbles_looked_up(u, scaled_16(row + 18u * g, u.d));
    } else if (TYPE == T_MXFP4) {
        uint64_t b = row + 17u * g;
        u.d = e8m0_half(u8_at(b));
        nibbles_looked_up(u, load_odd(b + 1ul));
    } else if (TYPE == T_NVFP4) {
        uint64_t b = row + 36u * (g / 2u);
        uint s = 2u * (g & 1u);
        u.d = ue4m3_half(u8_at(b + s));
        u.d1 = ue4m3_half(u8_at(b + s + 1u));
        uvec4 w = load_aligned(b + 4u + 8u * s); // eight bytes a half: low nibbles, then high ones
        uvec4 low = looked_up_4(w), high = looked_up_4(w >> 4);
        u.a = uvec4(low.xy, high.xy);
        u.b = uvec4(low.zw, high.zw);
    } else if (TYPE == T_Q1_0) {
        uint64_t b = row + 18u * (g / 4u);
        uint bits = u32_at(b + 2u + 4u * (g & 3u));
        u.d = f16_at(b);
        u.a = spread(nibbles_of(bits)) * 0xFEu ^ 0xFFFFFFFFu; // 1 or -1
        u.b = spread(nibbles_of(bits >> 16)) * 0xFEu ^ 0xFFFFFFFFu;
    } else if (TYPE == T_Q2_0) {
        uint64_t b = row + 18u * (g / 2u);
        uint64_t at = b + 2u + 8u * (g & 1u);
        u.d = f16_at(b);
        u.a = minus(spread_2(bytes_of(u32_at(at))), 1u);
        u.b = minus(spread_2(bytes_of(u32_at(at + 4ul))), 1u);
    }
}

// ---- blocks of 256; e: the group in its block ---------------------------------------------------

// The head of a block of q4_K or q5_K: scale and minimum of the block, then twelve bytes that pack
// those of its groups.
void head_k(uint64_t b, uint i, inout Group u) {
    uvec4 head = load_whole(b);
    vec2 dm = unpackHalf2x16(head.x);
    uint at = 8u * (i & 3u);
    uint x = head.y >> at, y = head.z >> at, z = head.w >> at;
    u.d = dm.x;
    u.dm = -dm.y;
    if (i < 4u) {
        u.s0 = int(x & 63u);
        u.m0 = int(y & 63u);
    } else {
        u.s0 = int((z & 15u) | (x >> 2 & 48u));
        u.m0 = int((z >> 4 & 15u) | (y >> 2 & 48u));
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

uint tq1_codes(uint64_t b, uint x) {
    return tq1_code(b, x) | tq1_code(b, x + 1u) << 8 | tq1_code(b, x + 2u) << 16 |
           tq1_code(b, x + 3u) << 24;
}

void group_q6(uint64_t b, uint e, inout Group u) {
    uint half_ = e >> 2, j = e & 3u;
    uint64_t low = b + 64u * half_ + 32u * (j & 1u), high = b + 128u + 32u * half_;
    uint s = u16_at(b + 192u + 2u * e);
    u.s0 = bitfieldExtract(int(s), 0, 8);
    u.s1 = bitfieldExtract(int(s), 8, 8);
    u.d = f16_at(b + 208u);
    uint to_low = 4u * (j >> 1), to_high = 2u * j;
    uvec4 low_a, low_b, high_a, high_b;
    load_32(low, low_a, low_b);
    load_32(high, high_a, high_b);
    u.a = ((low_a >> to_low) & 0x0F0F0F0Fu) | ((high_a >> to_high) & 0x03030303u) << 4;
    u.b = ((low_b >> to_low) & 0x0F0F0F0Fu) | ((high_b >> to_high) & 0x03030303u) << 4;
    u.a = minus(u.a, 32u);
    u.b = minus(u.b, 32u);
}

void group_q3(uint64_t b, uint e, inout Group u) {
    uint low = u16_at(b + 96u + (2u * e & 7u)) >> (4u * (e >> 2));
    uint high = u16_at(b + 104u + (2u * e & 3u)) >> (2u * (e >> 1));
    u.s0 = int((low & 15u) | (high & 3u) << 4) - 32;
    u.s1 = int((low >> 8 & 15u) | (high >> 8 & 3u) << 4) - 32;
    u.d = f16_at(b + 108u);
    uint64_t at = b + 32u + 32u * (e >> 2);
    uint shift = 2u * (e & 3u);
    u.a = ((load_16(at) >> shift) & 0x03030303u) | ((load_16(b) >> e) & 0x01010101u) << 2;
    u.b = ((load_16(at + 16ul) >> shift) & 0x03030303u) |
          ((load_16(b + 16ul) >> e) & 0x01010101u) << 2;
    u.a = minus(u.a, 4u);
    u.b = minus(u.b, 4u);
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
        uint64_t at = b + 16u + 32u * (e >> 2);
        u.a = (load_aligned(at) >> (2u * (e & 3u))) & 0x03030303u;
        u.b = (load_aligned(at + 16ul) >> (2u * (e & 3u))) & 0x03030303u;
    } else if (TYPE == T_Q3_K) {
        group_q3(row + 110u * i, e, u);
    } else if (TYPE == T_Q4_K) {
        uint64_t b = row + 144u * i, at = b + 16u + 32u * (e >> 1);
        head_k(b, e, u);
        u.a = (load_whole(at) >> (4u * (e & 1u))) & 0x0F0F0F0Fu;
        u.b = (load_whole(at + 16ul) >> (4u * (e & 1u))) & 0x0F0F0F0Fu;
    } else if (TYPE == T_Q5_K) {
        uint64_t b = row + 176u * i, at = b + 48u + 32u * (e >> 1);
        head_k(b, e, u);
        uint shift = 4u * (e & 1u);
        u.a = ((load_whole(at) >> shift) & 0x0F0F0F0Fu) |
              ((load_whole(b + 16ul) >> e) & 0x01010101u) << 4;
        u.b = ((load_whole(at + 16ul) >> shift) & 0x0F0F0F0Fu) |
              ((load_whole(b + 32ul) >> e) & 0x01010101u) << 4;
    } else if (TYPE == T_Q6_K) {
        group_q6(row + 210u * i, e, u);
    } else if (TYPE == T_IQ4_XS) {
        uint64_t b = row + 136u * i;
        uvec2 head = U32x2(b).v[0]; // scale of the block; high bits, then low bits of the groups'
        u.s0 = u.s1 =
            int((head.y >> (4u * e) & 15u) | (head.x >> (16u + 2u * e) & 3u) << 4) - 32;
        u.d = unpackHalf2x16(head.x).x;
        nibbles_looked_up(u, load_pairs(b + 8u + 16u * e));
    } else if (TYPE == T_TQ2_0) {
        uint64_t b = row + 66u * i;
        u.d = f16_at(b + 64ul);
        uint64_t at = b + 32u * (e >> 2);
        u.a = minus((load_16(at) >> (2u * (e & 3u))) & 0x03030303u, 1u);
        u.b = minus((load_16(at + 16ul) >> (2u * (e & 3u))) & 0x03030303u, 1u);
    } else if (TYPE == T_TQ1_0) {
        uint64_t b = row + 54u * i;
        u.d = f16_at(b + 52ul);
        uint x = 32u * e;
        u.a = uvec4(tq1_codes(b, x), tq1_codes(b, x + 4u), tq1_codes(b, x + 8u),
                    tq1_codes(b, x + 12u));
        u.b = uvec4(tq1_codes(b, x + 16u), tq1_codes(b, x + 20u), tq1_codes(b, x + 24u),
                    tq1_codes(b, x + 28u));
    }
}

// ---- blocks of 256 over grids -------------------------------------------------------------------

// Four entries of a grid of pairs with a byte of signs each.
void put_signed(inout Group u, uvec4 index, uvec4 signs) {
    uvec2 e0 = grid_pair(index.x), e1 = grid_pair(index.y);
    uvec2 e2 = grid_pair(index.z), e3 = grid_pair(index.w);
    u.a = with_signs(uvec4(e0, e1), uvec4(signs.x, signs.x >> 4, signs.y, signs.y >> 4));
    u.b = with_signs(uvec4(e2, e3), uvec4(signs.z, signs.z >> 4, signs.w, signs.w >> 4));
}

// Codes of seven signs, each with the eighth, at bit 24, that makes the number of ones even.
struct Signs {
    uvec4 seven, eighth;
};

// Four codes 7 bits apart. Parities of all four at once: bits fold onto the lowest of their code.
Signs even_signs_4(uint w) {
    uint x = w ^ (w >> 4 & 0x00E1C387u);
    x ^= x >> 2 & 0x0060C183u;
    x ^= x >> 1;
    return Signs(uvec4(w, w >> 7, w >> 14, w >> 21) & 127u,
                 uvec4(x << 24, x << 17, x << 10, x << 3) & 0x01000000u);
}

// Parities of the seven upper bits of the halves of a word, at the lowest of them.
uint parities(uint w) {
    uint x = w & 0xFE00FE00u;
    x ^= x >> 4;
    x ^= x >> 2;
    return x ^ x >> 1;
}

// Codes in the seven upper bits of the halves of two words.
Signs even_signs_2(uvec2 w) {
    uint x = parities(w.x), y = parities(w.y);
    return Signs(uvec4(w.x >> 9 & 127u, w.x >> 25, w.y >> 9 & 127u, w.y >> 25),
                 uvec4(x << 15, x >> 1, y << 15, y >> 1) & 0x01000000u);
}

// Thirty-two bytes, none of them 0, with their signs. A product puts seven signs 7 bits apart:
// every eighth bit is the next of them.
void put_even(inout Group u, uvec4 a, uvec4 b, Signs s) {
    uvec4 far = s.seven * 0x00204081u;
    uvec4 low = far & 0x01010101u, high = (far >> 4 & 0x00010101u) | s.eighth;
    u.a = negated(a, uvec4(low.x, high.x, low.y, high.y));
    u.b = negated(b, uvec4(low.z, high.z, low.w, high.w));
}

// Ternary bytes shifted by an eighth: 8 * byte + delta, |.| <= 9; two words for each delta.
uvec4 eighths(uvec4 w, uint negative0, uint negative1) {
    uvec4 eight = (w << 3) & 0xF8F8F8F8u;
    uint d0 = negative0 != 0u ? 0xFFFFFFFFu : 0x01010101u;
    uint d1 = negative1 != 0u ? 0xFFFFFFFFu : 0x01010101u;
    uvec4 delta = uvec4(d0, d0, d1, d1);
    return ((eight & 0x7F7F7F7Fu) + (delta & 0x7F7F7F7Fu)) ^ ((eight ^ delta) & 0x80808080u);
}

void put_ternary(inout Group u, uvec4 index, uvec4 negative) {
    u.a = eighths(uvec4(grid_pair(index.x), grid_pair(index.y)), negative.x, negative.y);
    u.b = eighths(uvec4(grid_pair(index.z), grid_pair(index.w)), negative.z, negative.w);
}

int odd_scale(uint nibble) {
    return 2 * int(nibble & 15u) + 1;
}

void group_grid_2(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ2_XXS) {
        uint64_t b = row + 66u * i, rec = b + 2u + 8u * e;
        uvec2 w = load_8(rec);
        u.s0 = u.s1 = odd_scale(w.y >> 28);
        u.d = f16_at(b) * 0.125;
        uvec4 ix = bytes_of(w.x);
        put_even(u, uvec4(grid_pair(ix.x), grid_pair(ix.y)),
                 uvec4(grid_pair(ix.z), grid_pair(ix.w)), even_signs_4(w.y));
    } else if (TYPE == T_IQ2_XS) {
        uint64_t b = row + 74u * i, at = b + 2u + 8u * e;
        uint s = u8_at(b + 66u + e);
        u.s0 = odd_scale(s);
        u.s1 = odd_scale(s >> 4);
        u.d = f16_at(b) * 0.125;
        uvec2 w = load_8(at);
        uvec4 ix = uvec4(w.x, w.x >> 16, w.y, w.y >> 16) & 511u;
        put_even(u, uvec4(grid_pair(ix.x), grid_pair(ix.y)),
                 uvec4(grid_pair(ix.z), grid_pair(ix.w)), even_signs_2(w));
    } else {
        uint64_t b = row + 82u * i;
        uint s = u8_at(b + 74u + e), high = u8_at(b + 66u + e);
        uint low = u32_at(b + 2u + 4u * e), signs = u32_at(b + 34u + 4u * e);
        u.s0 = odd_scale(s);
        u.s1 = odd_scale(s >> 4);
        u.d = f16_at(b) * 0.125;
        uvec4 top = uvec4(high, high >> 2, high >> 4, high >> 6) & 3u;
        put_signed(u, bytes_of(low) | top << 8, bytes_of(signs));
    }
}

void group_grid_3(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ3_XXS) {
        uint64_t b = row + 98u * i, at = b + 2u + 8u * e;
        uint w = u32_at(b + 66u + 4u * e);
        uvec2 ix = load_8(at);
        u.s0 = u.s1 = odd_scale(w >> 28);
        u.d = f16_at(b) * 0.25;
        put_even(u, grid_words(bytes_of(ix.x)), grid_words(bytes_of(ix.y)), even_signs_4(w));
    } else {
        uint64_t b = row + 110u * i, at = b + 2u + 8u * e;
        uint signs = u32_at(b + 74u + 4u * e), high = u8_at(b + 66u + e);
        uvec4 top0 = uvec4(high, high >> 1, high >> 2, high >> 3) & 1u;
        uvec4 top1 = uvec4(high >> 4, high >> 5, high >> 6, high >> 7) & 1u;
        u.s0 = u.s1 = odd_scale(u8_at(b + 106u + (e >> 1)) >> (4u * (e & 1u)));
        u.d = f16_at(b);
        u.a = with_signs(grid_words(bytes_of(u32_at(at)) | top0 << 8), nibbles_of(signs));
        u.b = with_signs(grid_words(bytes_of(u32_at(at + 4ul)) | top1 << 8),
                         nibbles_of(signs >> 16));
    }
}

void group_grid_1(uint64_t row, uint g, inout Group u) {
    uint i = g >> 3, e = g & 7u;
    if (TYPE == T_IQ1_S) {
        uint64_t b = row + 50u * i;
        uint w = u16_at(b + 34u + 2u * e), ix = u32_at(b + 2u + 4u * e);
        u.s0 = u.s1 = 2 * int(w >> 12 & 7u) + 1;
        u.d = f16_at(b) * 0.125;
        uvec4 top = uvec4(w, w >> 3, w >> 6, w >> 9) & 7u;
        put_ternary(u, bytes_of(ix) | top << 8, uvec4(w >> 15));
    } else {
        uint64_t b = row + 56u * i;
        uint bits = u16_at(b + 48ul) >> 12 | (u16_at(b + 50ul) >> 12) << 4 |
               (u16_at(b + 52ul) >> 12) << 8 | (u16_at(b + 54ul) >> 12) << 12;
        uint s = u16_at(b + 48u + 2u * (e >> 1)) >> (6u * (e & 1u));
        uint ix = u32_at(b + 4u * e), high = u16_at(b + 32u + 2u * e);
        u.s0 = 2 * int(s & 7u) + 1;
        u.s1 = 2 * int(s >> 3 & 7u) + 1;
        u.d = unpackHalf2x16(bits).x * 0.125;
        uvec4 nib = nibbles_of(high) & 15u;
        put_ternary(u, bytes_of(ix) | (nib & 7u) << 8, nib >> 3);
    }
}

// Group g of the quantised row that begins at `row`.
Group group_at(uint64_t row, uint g) {
    Group u;
    u.s0 = u.s1 = 1;
    u.m0 = u.m1 = 0;
    u.d = u.d1 = u.dm = 0.0;
    u.a = u.b = uvec4(0u);
    if (TYPE == T_Q2_K || TYPE == T_Q3_K || TYPE == T_Q4_K || TYPE == T_Q5_K || TYPE == T_Q6_K ||
        TYPE == T_IQ4_XS || TYPE == T_TQ1_0 || TYPE == T_TQ2_0)
        group_k(row, g, u);
    else if (TYPE == T_IQ2_XXS || TYPE == T_IQ2_XS || TYPE == T_IQ2_S) group_grid_2(row, g, u);
    else if (TYPE == T_IQ3_XXS || TYPE == T_IQ3_S) group_grid_3(row, g, u);
    else if (TYPE == T_IQ1_S || TYPE == T_IQ1_M) group_grid_1(row, g, u);
    else group_small(row, g, u);
    return u;
}

// ---- interleaved rows (gpu_interleave.h) --------------------------------------------------------

const bool FOURS = TYPE == T_IQ3_XXS || TYPE == T_IQ3_S; // a grid of four values an entry
const uint EXTRA = TYPE == T_IQ2_XXS || TYPE == T_IQ3_XXS ? 1u : 2u; // bytes of a row and group
const uint HIGH = TYPE == T_IQ2_S ? 2u : TYPE == T_IQ2_XS || TYPE == T_IQ3_S ? 1u : 0u; // bits
const float UNIT = TYPE == T_IQ3_S ? 1.0 : TYPE == T_IQ3_XXS ? 0.25 : 0.125;

struct Planes {
    uint64_t codes, signs, extra, d;
};

// Of a matrix of so many pairs of rows of n_group groups.
Planes planes_of(uint64_t w, uint n_pair, uint n_group) {
    Planes p;
    uint64_t groups = uint64_t(n_pair) * n_group;
    p.codes = w;
    p.signs = w + 16ul * groups;
    p.extra = p.signs + (FOURS ? (8ul * groups + 15ul & ~15ul) : 0ul);
    p.d = p.extra + (2ul * EXTRA * groups + 15ul & ~15ul);
    return p;
}

uvec4 high_bits(uint extra, uint first) {
    if (HIGH == 0u) return uvec4(0u);
    uint e = extra >> (first * HIGH);
    return (uvec4(e, e >> HIGH, e >> (2u * HIGH), e >> (3u * HIGH)) & ((1u << HIGH) - 1u)) << 8;
}

Group planes_group(uvec2 low, uint signs, uint extra, float d) {
    Group u;
    u.d = d * UNIT;
    u.d1 = u.dm = 0.0;
    u.m0 = u.m1 = 0;
    uint scale = EXTRA == 1u ? extra : extra >> 8;
    u.s0 = odd_scale(scale);
    u.s1 = HALVES ? odd_scale(scale >> 4) : u.s0;
    if (FOURS) {
        u.a = grid_words(bytes_of(low.x) | high_bits(extra, 0u));
        u.b = grid_words(bytes_of(low.y) | high_bits(extra, 4u));
    } else {
        uvec4 ix = bytes_of(low.x) | high_bits(extra, 0u);
        u.a = uvec4(grid_pair(ix.x), grid_pair(ix.y));
        u.b = uvec4(grid_pair(ix.z), grid_pair(ix.w));
    }
    uvec4 s = uvec4(signs, signs >> 1, signs >> 2, signs >> 3);
    u.a = negated(u.a, s & 0x01010101u);
    u.b = negated(u.b, s >> 4 & 0x01010101u);
    return u;
}

// Group g of both rows of a pair.
void planes_pair(Planes p, uint pair, uint n_group, uint g, out Group u, out Group v) {
    uint at = pair * n_group + g;
    uvec4 w = U32x4(p.codes).v[at];
    uvec2 signs = FOURS ? U32x2(p.signs).v[at] : w.yw;
    uint e = EXTRA == 1u ? uint(U16(p.extra).v[at]) : U32(p.extra).v[at];
    vec2 d = unpackHalf2x16(U32(p.d).v[at / 8u]);
    u = planes_group(w.xy, signs.x, e & (EXTRA == 1u ? 255u : 65535u), d.x);
    v = planes_group(w.zw, signs.y, e >> (8u * EXTRA), d.y);
}

// Of one row.
Group planes_row(Planes p, uint row, uint n_group, uint g) {
    uint at = row / 2u * n_group + g, second = row & 1u;
    uvec2 low = U32x2(p.codes).v[2u * at + second];
    uint signs = FOURS ? U32(p.signs).v[2u * at + second] : low.y;
    uint own = 2u * at + second;
    uint e = EXTRA == 1u ? u8_at(p.extra + own) : u16_at(p.extra + 2u * own);
    return planes_group(low, signs, e, half_at(U16(p.d), 2u * (at / 8u) + second));
}

// Value i of a float row at a device address.
float float_at(uint64_t row, uint i) {
    if (TYPE == T_F32) return F32(row).v[i];
    if (TYPE == T_F16) return half_at(U16(row), i);
    return uintBitsToFloat(uint(U16(row).v[i]) << 16);
}
