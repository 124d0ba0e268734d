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
