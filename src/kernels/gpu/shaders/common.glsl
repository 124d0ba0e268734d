// What all programs share: typed views of device addresses, own elementary functions, workgroup
// sums. Arithmetic of the charter: `precise` results, fma written out, sums in a fixed order.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer F32 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer F32x4 { vec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer U32 { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer U32x2 { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer U32x4 { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer U64 { uint64_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer U16 { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer U8 { uint8_t v[]; };

// Values at .. at + 3 of x; zeros where `n` or fewer of them are left. `whole`: the address is a
// multiple of 16 and n one of 4.
vec4 load_4(F32 x, uint at, uint n, bool whole) {
    if (n == 0u) return vec4(0.0);
    if (whole) return F32x4(uint64_t(x) + 4ul * at).v[0];
    return vec4(x.v[at], n > 1u ? x.v[at + 1u] : 0.0, n > 2u ? x.v[at + 2u] : 0.0,
                n > 3u ? x.v[at + 3u] : 0.0);
}

void store_4(F32 x, uint at, uint n, bool whole, vec4 y) {
    if (whole) {
        if (n != 0u) F32x4(uint64_t(x) + 4ul * at).v[0] = y;
        return;
    }
    for (uint k = 0u; k < min(n, 4u); k++)
        x.v[at + k] = y[k];
}

// exp: Cody-Waite reduction, then a polynomial fitted on [-ln2/2, ln2/2]: the operations of
// kernels/cpu/ref/math_inline.h.
float rint_small(float x) {
    precise float y = x + 12582912.0;
    precise float z = y - 12582912.0;
    return z;
}

float pow2i(float n) {
    return uintBitsToFloat(uint(int(n) + 127) << 23);
}

float exp_own(float x) {
    float lo = x < -104.0 ? -104.0 : x;
    float c = lo > 89.0 ? 89.0 : lo;
    float n = rint_small(c * 1.44269504088896341);
    precise float r0 = fma(n, -0.693145751953125, c);
    precise float r = fma(n, -1.42860682030941723212e-6, r0);
    precise float p = fma(1.381453825160861e-3, r, 8.36874544620514e-3);
    p = fma(p, r, 4.166838899254799e-2);
    p = fma(p, r, 0.1666652113199234);
    p = fma(p, r, 0.4999999403953552);
    precise float q = p * r;
    p = fma(q, r, r) + 1.0;
    float h = rint_small(n * 0.5);
    precise float y = p * pow2i(h);
    y = y * pow2i(n - h);
    return x < -104.0 ? 0.0 : y;
}

float sigmoid(float x) {
    precise float y = 1.0 / (1.0 + exp_own(-x));
    return y;
}

float silu(float x) {
    precise float y = x / (1.0 + exp_own(-x));
    return y;
}

bool finite(float x) {
    return (floatBitsToUint(x) & 0x7F800000u) != 0x7F800000u;
}

// A value of a key or value cache: f16 pairs or f32.
float half_at(U16 p, uint i) {
    return unpackHalf2x16(uint(p.v[i])).x;
}

uint16_t to_half(float x) {
    return uint16_t(packHalf2x16(vec2(x, 0.0)));
}
