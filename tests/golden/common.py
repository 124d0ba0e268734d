"""Shared parts of the golden tests: running the binary, reading its output, counting checks.

A test prints one line a check, `ok` or `FAIL`, with the figures it measured, and ends with a count.
Exit status: 0 all passed, 1 something failed, 77 skipped for lack of data.
"""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / 'tests' / 'data'
SHARED = ROOT.parent / 'shared'
SKIPPED = 77
RUN_SECONDS_MAX = 600       # one start of the binary
ROWS_A_BLOCK = 128          # rows of logits widened to float64 at a time


def skip(why):
    """Ends the test as skipped, or as failed where the environment says that nothing may skip."""
    if os.environ.get('RG_REQUIRE_SHARED') == '1':
        print(f'FAIL {why} (RG_REQUIRE_SHARED=1)')
        sys.exit(1)
    print(f'SKIPPED: {why}')
    sys.exit(SKIPPED)


def demo_model(kind):
    """Path of the demo model `bf16` or `q4`. The master lies outside the repository: may skip."""
    name = f'regolith-demo-{kind}.gguf'
    for folder in (ROOT / 'models', SHARED / 'models' / 'demo'):
        if (folder / name).exists():
            return folder / name
    return skip(f'{name} is neither in models/ nor in ../shared/models/demo')


def load_json(path):
    with gzip.open(path, 'rt', encoding='utf-8') as f:
        return json.load(f)


def read_ids(path):
    return [int(t) for t in Path(path).read_text(encoding='ascii').split()]


class Report:
    """Counts checks and prints each with its figures."""

    def __init__(self, title):
        self.n_passed = self.n_failed = 0
        self.start = time.monotonic()
        print(f'== {title}', flush=True)

    def check(self, good, name, detail=''):
        self.n_passed += bool(good)
        self.n_failed += not good
        print(f'{"ok  " if good else "FAIL"} {name}{": " if detail else ""}{detail}', flush=True)
        return bool(good)

    def below(self, value, limit, name, detail=''):
        """NaN fails."""
        return self.check(value <= limit, name,
                          f'{value:.3e} (at most {limit:g}) {detail}'.rstrip())

    def finish(self):
        seconds = time.monotonic() - self.start
        print(f'{self.n_passed} passed, {self.n_failed} failed, {seconds:.1f} s')
        sys.exit(1 if self.n_failed else 0)


class Failed(Exception):
    """The binary failed or printed something unexpected."""


class Engine:
    """Starts the binary. Files live in a folder that goes with the object."""

    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())
        self._folder = tempfile.TemporaryDirectory(prefix='regolith-golden-')
        self.folder = Path(self._folder.name)
        self.n_starts = 0

    def call(self, *args, env=None):
        """stdout as bytes; Failed with the last line of stderr when the exit status is not 0."""
        self.n_starts += 1
        command = [self.binary, *map(str, args)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                  check=False, timeout=RUN_SECONDS_MAX,
                                  env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            raise Failed(f'{" ".join(command)}: still running after {RUN_SECONDS_MAX} s') from None
        if done.returncode:
            lines = done.stderr.decode('utf-8', 'replace').strip().splitlines()
            raise Failed(f'{" ".join(command)}: exit {done.returncode}: {(lines or [""])[-1]}')
        return done.stdout

    def ids_file(self, ids):
        path = self.folder / 'in.ids'
        path.write_text(' '.join(map(str, ids)) + '\n', encoding='ascii')
        return path

    def logits(self, model, ids, *flags):
        """f32 [len(ids)][n_vocab]"""
        out = self.folder / 'out.f32'
        self.call('logits', '-m', model, '--ids', self.ids_file(ids), '--out', out, *flags)
        x = np.fromfile(out, '<f4')
        out.unlink()
        if x.size == 0 or x.size % len(ids):
            raise Failed(f'logits wrote {x.size} values for {len(ids)} tokens')
        return x.reshape(len(ids), -1)

    def logits_and_dump(self, model, ids, *flags):
        """logits, and {(name, layer): [rows][cols]} of --dump"""
        folder = self.folder / 'dump'
        folder.mkdir(exist_ok=True)
        return self.logits(model, ids, '--dump', folder, *flags), read_dump(folder)

    def hash(self, model, ids, *flags, env=None):
        words = self.call('logits', '-m', model, '--ids', self.ids_file(ids), '--hash', *flags,
                          env=env).decode().split()
        if len(words) != 1 or len(words[0]) != 32 or set(words[0]) - set('0123456789abcdef'):
            raise Failed(f'logits --hash printed {words}')
        return words[0]

    def greedy(self, model, ids, n, *flags):
        return self._ids(self.call('run', '-m', model, '--ids', self.ids_file(ids), '-n', n,
                                   '--temp', 0, '--print-ids', '--ignore-eos', *flags))

    def tokenize(self, model, path, *flags):
        return self._ids(self.call('tokenize', '-m', model, *flags, '-f', path))

    def perplexity(self, model, text, ctx, *flags):
        """the object of `ppl --json`; a line for people may stand beside it"""
        out = self.call('ppl', '-m', model, '-f', text, '--ctx', ctx, '--json', *flags).decode()
        try:
            return json.loads(out[out.index('{'):out.rindex('}') + 1])
        except ValueError:
            raise Failed(f'ppl --json printed {out[:80]!r}') from None

    @staticmethod
    def _ids(out):
        try:
            return [int(t) for t in out.split()]
        except ValueError:
            raise Failed(f'expected ids, got {out[:80]!r}') from None


def read_dump(folder):
    """Reads DIR/index.tsv (name layer rows cols file) and the raw f32 files it lists."""
    lines = (Path(folder) / 'index.tsv').read_text(encoding='utf-8').splitlines()
    if not lines or lines[0].split('\t') != ['name', 'layer', 'rows', 'cols', 'file']:
        raise Failed(f'index.tsv begins with {lines[:1]}')
    dump = {}
    for line in lines[1:]:
        name, layer, rows, cols, file = line.split('\t')
        x = np.fromfile(Path(folder) / file, '<f4')
        if x.size != int(rows) * int(cols):
            raise Failed(f'dump {file}: {x.size} values, the index says {rows} x {cols}')
        dump[name, int(layer)] = x.reshape(int(rows), int(cols))
    return dump


def log_softmax(x):
    """float64"""
    x = x.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def log_sum_exp(x):
    """float64, one a row"""
    x = x.astype(np.float64)
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1))


def kl_and_top1(ref, other):
    """KL(ref || other) in nats for each row, and whether the best tokens agree"""
    kl = np.empty(len(ref))
    for i in range(0, len(ref), ROWS_A_BLOCK):
        a, b = log_softmax(ref[i:i + ROWS_A_BLOCK]), log_softmax(other[i:i + ROWS_A_BLOCK])
        kl[i:i + ROWS_A_BLOCK] = (np.exp(a) * (a - b)).sum(1)
    return kl, ref.argmax(1) == other.argmax(1)


def max_error(x, golden):
    """largest absolute difference; inf when the shapes differ or a value is NaN"""
    golden = np.asarray(golden, np.float64)
    if x.shape != golden.shape:
        return np.inf
    error = np.abs(x.astype(np.float64) - golden).max()
    return np.inf if np.isnan(error) else float(error)


def main(title, body, argv_max):
    """Runs body(report, engine, *args) with the arguments after the binary's path."""
    if not 2 <= len(sys.argv) <= argv_max + 2:
        print(sys.modules['__main__'].__doc__, file=sys.stderr)
        sys.exit(2)
    report = Report(' '.join([title, *sys.argv[2:]]))
    engine = Engine(sys.argv[1])
    try:
        body(report, engine, *sys.argv[2:])
    except (Failed, OSError, ValueError, KeyError) as e:
        report.check(False, 'stopped', f'{type(e).__name__}: {e}')
    print(f'{engine.n_starts} starts of the binary')
    report.finish()
