// Sums over the 256 threads of a workgroup in one fixed tree: x[t] + x[t + 128], then 64 .. 1.
shared float sum_part[256];
shared vec4 sum_few[8];

// The last five levels, over 32 values: every thread for itself.
float sum_of_few() {
    precise vec4 a0 = sum_few[0] + sum_few[4], a1 = sum_few[1] + sum_few[5];
    precise vec4 a2 = sum_few[2] + sum_few[6], a3 = sum_few[3] + sum_few[7];
    precise vec4 b0 = a0 + a2, b1 = a1 + a3;
    precise vec4 c = b0 + b1;
    precise vec2 d = c.xy + c.zw;
    precise float s = d.x + d.y;
    return s;
}

// All threads get it.
float sum_256(uint tid, float x) {
    sum_part[tid] = x;
    barrier(); // all parts; the sum before is read
    if (tid < 32u) {
        precise float a0 = sum_part[tid] + sum_part[tid + 128u];
        precise float a1 = sum_part[tid + 32u] + sum_part[tid + 160u];
        precise float a2 = sum_part[tid + 64u] + sum_part[tid + 192u];
        precise float a3 = sum_part[tid + 96u] + sum_part[tid + 224u];
        precise float b0 = a0 + a2, b1 = a1 + a3;
        precise float c = b0 + b1;
        sum_few[tid >> 2][tid & 3u] = c;
    }
    barrier(); // the few; all parts are read
    return sum_of_few();
}
