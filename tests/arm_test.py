#!/usr/bin/env python3
"""The kernels on ARM: cross-compiled, then run under qemu on a CPU of each kind of dot product.

arm_test.py --source ROOT --build FOLDER. Exit 77: the cross compiler or qemu is missing, or the
machine runs ARM code itself and the ordinary tests cover it.
"""

import argparse
import concurrent.futures
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

CC = "aarch64-linux-gnu-gcc"
QEMU = "qemu-aarch64"
FLAGS = (
    "-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -fno-fast-math -fno-math-errno "
    "-fno-trapping-math -Wall -Wextra -Werror"
).split()
BASE = "alloc cpu log os_linux os_posix random status".split()
TESTS = "mul_test quantize_test convert_test elementwise_test rows_test gdn_test".split()
# A CPU without byte dot products, one with sdot, one with smmla: what each must report.
CPUS = {"cortex-a72": 0, "neoverse-n1": 1, "max": 2}
FORMS = {
    "neon_dotprod": ["-march=armv8.2-a+dotprod"],
    "neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
}
MAIN = """
#include "base/base.h"
int main(int argc, char **argv) {
    return argc == 2 && rg_cpu_arm_dot() == (rg_cpu_arm)(argv[1][0] - '0') ? 0 : 1;
}
"""


def jobs(root, out):
    """(source, object, flags) of everything to compile."""
    src = root / "src"
    found = [(src / "base" / f"{name}.c", f"base_{name}", []) for name in BASE]
    for path in sorted((src / "quant").glob("*.c")):
        if not path.stem.endswith("_test"):
            found.append((path, f"quant_{path.stem}", []))
    for level in ("scalar", "neon"):
        for path in sorted((src / "quant/pack").glob("*.c")):
            found.append((path, f"{level}_{path.stem}", [f"-DRG_LEVEL={level}"]))
    found.append((src / "kernels/kernels.c", "kernels", []))
    for level, ident in (("scalar", "RG_CPU_SCALAR"), ("neon", "RG_CPU_NEON")):
        flags = [f"-DRG_LEVEL={level}", f"-DRG_LEVEL_ID={ident}"]
        if level == "neon":
            flags.append("-DRG_LEVEL_MUL=rg_neon_mul")
        for path in sorted((src / "kernels/cpu/ref").glob("*.c")):
            found.append((path, f"{level}_{path.stem}", flags))
    for path in sorted((src / "kernels/cpu/arm").glob("*.c")):
        found.append((path, f"form_{path.stem}", FORMS.get(path.stem, [])))
    return [(source, out / f"{name}.o", flags) for source, name, flags in found]


def compile_one(root, source, target, flags):
    """One object file; the compiler's words when it fails."""
    include = ["-I", root / "src", "-I", root / "include", "-I", root / "tests/arm"]
    include += ["-I", root / "tests"]
    include += [f'-DRG_SOURCE_DIR="{root}"', f'-DRG_TEST_DATA="{root}/tests/data"']
    command = [CC, *FLAGS, *flags, *include, "-c", source, "-o", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def build(root, out):
    """The test programs, by name."""
    work = jobs(root, out)
    for name in TESTS:
        work.append((root / "src/kernels" / f"{name}.c", out / f"{name}.o", []))
    (out / "probe.c").write_text(MAIN, encoding="ascii")
    work.append((out / "probe.c", out / "probe.o", []))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for error in pool.map(lambda job: compile_one(root, *job), work):
            if error:
                sys.exit(f"arm_test: {error}")
    library = [job[1] for job in jobs(root, out)]
    programs = {}
    for name in [*TESTS, "probe"]:
        programs[name] = out / name
        command = [CC, "-static", out / f"{name}.o", *library, "-o", programs[name]]
        command += ["-lm", "-lpthread"]
        subprocess.run(command, check=True)
    return programs


def run(program, cpu, argument=()):
    """Exit status and output of a program on one CPU."""
    command = [QEMU, "-cpu", cpu, program, *argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    return done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description="run the kernels' tests as ARM code")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    args = parser.parse_args()
    if platform.machine() in ("aarch64", "arm64"):
        print("arm_test: this machine runs ARM code itself")
        return 77
    for tool in (CC, QEMU):
        if not shutil.which(tool):
            print(f"arm_test: {tool} is not installed")
            return 77
    out = args.build / "arm"
    out.mkdir(parents=True, exist_ok=True)
    programs = build(args.source, out)
    failed = 0
    for cpu, kind in CPUS.items():
        status, _ = run(programs["probe"], cpu, [str(kind)])
        if status:
            print(f"arm_test: {cpu} does not choose dot product form {kind}: it would go untested")
            failed += 1
        # Only the product has a form of its own on each CPU.
        for name in TESTS if cpu == "max" else TESTS[:1]:
            status, text = run(programs[name], cpu)
            print(f"{name} on {cpu}: {'ok' if status == 0 else 'FAILED'}")
            if status:
                print(text)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
