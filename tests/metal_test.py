#!/usr/bin/env python3
"""Every GPU program has its translation for Apple devices: metal_test.py DIR PROGRAM..."""
import os
import re
import sys


def with_includes(path):
    with open(path) as f:
        text = f.read()
    for name in re.findall(r'#include "(.*?)"', text):
        text += with_includes(os.path.join(os.path.dirname(path), name))
    return text


def main():
    folder, programs = sys.argv[1], sys.argv[2:]
    assert programs
    for program in programs:
        name = os.path.splitext(os.path.basename(program))[0]
        with open(program) as f:
            own = f.read()
        source = with_includes(program)
        with open(os.path.join(folder, name + ".metal")) as f:
            text = f.read()
        assert "kernel void main0(" in text, f"{name}: no kernel"
        constants = len(re.findall(r"layout\(constant_id = ", source))
        # A constant that sizes an array is a macro: Metal wants it before compiling.
        found = len(
            set(re.findall(r"\[\[function_constant\((\d+)\)\]\]", text))
            | set(re.findall(r"#ifndef SPIRV_CROSS_CONSTANT_ID_(\d+)", text))
        )
        assert found == constants, f"{name}: {found} of {constants} constants"
        # Sums of the charter: a fused multiply-add stays one.
        assert ("fma(" in own) <= ("fma(" in text), f"{name}: fma is gone"
    print(f"{len(programs)} programs translated")


main()
