#!/usr/bin/env python3
"""Writes a C file that holds SPIR-V programs: embed_spirv.py OUT.c NAME.spv..."""
import os
import struct
import sys


def words_of(path):
    with open(path, "rb") as f:
        data = f.read()
    if len(data) < 20 or len(data) % 4 or struct.unpack_from("<I", data)[0] != 0x07230203:
        sys.exit(f"embed_spirv: {path} is no SPIR-V")
    return struct.unpack(f"<{len(data) // 4}I", data)


def main():
    out, paths = sys.argv[1], sys.argv[2:]
    lines = ["/* Made at build time by tools/embed_spirv.py. */"]
    lines += ['#include "kernels/gpu/gpu.h"', ""]
    table = []
    for path in sorted(paths):
        name = os.path.splitext(os.path.basename(path))[0]
        words = words_of(path)
        lines.append(f"static const uint32_t {name}[] = {{")
        for i in range(0, len(words), 8):
            lines.append("    " + " ".join(f"0x{w:08x}," for w in words[i : i + 8]))
        lines.append("};")
        table.append(f'    {{"{name}", {name}, {len(words)}}},')
    lines += ["", "const rg_gpu_program rg_gpu_programs[] = {"] + table + ["};"]
    lines.append(f"const size_t rg_gpu_program_count = {len(table)};")
    with open(out, "w") as f:
        f.write("\n".join(lines) + "\n")


main()
