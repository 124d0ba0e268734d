// What a state of the delta rule keeps from token to token: exp(a * softplus(alpha + dt)).
float log_own(float x) {
    uint u = floatBitsToUint(x), shifted = u - 0x3F3504F3u;
    int e = int(shifted) >> 23;
    precise float f = uintBitsToFloat((shifted & 0x007FFFFFu) + 0x3F3504F3u) - 1.0;
    precise float y = fma(6.746559590101242e-2, f, -0.11679643392562866);
    y = fma(y, f, 0.11890336126089096);
    y = fma(y, f, -0.12405137717723846);
    y = fma(y, f, 0.14219222962856293);
    y = fma(y, f, -0.16668006777763367);
    y = fma(y, f, 0.20002134144306183);
    y = fma(y, f, -0.25000008940696716);
    y = fma(y, f, 0.3333331346511841);
    precise float z = f * f;
    precise float r = f * z * y;
    r = fma(float(e), 1.42860682030941723212e-6, r);
    r = fma(-0.5, z, r);
    return fma(float(e), 0.693145751953125, f + r);
}

float softplus(float x) {
    precise float t = exp_own(min(x, 20.0));
    precise float u = 1.0 + t;
    precise float d = u - 1.0;
    precise float y = d == 0.0 ? t : log_own(u) * (t / d);
    return x > 20.0 ? x : y;
}

float decay_of(float a, float alpha, float dt) {
    precise float g = a * softplus(alpha + dt);
    return exp_own(g);
}
