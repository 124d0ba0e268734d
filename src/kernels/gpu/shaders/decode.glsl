// Sixteen weights of a row as code * sub-scale (exact small integers as floats), their scale and
// the factor of the sum of the activations. A row of any type is cut into units of 16 values; every
// type has one scale in a unit. Formats: src/quant/blocks.h. Ids of types: rg_type.

const uint T_F32 = 0u, T_F16 = 1u, T_Q4_0 = 2u, T_Q4_1 = 3u, T_Q5_0 = 6u, T_Q5_1 = 7u, T_Q8_0 = 8u;
const uint T_Q2_K = 10u, T_Q3_K = 11u, T_Q4_K = 12u, T_Q5_K = 13u, T_Q6_K = 14u;
const uint T_IQ2_XXS = 16u, T_IQ2_XS = 17u, T_IQ3_XXS = 18u, T_IQ1_S = 19u, T_IQ4_NL = 20u;
const uint T_IQ3_S = 21u, T_IQ2_S = 22u, T_IQ4_XS = 23u, T_IQ1_M = 29u, T_BF16 = 30u;
const uint T_TQ1_0 = 34u, T_TQ2_0 = 35u, T_MXFP4 = 39u, T_NVFP4 = 40u, T_Q1_0 = 41u, T_Q2_0 = 42u;

// Where each grid starts in the table buffer, in words (rg_gpu_tables).
const uint G_IQ2XXS = 0u, G_IQ2XS = 512u, G_IQ2S = 1536u, G_IQ1S = 3584u, G_IQ3XXS = 7680u;
const uint G_IQ3S = 7936u, G_SIGNS = 8448u, G_NL = 8480u, G_FP4 = 8484u;

struct Unit {
    float q[16];
    float d; // w = d * q + m
    float m;
};

float f16_at(uint64_t p) {
    return unpackHalf2x16(uint(U16(p).v[0])).x;
}

uint u8_at(uint64_t p) {
    return uint(U8(p).v[0]);
}

uint u16_at(uint64_t p) {
    return uint(U16(p).v[0]);
}

// Four bytes at an even address.
uint u32_at(uint64_t p) {
    return uint(U16(p).v[0]) | uint(U16(p).v[1]) << 16;
}

// Sixteen bytes at an even address: aligned words, shifted where the address is not.
uvec4 load_16(uint64_t p) {
    U32 b = U32(p & ~3ul);
    uvec4 w = uvec4(b.v[0], b.v[1], b.v[2], b.v[3]);
    if ((p & 2ul) == 0ul) return w;
    uint last = b.v[4];
    return (w >> 16) | (uvec4(w.y, w.z, w.w, last) << 16);
}

int byte_of(uint word, uint j) {
    return int(bitfieldExtract(word, int(8u * j), 8));
}

int sbyte_of(uint word, uint j) {
    return bitfieldExtract(int(word), int(8u * j), 8);
}

// Four codes of 4 bits, each in its byte of `word`.
void put4(inout Unit u, uint at, uint word, int bias) {
    for (uint j = 0u; j < 4u; j++)
        u.q[at + j] = float(byte_of(word, j) - bias);
}

void put4_scaled(inout Unit u, uint at, uint word, int bias, int s) {
    for (uint j = 0u; j < 4u; j++)
        u.q[at + j] = float((byte_of(word, j) - bias) * s);
}

// Sixteen nibbles out of 16 bytes: the low ones or the high ones.
void nibbles(inout Unit u, uint64_t p, uint high, int bias, int s) {
    uvec4 w = load_16(p);
    for (uint k = 0u; k < 4u; k++)
        put4_scaled(u, 4u * k, (w[k] >> (4u * high)) & 0x0F0F0F0Fu, bias, s);
}

// Table values (16 signed bytes in 4 words) of nibble codes.
uvec4 table_words(U32 t, uint base) {
    return uvec4(t.v[base], t.v[base + 1u], t.v[base + 2u], t.v[base + 3u]);
}

int table_value(uvec4 t, uint code) {
    uint low = (code & 4u) != 0u ? t.y : t.x, top = (code & 4u) != 0u ? t.w : t.z;
    return sbyte_of((code & 8u) != 0u ? top : low, code & 3u);
}

void nibbles_table(inout Unit u, uvec4 w, uint high, uvec4 t, int s) {
    for (uint k = 0u; k < 16u; k++) {
        uint code = (w[k / 4u] >> (8u * (k & 3u) + 4u * high)) & 15u;
        u.q[k] = float(table_value(t, code) * s);
    }
}

// Sixteen bytes at any address.
uvec4 load_16_odd(uint64_t p) {
    uvec4 w = uvec4(0u);
    for (uint k = 0u; k < 16u; k++)
        w[k / 4u] |= u8_at(p + k) << (8u * (k & 3u));
    return w;
}

// Nibbles with a fifth bit: bits `first`.. of `high_bits`.
void five_bits(inout Unit u, uint64_t p, uint high, uint high_bits, int bias) {
    uvec4 bytes = load_16(p);
    for (uint k = 0u; k < 4u; k++) {
        uint w = (bytes[k] >> (4u * high)) & 0x0F0F0F0Fu;
        for (uint j = 0u; j < 4u; j++) {
            int top = int((high_bits >> (4u * k + j)) & 1u) << 4;
            u.q[4u * k + j] = float((byte_of(w, j) | top) - bias);
        }
    }
}

// Scale and minimum number i of the twelve packed bytes of q4_K and q5_K.
ivec2 pair_6bit(uint64_t s, uint i) {
    if (i < 4u) return ivec2(u8_at(s + i) & 63u, u8_at(s + i + 4u) & 63u);
    uint both = u8_at(s + i + 4u);
    return ivec2((both & 15u) | (u8_at(s + i - 4u) >> 6) << 4,
                 (both >> 4) | (u8_at(s + i) >> 6) << 4);
}

// Eight values of a grid entry (two words of unsigned bytes) with signs, times s.
void grid_8(inout Unit u, uint at, U32 t, uint entry, uint signs, int s) {
    uvec2 g = uvec2(t.v[entry], t.v[entry + 1u]);
    for (uint j = 0u; j < 8u; j++) {
        int v = byte_of(j < 4u ? g.x : g.y, j & 3u) * s;
        u.q[at + j] = float((signs >> j & 1u) != 0u ? -v : v);
    }
}

void grid_4(inout Unit u, uint at, uint g, uint signs, int s) {
    for (uint j = 0u; j < 4u; j++) {
        int v = byte_of(g, j) * s;
        u.q[at + j] = float((signs >> j & 1u) != 0u ? -v : v);
    }
}

// Ternary grid shifted by an eighth: 8 * value + delta, times s.
void grid_ternary(inout Unit u, uint at, U32 t, uint entry, int delta, int s) {
    uvec2 g = uvec2(t.v[entry], t.v[entry + 1u]);
    for (uint j = 0u; j < 8u; j++)
        u.q[at + j] = float((8 * sbyte_of(j < 4u ? g.x : g.y, j & 3u) + delta) * s);
}

uint even_signs(U32 t, uint code) {
    return (t.v[G_SIGNS + code / 4u] >> (8u * (code & 3u))) & 255u;
}

float e8m0_half(uint e) {
    return uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
}

float ue4m3_half(uint b) {
    if (b == 0u || b == 0x7Fu) return 0.0;
    int e = int(b >> 3 & 15u);
    float m = float(b & 7u);
    return e == 0 ? m * (1.0 / 1024.0) : (8.0 + m) * pow2i(float(e - 11));
}

int ternary_digit(uint byte, uint n) {
    const uint pow3[5] = uint[5](1u, 3u, 9u, 27u, 81u);
    return int((3u * ((byte * pow3[n]) & 255u)) >> 8) - 1;
}

// Blocks of 32 values and less.
void unit_small(uint type, uint64_t row, uint n, U32 t, inout Unit u) {
    uint i = n / 2u, h = n & 1u; // block of 32, its half
    if (type == T_Q8_0) {
        uint64_t b = row + 34u * i;
        u.d = f16_at(b);
        uvec4 w = load_16(b + 2u + 16u * h);
        for (uint k = 0u; k < 16u; k++)
            u.q[k] = float(sbyte_of(w[k / 4u], k & 3u));
    } else if (type == T_Q4_0) {
        uint64_t b = row + 18u * i;
        u.d = f16_at(b);
        nibbles(u, b + 2u, h, 8, 1);
    } else if (type == T_Q4_1) {
        uint64_t b = row + 20u * i;
        u.d = f16_at(b);
        u.m = f16_at(b + 2u);
        nibbles(u, b + 4u, h, 0, 1);
    } else if (type == T_Q5_0) {
        uint64_t b = row + 22u * i;
        u.d = f16_at(b);
        five_bits(u, b + 6u, h, u32_at(b + 2u) >> (16u * h), 16);
    } else if (type == T_Q5_1) {
        uint64_t b = row + 24u * i;
        u.d = f16_at(b);
        u.m = f16_at(b + 2u);
        five_bits(u, b + 8u, h, u32_at(b + 4u) >> (16u * h), 0);
    } else if (type == T_IQ4_NL) {
        uint64_t b = row + 18u * i;
        u.d = f16_at(b);
        nibbles_table(u, load_16(b + 2u), h, table_words(t, G_NL), 1);
    } else if (type == T_MXFP4) {
        uint64_t b = row + 17u * i;
        u.d = e8m0_half(u8_at(b));
        nibbles_table(u, load_16_odd(b + 1u), h, table_words(t, G_FP4), 1);
    } else if (type == T_NVFP4) {
        uint64_t b = row + 36u * (n / 4u);
        uint s = n & 3u;
        uvec4 values = table_words(t, G_FP4);
        u.d = ue4m3_half(u8_at(b + s));
        for (uint k = 0u; k < 8u; k++) {
            uint byte = u8_at(b + 4u + 8u * s + k);
            u.q[k] = float(table_value(values, byte & 15u));
            u.q[k + 8u] = float(table_value(values, byte >> 4));
        }
    } else if (type == T_Q1_0) {
        uint64_t b = row + 18u * (n / 8u);
        uint bits = u16_at(b + 2u + 2u * (n & 7u));
        u.d = f16_at(b);
        for (uint k = 0u; k < 16u; k++)
            u.q[k] = (bits >> k & 1u) != 0u ? 1.0 : -1.0;
    } else if (type == T_Q2_0) {
        uint64_t b = row + 18u * (n / 4u);
        uint bits = u32_at(b + 2u + 4u * (n & 3u));
        u.d = f16_at(b);
        for (uint k = 0u; k < 16u; k++)
            u.q[k] = float(int(bits >> (2u * k) & 3u) - 1);
    }
}

// Blocks of 256 with 4 to 6 bits, and ternary ones. e: unit in the block.
void unit_k(uint type, uint64_t row, uint n, inout Unit u, U32 t) {
    uint i = n / 16u, e = n & 15u;
    if (type == T_Q2_K) {
        uint64_t b = row + 84u * i;
        uint s = u8_at(b + e);
        u.d = f16_at(b + 80u);
        u.m = -f16_at(b + 82u) * float(s >> 4);
        uvec4 w = load_16(b + 16u + 32u * (e / 8u) + 16u * (e & 1u));
        for (uint k = 0u; k < 4u; k++)
            put4_scaled(u, 4u * k, (w[k] >> (2u * (e / 2u & 3u))) & 0x03030303u, 0, int(s & 15u));
    } else if (type == T_Q3_K) {
        uint64_t b = row + 110u * i, sb = b + 96u;
        uint low = e < 8u ? u8_at(sb + e) & 15u : u8_at(sb + e - 8u) >> 4;
        int s = int(low | (u8_at(sb + 8u + (e & 3u)) >> (2u * (e / 4u)) & 3u) << 4) - 32;
        u.d = f16_at(b + 108u);
        uvec4 w = load_16(b + 32u + 32u * (e / 8u) + 16u * (e & 1u));
        uvec4 h = load_16(b + 16u * (e & 1u));
        for (uint k = 0u; k < 4u; k++) {
            uint code = ((w[k] >> (2u * (e / 2u & 3u))) & 0x03030303u) |
                        ((h[k] >> (e / 2u)) & 0x01010101u) << 2;
            put4_scaled(u, 4u * k, code, 4, s);
        }
    } else if (type == T_Q4_K) {
        uint64_t b = row + 144u * i;
        uint g = e / 2u;
        ivec2 sm = pair_6bit(b + 4u, g);
        u.d = f16_at(b);
        u.m = -f16_at(b + 2u) * float(sm.y);
        nibbles(u, b + 16u + 32u * (g / 2u) + 16u * (e & 1u), g & 1u, 0, sm.x);
    } else if (type == T_Q5_K) {
        uint64_t b = row + 176u * i;
        uint g = e / 2u;
        ivec2 sm = pair_6bit(b + 4u, g);
        u.d = f16_at(b);
        u.m = -f16_at(b + 2u) * float(sm.y);
        uvec4 w = load_16(b + 48u + 32u * (g / 2u) + 16u * (e & 1u));
        uvec4 h = load_16(b + 16u + 16u * (e & 1u));
        for (uint k = 0u; k < 4u; k++) {
            uint code = ((w[k] >> (4u * (g & 1u))) & 0x0F0F0F0Fu) |
                        ((h[k] >> g) & 0x01010101u) << 4;
            put4_scaled(u, 4u * k, code, 0, sm.x);
        }
    } else if (type == T_Q6_K) {
        uint64_t b = row + 210u * i;
        uint g = e / 2u, half_ = g / 4u, j = g & 3u;
        uint sw = u8_at(b + 192u + e);
        int s = bitfieldExtract(int(sw), 0, 8);
        u.d = f16_at(b + 208u);
        uvec4 w = load_16(b + 64u * half_ + 32u * (j & 1u) + 16u * (e & 1u));
        uvec4 h = load_16(b + 128u + 32u * half_ + 16u * (e & 1u));
        for (uint k = 0u; k < 4u; k++) {
            uint code = ((w[k] >> (4u * (j >> 1))) & 0x0F0F0F0Fu) |
                        ((h[k] >> (2u * j)) & 0x03030303u) << 4;
            put4_scaled(u, 4u * k, code, 32, s);
        }
    } else if (type == T_IQ4_XS) {
        uint64_t b = row + 136u * i;
        uint g = e / 2u;
        uint low = u8_at(b + 4u + g / 2u) >> (4u * (g & 1u)) & 15u;
        int s = int(low | (u16_at(b + 2u) >> (2u * g) & 3u) << 4) - 32;
        u.d = f16_at(b);
        nibbles_table(u, load_16(b + 8u + 16u * g), e & 1u, table_words(t, G_NL), s);
    } else if (type == T_TQ2_0) {
        uint64_t b = row + 66u * i;
        u.d = f16_at(b + 64u);
        uvec4 w = load_16(b + 32u * (e / 8u) + 16u * (e & 1u));
        for (uint k = 0u; k < 4u; k++)
            put4(u, 4u * k, (w[k] >> (2u * (e / 2u & 3u))) & 0x03030303u, 1);
    } else if (type == T_TQ1_0) {
        uint64_t b = row + 54u * i;
        u.d = f16_at(b + 52u);
        for (uint k = 0u; k < 16u; k++) {
            uint x = 16u * e + k, byte, digit;
            if (x < 160u) {
                byte = x & 31u;
                digit = x / 32u;
            } else if (x < 240u) {
                byte = 32u + ((x - 160u) & 15u);
                digit = (x - 160u) / 16u;
            } else {
                byte = 48u + ((x - 240u) & 3u);
                digit = (x - 240u) / 4u;
            }
            u.q[k] = float(ternary_digit(u8_at(b + byte), digit));
        }
    }
}

// Blocks of 256 over grids.
void unit_grid(uint type, uint64_t row, uint n, U32 t, inout Unit u) {
    uint i = n / 16u, e = n & 15u;
    if (type == T_IQ2_XXS) {
        uint64_t b = row + 66u * i, rec = b + 2u + 8u * (e / 2u);
        uint w = u32_at(rec + 4u), ix = u16_at(rec + 2u * (e & 1u));
        int s = 2 * int(w >> 28) + 1;
        u.d = f16_at(b) * 0.125;
        for (uint k = 0u; k < 2u; k++) {
            uint l = 2u * (e & 1u) + k;
            grid_8(u, 8u * k, t, G_IQ2XXS + 2u * (ix >> (8u * k) & 255u),
                   even_signs(t, w >> (7u * l) & 127u), s);
        }
    } else if (type == T_IQ2_XS) {
        uint64_t b = row + 74u * i;
        int s = 2 * int(u8_at(b + 66u + e / 2u) >> (4u * (e & 1u)) & 15u) + 1;
        u.d = f16_at(b) * 0.125;
        uint both = u32_at(b + 2u + 4u * e);
        for (uint k = 0u; k < 2u; k++) {
            uint v = both >> (16u * k) & 0xFFFFu;
            grid_8(u, 8u * k, t, G_IQ2XS + 2u * (v & 511u), even_signs(t, v >> 9), s);
        }
    } else if (type == T_IQ2_S) {
        uint64_t b = row + 82u * i;
        int s = 2 * int(u8_at(b + 74u + e / 2u) >> (4u * (e & 1u)) & 15u) + 1;
        uint low = u16_at(b + 2u + 2u * e), signs = u16_at(b + 34u + 2u * e);
        uint high = u8_at(b + 66u + e / 2u) >> (4u * (e & 1u));
        u.d = f16_at(b) * 0.125;
        for (uint k = 0u; k < 2u; k++) {
            uint index = (low >> (8u * k) & 255u) | (high >> (2u * k) & 3u) << 8;
            grid_8(u, 8u * k, t, G_IQ2S + 2u * index, signs >> (8u * k), s);
        }
    } else if (type == T_IQ3_XXS) {
        uint64_t b = row + 98u * i;
        uint w = u32_at(b + 66u + 4u * (e / 2u)), ix = u32_at(b + 2u + 4u * e);
        int s = 2 * int(w >> 28) + 1;
        u.d = f16_at(b) * 0.25;
        for (uint k = 0u; k < 4u; k++) {
            uint signs = even_signs(t, w >> (7u * (2u * (e & 1u) + k / 2u)) & 127u);
            grid_4(u, 4u * k, t.v[G_IQ3XXS + (ix >> (8u * k) & 255u)], signs >> (4u * (k & 1u)), s);
        }
    } else if (type == T_IQ3_S) {
        uint64_t b = row + 110u * i;
        uint ix = u32_at(b + 2u + 4u * e), signs = u16_at(b + 74u + 2u * e);
        uint high = u8_at(b + 66u + e / 2u) >> (4u * (e & 1u));
        int s = 2 * int(u8_at(b + 106u + e / 4u) >> (4u * (e / 2u & 1u)) & 15u) + 1;
        u.d = f16_at(b);
        for (uint k = 0u; k < 4u; k++) {
            uint index = (ix >> (8u * k) & 255u) | (high >> k & 1u) << 8;
            grid_4(u, 4u * k, t.v[G_IQ3S + index], signs >> (4u * k), s);
        }
    } else if (type == T_IQ1_S) {
        uint64_t b = row + 50u * i;
        uint w = u16_at(b + 34u + 2u * (e / 2u)), ix = u16_at(b + 2u + 2u * e);
        int s = 2 * int(w >> 12 & 7u) + 1, delta = (w >> 15) != 0u ? -1 : 1;
        u.d = f16_at(b) * 0.125;
        for (uint k = 0u; k < 2u; k++) {
            uint l = 2u * (e & 1u) + k;
            uint index = (ix >> (8u * k) & 255u) | (w >> (3u * l) & 7u) << 8;
            grid_ternary(u, 8u * k, t, G_IQ1S + 2u * index, delta, s);
        }
    } else if (type == T_IQ1_M) {
        uint64_t b = row + 56u * i;
        uint bits = 0u;
        for (uint k = 0u; k < 4u; k++)
            bits |= (u16_at(b + 48u + 2u * k) >> 12) << (4u * k);
        int s = 2 * int(u16_at(b + 48u + 2u * (e / 4u)) >> (3u * (e & 3u)) & 7u) + 1;
        uint ix = u16_at(b + 2u * e), high = u8_at(b + 32u + e);
        u.d = unpackHalf2x16(bits).x * 0.125;
        for (uint k = 0u; k < 2u; k++) {
            uint nib = high >> (4u * k) & 15u;
            uint index = (ix >> (8u * k) & 255u) | (nib & 7u) << 8;
            grid_ternary(u, 8u * k, t, G_IQ1S + 2u * index, (nib & 8u) != 0u ? -1 : 1, s);
        }
    }
}

// Values 16 n .. of a float row; zeros behind its end.
void unit_float(uint type, uint64_t row, uint n, uint n_in, inout Unit u) {
    for (uint k = 0u; k < 16u; k++) {
        uint i = 16u * n + k;
        float w = 0.0;
        if (i < n_in) {
            if (type == T_F32) w = F32(row).v[i];
            else if (type == T_F16) w = half_at(U16(row), i);
            else w = uintBitsToFloat(uint(U16(row).v[i]) << 16);
        }
        u.q[k] = w;
    }
}

// Unit n of a row that begins at address `row`.
Unit decode(uint type, uint64_t row, uint n, uint n_in, U32 t) {
    Unit u;
    u.d = 1.0;
    u.m = 0.0;
    if (type == T_F32 || type == T_F16 || type == T_BF16) unit_float(type, row, n, n_in, u);
    else if (type == T_Q2_K || type == T_Q3_K || type == T_Q4_K || type == T_Q5_K ||
             type == T_Q6_K || type == T_IQ4_XS || type == T_TQ1_0 || type == T_TQ2_0)
        unit_k(type, row, n, u, t);
    else if (type == T_IQ2_XXS || type == T_IQ2_XS || type == T_IQ2_S || type == T_IQ3_XXS ||
             type == T_IQ3_S || type == T_IQ1_S || type == T_IQ1_M)
        unit_grid(type, row, n, t, u);
    else unit_small(type, row, n, t, u);
    return u;
}

bool has_min(uint type) {
    return type == T_Q4_1 || type == T_Q5_1 || type == T_Q2_K || type == T_Q4_K || type == T_Q5_K;
}
