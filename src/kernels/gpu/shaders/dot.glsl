// Exact products of four signed bytes: one instruction where the program is compiled for devices
// that have it (RG_DOT), the same integers elsewhere.
#ifdef RG_DOT
#extension GL_EXT_spirv_intrinsics : require
// OpSDotKHR with capabilities DotProductKHR, DotProductInput4x8BitPackedKHR; 0: packed 4x8 bits.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018],
                  id = 4450)
int dot_packed(uint a, uint b, spirv_literal int format);

int dot_4(uint a, uint b, int sum) {
    return dot_packed(a, b, 0) + sum;
}
#else
int dot_4(uint a, uint b, int sum) {
    for (int k = 0; k < 32; k += 8)
        sum += bitfieldExtract(int(a), k, 8) * bitfieldExtract(int(b), k, 8);
    return sum;
}
#endif

int dot_16(uvec4 a, uvec4 b) {
    return dot_4(a.x, b.x, dot_4(a.y, b.y, dot_4(a.z, b.z, dot_4(a.w, b.w, 0))));
}
