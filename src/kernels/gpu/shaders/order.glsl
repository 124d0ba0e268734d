// An order of floats as integers: rises with x; both zeros are one value, what is not a number
// comes last.
uint key_of(float x) {
    if (isnan(x)) return 0u;
    uint bits = x == 0.0 ? 0u : floatBitsToUint(x);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
