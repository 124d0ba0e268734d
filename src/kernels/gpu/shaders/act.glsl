// Activations of products with quantised weights: 8-bit codes with one scale for 32 values (the
// q8_0 rule, the scale kept in f32). A row: n codes, n / 32 scales, n / 32 words with the sums of
// the codes of both halves; rows start at multiples of 16 bytes.

uint act_row_bytes(uint n) {
    return (n + n / 4u + 15u) & ~15u;
}

// What the codes are multiplied by to give the values, and its inverse.
float act_scale(float most) {
    precise float d = most * (1.0 / 127.0);
    return d;
}

float act_inverse(float most) {
    precise float i = 127.0 / most;
    return most > 0.0 ? i : 0.0;
}

// Half to even; what is not finite becomes some code and is reported elsewhere.
int act_code(float x, float inverse) {
    precise float v = x * inverse;
    return int(rint_small(clamp(v, -127.0, 127.0)));
}

uint act_pack(ivec4 c) {
    return uint(c.x & 255) | uint(c.y & 255) << 8 | uint(c.z & 255) << 16 | uint(c.w & 255) << 24;
}

uint act_word(vec4 x, float inverse, inout int sum) {
    ivec4 c = ivec4(act_code(x.x, inverse), act_code(x.y, inverse), act_code(x.z, inverse),
                    act_code(x.w, inverse));
    sum += c.x + c.y + c.z + c.w;
    return act_pack(c);
}

float act_most_of(vec4 x) {
    return max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w)));
}

// A group by one thread: the 32 values from `x` on, whose address is a multiple of 16. `a`, `b`:
// the codes, `sums`: of both halves. Returns the scale.
float act_group(F32x4 x, out uvec4 a, out uvec4 b, out uint sums) {
    vec4 x0 = x.v[0], x1 = x.v[1], x2 = x.v[2], x3 = x.v[3];
    vec4 x4 = x.v[4], x5 = x.v[5], x6 = x.v[6], x7 = x.v[7];
    float low_most = max(max(act_most_of(x0), act_most_of(x1)),
                         max(act_most_of(x2), act_most_of(x3)));
    float most = max(max(act_most_of(x4), act_most_of(x5)), max(act_most_of(x6), act_most_of(x7)));
    most = max(most, low_most);
    float inverse = act_inverse(most);
    int low = 0, high = 0;
    a = uvec4(act_word(x0, inverse, low), act_word(x1, inverse, low), act_word(x2, inverse, low),
              act_word(x3, inverse, low));
    b = uvec4(act_word(x4, inverse, high), act_word(x5, inverse, high),
              act_word(x6, inverse, high), act_word(x7, inverse, high));
    sums = uint(low & 0xFFFF) | uint(high) << 16;
    return act_scale(most);
}

#ifdef RG_ACT_THREADS
shared float act_most[RG_ACT_THREADS];
shared int act_sums[RG_ACT_THREADS];

// Values i .. i + 3 of a row of n (a multiple of 32) as codes into the row at y. All threads call
// it together; eight neighbours, the first of them a multiple of 8, hold a group.
void act_store(uint tid, bool live, vec4 x, uint64_t y, uint n, uint i) {
    uint first = tid & ~7u;
    act_most[tid] = live ? max(max(abs(x.x), abs(x.y)), max(abs(x.z), abs(x.w))) : 0.0;
    barrier(); // all of the group
    float top = 0.0;
    for (uint k = 0u; k < 8u; k++)
        top = max(top, act_most[first + k]);
    float inverse = act_inverse(top);
    ivec4 c = ivec4(act_code(x.x, inverse), act_code(x.y, inverse), act_code(x.z, inverse),
                    act_code(x.w, inverse));
    act_sums[tid] = c.x + c.y + c.z + c.w;
    barrier(); // all sums of the group
    if (!live) return;
    U32(y).v[i / 4u] = act_pack(c);
    if (tid != first) return;
    int low = act_sums[tid] + act_sums[tid + 1u] + act_sums[tid + 2u] + act_sums[tid + 3u];
    int high = act_sums[tid + 4u] + act_sums[tid + 5u] + act_sums[tid + 6u] + act_sums[tid + 7u];
    F32(y + n).v[i / 32u] = act_scale(top);
    U32(y + n + n / 8u).v[i / 32u] = uint(low & 0xFFFF) | uint(high) << 16;
}
#endif
