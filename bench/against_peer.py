#!/usr/bin/python3
"""Compares regolith with a driver of llama.cpp on one file: bench/against_peer.py --help

Both run the same number of threads, prompt and decoded tokens on random ids, each repetition as a
fresh process from a dropped page cache, interleaved (regolith, peer, regolith, peer, ...), and, if
asked, under the same memory limit (a cgroup of version 1 or 2 that this process may create). The
figures are medians; the rows printed fit bench/results.tsv, `before` being the peer.

The peer is a program that understands
    peer bench MODEL -t THREADS -p PROMPT -n TOKENS -r 1 --cold --evict --no-repack --lib DIR
(with --resident without --cold --evict --no-repack)
and prints lines `prefill ... tokens: X tok/s` and `decode ... tokens: X tok/s`.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

from measure import Failed, drop_page_cache, row, spread, start

SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    match = re.fullmatch(r"([0-9.]+)([KMG]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 4G")
    return int(float(match[1]) * SIZES.get(match[2], 1))


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0],
                                epilog=__doc__.split("\n\n", maxsplit=1)[1],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--regolith", required=True, help="the binary")
    p.add_argument("--peer", required=True, help="the driver")
    p.add_argument("--lib", help="folder of the llama.cpp library, given to the driver")
    p.add_argument("--model", required=True, help="GGUF file; the driver wants one without MTP")
    p.add_argument("--peer-model", help="another file for the driver")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--tokens", type=int, default=32, help="decoded behind the prompt")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--resident", action="store_true",
                   help="everything in memory: warm figures, the peer as it is by default")
    p.add_argument("--limit", type=size, help="memory limit of either process, e.g. 4G")
    p.add_argument("--regolith-args", default="", help="further flags of `regolith bench`")
    p.add_argument("--peer-args", default="--mmap", help="further flags of the driver")
    p.add_argument("--machine", help="name in the rows (default: processor and cores)")
    p.add_argument("--note", default="")
    args = p.parse_args(argv)
    if args.reps < 1 or args.prompt < 1 or args.tokens < 1:
        p.error("--reps, --prompt and --tokens are at least 1")
    return args


def regolith_command(args):
    return [args.regolith, "bench", "-m", args.model, "--threads", str(args.threads), "-p",
            str(args.prompt), "-n", str(args.tokens), "--reps", "1",
            *(() if args.resident else ("--cold",)), "--json", *shlex.split(args.regolith_args)]


def run_regolith(args):
    if not args.resident:
        drop_page_cache(args.model)
    out, said, peak = start(regolith_command(args), args.limit)
    figures = json.loads(out)
    for line in said.splitlines():
        if "warning" in line:
            print(line, file=sys.stderr)
    if args.resident:
        figures = figures["warm"]
    return {"prefill": figures["prefill_tok_s"], "decode": figures["decode_tok_s"], "peak": peak}


def peer_command(args):
    command = [args.peer, "bench", args.peer_model or args.model, "-t", str(args.threads), "-p",
               str(args.prompt), "-n", str(args.tokens), "-r", "1",
               *(() if args.resident else ("--cold", "--evict", "--no-repack")),
               *shlex.split(args.peer_args)]
    return command + (["--lib", args.lib] if args.lib else [])


def run_peer(args):
    if not args.resident:
        drop_page_cache(args.peer_model or args.model)
    out, _, peak = start(peer_command(args), args.limit)
    figures = {"peak": peak}
    for phase in ("prefill", "decode"):
        match = re.search(rf"^{phase}\s+\d+ tokens: ([0-9.]+) tok/s", out, re.MULTILINE)
        if not match:
            raise Failed(f"{args.peer} printed no line for {phase}: {out[-200:]!r}")
        figures[phase] = float(match[1])
    return figures


# ---- output -------------------------------------------------------------------------------------

def rows(args, ours, theirs):
    """Lines of bench/results.tsv, the peer first."""
    limit = f"{args.limit / SIZES['G']:.3g}G" if args.limit else "no"
    for phase, count in (("prefill", args.prompt), ("decode", args.tokens)):
        a = [r[phase] for r in theirs]
        b = [r[phase] for r in ours]
        before, after = statistics.median(a), statistics.median(b)
        kind = "resident" if args.resident else "cold"
        note = (f"{kind}, {args.reps} interleaved; {limit} memory limit; peer {spread(a)}, "
                f"regolith {spread(b)}")
        peaks = [max((r["peak"] or 0) for r in side) / SIZES["M"] for side in (theirs, ours)]
        if all(peaks):
            note += f"; peak MiB {peaks[0]:.0f}, {peaks[1]:.0f}"
        if args.note:
            note += f"; {args.note}"
        command = " ".join(["regolith bench -m", os.path.basename(args.model),
                            *regolith_command(args)[4:]])
        yield row(args.model, f"{phase} {count} tok/s against llama.cpp", command, before, after,
                  note, args.machine)


def main(argv):
    args = parse(argv)
    ours, theirs = [], []
    try:
        for i in range(args.reps):
            ours.append(run_regolith(args))
            theirs.append(run_peer(args))
            for name, figures in (("regolith", ours[-1]), ("peer", theirs[-1])):
                print(f"{i + 1}/{args.reps} {name}: prefill {figures['prefill']:.2f}, decode "
                      f"{figures['decode']:.2f} tok/s", file=sys.stderr)
    except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
        print(f"against_peer: {e}", file=sys.stderr)
        return 1
    for row in rows(args, ours, theirs):
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
