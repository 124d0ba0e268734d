// Weights as values, four at a time. Includes nothing: codes.glsl stands before it.

// Values i .. i + 3 (i a multiple of 4) of a row of n, zeros behind its end.
vec4 values_at(uint64_t row, uint i, uint n) {
    vec4 w = vec4(0.0);
    if (FLOATS) {
        for (uint k = 0u; k < min(4u, n - i); k++)
            w[k] = float_at(row, i + k);
        return w;
    }
    Group u = group_at(row, i / 32u);
    uint part = i / 4u & 7u;
    bool low = part < 4u;
    uint word = low ? u.a[part] : u.b[part - 4u];
    float d = TYPE == T_NVFP4 && !low ? u.d1 : u.d;
    precise float m = u.dm * float(low ? u.m0 : u.m1);
    for (uint k = 0u; k < 4u; k++) {
        int code = bitfieldExtract(int(word), int(8u * k), 8);
        precise float v = d * float(code * (low ? u.s0 : u.s1));
        precise float x = MINS ? v + m : v;
        w[k] = x;
    }
    return w;
}
