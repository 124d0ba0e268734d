"""Where streamed experts lie for a GPU, through the command line.

usage: gpu_arena_test.py REGOLITH

The flag and what it says; logits and drafted text that do not depend on it, from the model file and
from a pack; a damaged pack; the figures of bench. Skipped (77) without a device.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / 'tests' / 'data' / 'tiny'
SECONDS_MAX = 300
SLOTS = '12'


class Test:
    def __init__(self, binary, folder):
        self.binary = str(Path(binary).resolve())
        self.model = Path(folder) / 'a-mix.gguf'
        self.n_failed = 0
        self.model.write_bytes((TINY / 'a-mix.gguf').read_bytes())

    def check(self, good, name, detail=''):
        self.n_failed += not good
        if not good:
            print(f'FAIL {name}: {detail}', flush=True)

    def run(self, command, *words):
        return subprocess.run([self.binary, command, '-m', str(self.model), *map(str, words)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SECONDS_MAX, check=False)

    def gpu(self, command, *words):
        return self.run(command, '--backend', 'vulkan', '--threads', '2', *words)

    def works(self, name, command, *words):
        done = self.gpu(command, *words)
        self.check(done.returncode == 0, name, f'exit {done.returncode}: {done.stderr}')
        return done

    def hash(self, *words):
        done = self.works(f'hash {words}', 'logits', '--ids', TINY / 'a-mix.ids', '--hash',
                          '--decode', '5', *words)
        return done.stdout


def test_hashes(t, want):
    for words in (('staged', '--gpu-check', '--io', 'pread', '--lookahead', '3'),
                  ('staged', '--io-depth', '2', '--split', 'off', '--faults',
                   'eio=20,short=50,stall=50,seed=3')):
        got = t.hash('--arena-experts', SLOTS, '--gpu-arena', *words)
        t.check(got == want, f'arena {words}', f'{got} {want}')


def test_pack(t, want):
    done = t.run('pack')
    t.check(done.returncode == 0, 'pack', done.stderr)
    pack = t.model.with_suffix('.rgpack')
    if not pack.exists():
        pack = next(iter(t.model.parent.glob('*.rgpack')), pack)
    got = t.hash('--arena-experts', SLOTS, '--gpu-arena', 'staged', '--pack', pack)
    t.check(got == want, 'pack, staged', f'{got} {want}')
    good = pack.read_bytes()
    for at in range(len(good) // 2, len(good) - 64, 512):  # every expert of the last half
        with pack.open('r+b') as f:
            f.seek(at)
            f.write(bytes([good[at] ^ 4]))
    done = t.gpu('logits', '--ids', TINY / 'a-mix.ids', '--hash', '--arena-experts', SLOTS,
                 '--gpu-arena', 'staged', '--pack', pack)
    t.check(done.returncode == 1 and 'checksum' in done.stderr and not done.stdout,
            'a damaged pack', f'exit {done.returncode}: {done.stderr}')
    pack.unlink()


def test_text(t):
    """Drafts and their acceptance are the same with every arena."""
    words = ('--raw', '-p', 'abc abc abc abc abc', '-n', '24', '--temp', '0', '--ignore-eos',
             '--print-ids', '--logits-hash')
    plain = t.works('text', 'run', *words)
    for arena, draft in (('host', 'off'), ('staged', 'suffix')):
        done = t.works(f'text, {arena}', 'run', *words, '--arena-experts', SLOTS,
                       '--gpu-arena', arena, '--draft', draft)
        t.check(done.stdout == plain.stdout and plain.stdout, f'text, {arena}, {draft}',
                f'{done.stdout!r} {plain.stdout!r}')
        line = next((x for x in done.stderr.splitlines() if x.startswith('stream: ')), '')
        t.check(f'MiB {arena} (peak' in line, f'stream line, {arena}', line)
        t.check(('copied in' in line) == (arena == 'staged'), f'copies, {arena}', line)


def test_bench(t):
    done = t.works('bench', 'bench', '-p', '16', '-n', '4', '--reps', '1', '--ceiling', '5',
                   '--arena-experts', SLOTS, '--ab', 'gpu-arena=mapped,staged', '--json')
    copied, staging = [], []

    def look(x):
        if isinstance(x, dict):
            if 'copied_bytes' in x and not isinstance(x['copied_bytes'], dict):
                copied.append(x['copied_bytes'])
            if 'staging_bytes' in x:
                staging.append(x['staging_bytes'])
            for y in x.values():
                look(y)
        elif isinstance(x, list):
            for y in x:
                look(y)

    look(json.loads(done.stdout) if done.returncode == 0 else {})
    t.check(any(c == 0 for c in copied) and any(c > 0 for c in copied), 'bench counts', copied)
    plan = t.works('plan', 'plan', '--arena-experts', SLOTS, '--gpu-arena', 'staged').stdout
    t.check(len(staging) == 2 and staging[0] == 0 and
            abs(staging[1] / 2**20 - (mib(plan, 'staging') or 0)) < 0.06, 'staging taken',
            f'{staging} {plan}')


def mib(text, name):
    """A line of the plan, in MiB; None where it has no such line."""
    found = re.search(rf'^  {name} +([0-9.]+) MiB', text, re.M)
    return float(found[1]) if found else None


def test_plan(t):
    """Staging memory is a line of the plan and counts in the budget."""
    words = ('--arena-experts', SLOTS, '--chunk', '32', '--ctx', '64')
    plans = {a: t.works(f'plan, {a}', 'plan', *words, '--ram', '1G', '--gpu-arena', a).stdout
             for a in ('mapped', 'staged', 'host')}
    staging = mib(plans['staged'], 'staging') or 0
    sums = {a: mib(text, 'sum') or 0 for a, text in plans.items()}
    t.check(staging > 0, 'staging in the plan', plans['staged'])
    t.check(mib(plans['mapped'], 'staging') is None and mib(plans['host'], 'staging') is None,
            'no staging', plans)
    t.check(abs(sums['staged'] - sums['mapped'] - staging) < 0.15, 'it counts', sums)
    t.check('memory of the host' in plans['host'] and 'on the device' in plans['mapped'],
            'where the arena lies', plans)
    deep = t.works('plan, deep', 'plan', *words, '--ram', '1G', '--gpu-arena', 'staged',
                   '--io-depth', '64').stdout
    t.check(abs((mib(deep, 'staging') or 0) - 2 * staging) < 0.2, 'depth', deep)
    resident = t.works('plan, resident', 'plan', '--ram', '1G', '--gpu-arena', 'staged').stdout
    t.check(mib(resident, 'staging') is None, 'all in memory', resident)
    cpu = t.run('plan', *words, '--ram', '1G', '--gpu-arena', 'staged').stdout
    t.check(mib(cpu, 'staging') is None and cpu, 'the CPU has none', cpu)
    # What is enough without it is too little with it.
    between = int((sums['mapped'] + staging / 2) * 2**20)
    small = (*words, '--ram', between, '--gpu-arena')
    t.works('enough', 'plan', *small, 'mapped')
    for command in (('plan',), ('run', '-p', 'a', '-n', '1')):
        done = t.gpu(*command, *small, 'staged')
        t.check(done.returncode == 1 and len(done.stderr.splitlines()) == 1 and
                f'+ staging {math.ceil(staging)} +' in done.stderr and 'too small' in done.stderr,
                f'too small, {command[0]}', f'exit {done.returncode}: {done.stderr}')


def test_flag(t):
    done = t.gpu('run', '-p', 'a', '--gpu-arena', 'vram')
    t.check(done.returncode == 2 and 'auto or mapped or staged or host' in done.stderr, 'usage',
            f'exit {done.returncode}: {done.stderr}')


def main():
    with tempfile.TemporaryDirectory() as folder:
        t = Test(sys.argv[1], folder)
        probe = t.gpu('logits', '--ids', TINY / 'a-mix.ids', '--hash', '--decode', '5')
        if probe.returncode and 'no Vulkan device' in probe.stderr:
            print('skipped: no usable GPU')
            return 77
        t.check(len(probe.stdout.strip()) == 32, 'a hash', probe.stderr)
        test_flag(t)
        test_plan(t)
        test_hashes(t, probe.stdout)
        test_pack(t, probe.stdout)
        test_text(t)
        test_bench(t)
    print(f'{t.n_failed} failed')
    return 1 if t.n_failed else 0


if __name__ == '__main__':
    sys.exit(main())
