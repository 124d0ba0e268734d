#!/usr/bin/python3
"""Measures streaming against its bounds: bench/streaming.py REGOLITH MODEL [PART...] --help

Parts (default: all), each repeated and interleaved, fresh processes, a line of bench/results.tsv
each:
  prefill    cold prefill against max(the same without reading, bytes / the drive's ceiling measured
             in the same run), for prompts of one chunk of 256 and of 1,024
  bound      decode against B = sum over layers of before the router + max(phase 1, urgent bytes /
             ceiling) + phase 2
  resident   everything in memory: through the arena against without one
  lookahead  decode with read-ahead against without
"""
import argparse
import json
import statistics
import subprocess
import sys

from measure import Failed, drop_page_cache, row, spread, start

PARTS = ("prefill", "bound", "resident", "lookahead")
CHUNKS = (256, 1024)


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("regolith", help="the binary")
    p.add_argument("model", help="GGUF file")
    p.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    p.add_argument("--arena", default="1825M", help="about a quarter of the experts")
    p.add_argument("--all-experts", default="9000M", help="an arena for all of them")
    p.add_argument("--backend", default="cpu", help="cpu or vulkan")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64, help="decoded")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--note", default="")
    args = p.parse_args(argv)
    if unknown := set(args.parts) - set(PARTS):
        p.error(f"unknown part {min(unknown)}")
    args.parts = args.parts or PARTS
    return args


def flags(args, prompt, tokens, *more):
    return ["-p", str(prompt), "-n", str(tokens), "--threads", str(args.threads), "--reps", "1",
            "--json", "--backend", args.backend, *more]


def bench(args, with_flags):
    drop_page_cache(args.model)
    out, said, _ = start([args.regolith, "bench", "-m", args.model, *with_flags], None)
    for line in said.splitlines():
        if "warning" in line:
            print(line, file=sys.stderr)
    return json.loads(out)


def show(args, what, with_flags, pairs, note):
    """One line; `pairs` are (bound, measured) of each repetition."""
    ratios = [b / a for a, b in pairs]
    note = f"{note}; ratios {spread(ratios)} in {len(pairs)}" + (f"; {args.note}" * bool(args.note))
    print(row(args.model, what, " ".join(["regolith bench", *with_flags]),
              statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), note,
              ratio=statistics.median(ratios), backend=args.backend), flush=True)


def prefill(args):
    for chunk in CHUNKS:
        with_flags = flags(args, chunk, 1, "--chunk", str(chunk), "--arena", args.arena, "--cold")
        pairs, wasted, reads, rates = [], [], [], []
        for _ in range(args.reps):
            cold = bench(args, with_flags)
            null = bench(args, [*with_flags, "--io", "null", "--ceiling", "1"])
            part = cold["prefill"]
            drive_ms = part["read_bytes"] / cold["drive_ceiling_gb_s"] * 1e-6
            null_ms = null["prefill"]["ttft_ms"]
            pairs.append((max(null_ms, drive_ms), part["ttft_ms"]))
            wasted.append(part["wasted_bytes"] / max(part["read_bytes"], 1))
            reads.append(part["drive_gb_s"])
            rates.append(cold["drive_ceiling_gb_s"])
            print(f"prefill {chunk}: {part['ttft_ms']:.0f} ms, null {null_ms:.0f}, drive "
                  f"{drive_ms:.0f}, {part['drive_gb_s']:.2f} of {rates[-1]:.2f} GB/s",
                  file=sys.stderr)
        show(args, f"cold prefill {chunk} ms against max(no reads, bytes / ceiling)", with_flags,
             pairs, f"wasted {100 * max(wasted):.1f} % of bytes at most; drive {spread(reads)}, "
             f"ceiling {spread(rates)} GB/s")


def bound(args):
    with_flags = flags(args, 256, args.tokens, "--arena", args.arena, "--cold")
    pairs = []
    for _ in range(args.reps):
        layers = bench(args, with_flags)["layers"]
        pairs.append((layers["bound_ms"], layers["token_ms"]))
        print(f"bound {pairs[-1][0]:.2f} ms, token {pairs[-1][1]:.2f} ms", file=sys.stderr)
    show(args, "decode token ms against its bound B", with_flags, pairs, "same run, cold")


def speeds(args, name, prompt, what, a, b, note):
    """Decode milliseconds of b against a, warm, interleaved."""
    pairs = []
    for _ in range(args.reps):
        pairs.append(tuple(1e3 / bench(args, flags(args, prompt, args.tokens, *f))["warm"][
            "decode_tok_s"] for f in (a, b)))
        print(f"{name} {pairs[-1][0]:.2f} ms, {pairs[-1][1]:.2f} ms", file=sys.stderr)
    show(args, what, flags(args, prompt, args.tokens, *b), pairs, note)


def resident(args):
    speeds(args, "resident", 512, "decode token ms, all experts in the arena against no arena", [],
           ["--arena", args.all_experts], "warm")


def lookahead(args):
    shared = ["--arena", args.arena, "--ceiling", "3"]
    speeds(args, "look-ahead", 64, "decode token ms with look-ahead against without",
           [*shared, "--lookahead", "off"], [*shared, "--lookahead", "auto"], "warm arena")


def main(argv):
    args = parse(argv)
    try:
        for part in args.parts:
            {"prefill": prefill, "bound": bound, "resident": resident, "lookahead": lookahead}[
                part](args)
    except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
        print(f"streaming: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
