"""Expert packs through the command line.

usage: pack_test.py REGOLITH

Made beside every tiny model and the demo; bits equal to those of the model file at the smallest
arena, on both readers, with flipped bits in flight; runs killed at random points, a full file
system, a limit on file sizes; packs that are refused; help and usage.
"""
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / 'tests' / 'data' / 'tiny'
DEMO = ROOT / 'models' / 'regolith-demo-q4.gguf'
SECONDS_MAX = 300
N_KILLS = 12
SEED = 20260101

MODELS = [('a-f32', 'a-f32.gguf'), ('a-mix', 'a-mix.gguf'), ('b-f16', 'b-f16.gguf'),
          ('c-f32', 'c-f32.gguf'), ('k-mtp', 'k-mtp.gguf'),
          ('a-fused', 'a-fused-00002-of-00003.gguf')]
READERS = [('--io', 'auto'), ('--io', 'pread'), ('--io', 'auto', '--decode', '6'),
           ('--io', 'pread', '--direct', 'off', '--decode', '6', '--lookahead', 'off')]


class Test:
    def __init__(self, binary, folder):
        self.binary = str(Path(binary).resolve())
        self.folder = Path(folder)
        self.n_passed = self.n_failed = 0

    def check(self, good, name, detail=''):
        self.n_passed += bool(good)
        self.n_failed += not good
        if not good:
            print(f'FAIL {name}: {detail}', flush=True)

    def run(self, *args, **how):
        return subprocess.run([self.binary, *map(str, args)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
                              **how)

    def works(self, name, *args):
        done = self.run(*args)
        self.check(done.returncode == 0, name, f'exit {done.returncode}: {done.stderr}')
        return done.stdout

    def fails(self, name, words, *args, status=1, **how):
        """One line on standard error that holds all words, nothing on standard output."""
        done = self.run(*args, **how)
        lines = done.stderr.splitlines()
        self.check(done.returncode == status and len(lines) == 1 and not done.stdout
                   and lines[0].startswith('regolith: ') and all(w in lines[0] for w in words),
                   name, f'exit {done.returncode}: {done.stderr!r}, wanted {words}')

    def hash(self, name, model, *flags):
        return self.works(f'hash {name} {" ".join(flags)}', 'logits', '-m', self.folder / model,
                          '--ids', TINY / f'{name}.ids', '--hash', '--threads', '2', *flags)

    def least_arena(self, name, model, *flags):
        """The fewest slots that are not refused."""
        for n in range(2, 64):
            done = self.run('logits', '-m', self.folder / model, '--ids', TINY / f'{name}.ids',
                            '--hash', '--arena-experts', n, *flags)
            if done.returncode == 0:
                return str(n)
        self.check(False, f'{name}: smallest arena', done.stderr)
        return '64'


def copy_models(t):
    for path in TINY.glob('*.gguf'):
        shutil.copy(path, t.folder)


def check_words(t):
    done = t.run('pack', '--help')
    t.check(done.returncode == 0 and 'MODEL [OUT]' in done.stdout, 'pack --help', done.stdout)
    for command in ('run', 'logits', 'plan', 'ppl'):
        done = t.run(command, '--help')
        t.check('--pack FILE|off' in done.stdout, f'{command} --help names --pack', done.stdout)
    t.fails('no model', ['pack: -m MODEL is missing'], 'pack', status=2)
    t.fails('three words', ['unexpected word c'], 'pack', 'a', 'b', 'c', status=2)
    t.fails('two words behind -m', ['unexpected word c'], 'pack', '-m', 'a', 'b', 'c', status=2)
    t.fails('no such model', ['cannot open', 'nope.gguf'], 'pack', t.folder / 'nope.gguf')
    t.fails('no such folder', ['cannot create', 'nowhere/x'], 'pack', t.folder / 'a-f32.gguf',
            t.folder / 'nowhere' / 'x')
    t.fails('no overwriting of a model', ['is no expert pack; it is left alone'], 'pack',
            t.folder / 'a-f32.gguf', t.folder / 'a-mix.gguf')


def check_bits(t, name, model):
    pack = t.folder / f'{name}.rgpack'
    want = t.hash(name, model, '--pack', 'off')
    plain = t.least_arena(name, model, '--pack', 'off')
    for flags in READERS[1:3]:
        got = t.hash(name, model, '--pack', 'off', '--arena-experts', plain, *flags)
        t.check(got == want, f'{name}: model file, {flags}', f'{got} {want}')
    out = t.works(f'pack {name}', 'pack', t.folder / model)
    t.check(str(pack) in out and 'verified' in out and len(out.splitlines()) == 1,
            f'pack {name}: line', out)
    t.check(pack.exists() and not Path(f'{pack}.part').exists(), f'pack {name}: files')
    packed = t.least_arena(name, model)
    t.check(packed == plain, f'{name}: the same smallest arena', f'{packed} {plain}')
    for flags in READERS:
        got = t.hash(name, model, '--arena-experts', packed, *flags)
        t.check(got == want, f'{name}: pack, {flags}', f'{got} {want}')
    done = t.run('logits', '-m', t.folder / model, '--ids', TINY / f'{name}.ids', '--hash', '-v',
                 '--arena-experts', packed, '--faults', 'seed=5,flip=100,short=50,eio=50',
                 '--decode', '6')
    stream = [line for line in done.stderr.splitlines() if line.startswith('stream: ')]
    t.check(done.stdout == want and done.returncode == 0, f'{name}: flipped bits in flight',
            f'{done.stdout} {want} {done.stderr}')
    t.check(len(stream) == 1 and ', pack,' in stream[0] and ', 0 retries' not in stream[0],
            f'{name}: stream line', done.stderr)


def check_plan(t):
    model = t.folder / 'a-mix.gguf'
    out = t.works('plan with a pack', 'plan', '-m', model, '--arena-experts', '8')
    t.check('a token from the pack' in out, 'plan names the pack', out)
    out = t.works('plan without', 'plan', '-m', model, '--arena-experts', '8', '--pack', 'off')
    t.check('a token from the model file' in out, 'plan names the model file', out)


def flipped(data, at):
    data = bytearray(data)
    data[at] ^= 1
    return bytes(data)


def check_refusals(t):
    model, name = t.folder / 'a-mix.gguf', 'a-mix'
    flags = ('--ids', TINY / 'a-mix.ids', '--hash', '--arena-experts', '8')
    good = (t.folder / 'a-mix.rgpack').read_bytes()
    bad = t.folder / 'bad.rgpack'

    def refused(what, words, data):
        bad.write_bytes(data)
        for command in (('logits', '-m', model, *flags),
                        ('plan', '-m', model, '--arena-experts', '8')):
            t.fails(f'{what}, {command[0]}', ['bad.rgpack: ', *words], *command, '--pack', bad)

    refused('empty', ['the file has 0 bytes'], b'')
    refused('a model', ['no expert pack'], (t.folder / 'a-f32.gguf').read_bytes())
    refused('a text', ['no expert pack'], b'once upon a time ' * 40)
    refused('unfinished', ['not finished'], b'rgpart\r\n' + good[8:])
    refused('truncated', [f'has {len(good) - 1} bytes', f'says {len(good)}', 'truncated'],
            good[:-1])
    refused('cut in the header', ['truncated'], good[:1000])
    refused('longer', ['appended'], good + b'x')
    refused('a bit of the identity', ['checksum of the header', 'should be'], flipped(good, 40))
    refused('a bit of a checksum', ['checksum of the header'], flipped(good, 64 + 160 + 9))
    refused('another model', ['another model', 'part 0 of an expert: 8192 bytes'],
            (t.folder / 'a-f32.rgpack').read_bytes())
    t.fails('no such pack', ['cannot open', 'nope.rgpack'], 'logits', '-m', model, *flags,
            '--pack', t.folder / 'nope.rgpack')
    t.fails('a folder', ['a directory'], 'logits', '-m', model, *flags, '--pack', t.folder)

    # An expert flipped on the drive: every run that needs it says which.
    want = t.hash(name, 'a-mix.gguf', '--pack', 'off')
    n_group = struct.unpack_from('<I', good, 12)[0]
    damaged = bytearray(good)
    for g in range(n_group):
        n_item, _, a, b, c = struct.unpack_from('<5I', good, 64 + 40 * g)
        stride, offset = struct.unpack_from('<2Q', good, 64 + 40 * g + 24)
        for i in range(n_item):
            damaged[offset + i * stride + (a + b + c) - 1] ^= 0x80
    bad.write_bytes(damaged)
    t.fails('a flipped expert', ['bad.rgpack: layer 0 expert ', 'checksum ', 'should be'],
            'logits', '-m', model, *flags, '--pack', bad)

    # A stale pack beside the model is refused too, and the line says what to do.
    beside = t.folder / 'a-mix.rgpack'
    beside.write_bytes((t.folder / 'a-f32.rgpack').read_bytes())
    t.fails('a stale pack beside the model', ['--pack off', 'another model'], 'logits', '-m',
            model, *flags)
    t.check(t.hash(name, 'a-mix.gguf', '--arena-experts', '8', '--pack', 'off') == want,
            'beside a stale pack, --pack off')
    t.check(t.hash(name, 'a-mix.gguf') == want, 'a stale pack is not looked at without need')
    t.works('packing again', 'pack', model)
    t.check(beside.read_bytes() == good, 'packs are reproducible')
    t.check(t.hash(name, 'a-mix.gguf', '--arena-experts', '8') == want, 'the new pack')


def check_fine_tune(t):
    """The same shape, one byte of a weight changed somewhere."""
    data = (t.folder / 'a-f32.gguf').read_bytes()
    tuned = t.folder / 'tuned.gguf'
    for at in (len(data) - 5, len(data) * 3 // 4, len(data) // 2):
        tuned.write_bytes(flipped(data, at))
        done = t.run('logits', '-m', tuned, '--ids', TINY / 'a-f32.ids', '--hash',
                     '--arena-experts', '8', '--pack', t.folder / 'a-f32.rgpack')
        # A byte between the samples of a tensor that is no expert can pass; its bits are not read
        # from the pack.
        seen = done.returncode == 1 and "another model's pack" in done.stderr
        plain = t.run('logits', '-m', tuned, '--ids', TINY / 'a-f32.ids', '--hash',
                      '--arena-experts', '8', '--pack', 'off')
        t.check(seen or done.stdout == plain.stdout, f'fine-tune at {at}', done.stderr)
    tuned.write_bytes(flipped(data, len(data) - 5))
    t.fails('a fine-tune', ["another model's pack"], 'plan', '-m', tuned, '--arena-experts', '8',
            '--pack', t.folder / 'a-f32.rgpack')


def check_kills(t):
    """SIGKILL at random points; the runs go on where the last one stopped."""
    if not DEMO.exists():
        return
    whole, out = t.folder / 'whole.rgpack', t.folder / 'demo.rgpack'
    part = Path(f'{out}.part')
    begin = time.monotonic()
    t.works('pack the demo', 'pack', DEMO, whole)
    seconds = time.monotonic() - begin
    rng = random.Random(SEED)
    n_killed = n_kept = 0
    for _ in range(N_KILLS):
        run = subprocess.Popen([t.binary, 'pack', str(DEMO), str(out)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0, seconds))
        run.send_signal(signal.SIGKILL)
        text, errors = run.communicate(timeout=SECONDS_MAX)
        if run.returncode == -signal.SIGKILL:
            n_killed += 1
            # Between rename and exit the pack is there, and then it is whole.
            t.check(not out.exists() or out.read_bytes() == whole.read_bytes(),
                    'a killed run leaves nothing under the name')
            n_kept += part.exists()
        else:
            t.check(run.returncode == 0, 'a run that was not killed', errors)
        if out.exists():
            t.check(out.read_bytes() == whole.read_bytes(), 'a pack after kills', text)
            out.unlink()
    # One cut on purpose, so that something is certainly continued.
    data = whole.read_bytes()
    part.write_bytes(b'rgpart\r\n' + data[8:len(data) // 2])
    text = t.works('continuing', 'pack', DEMO, out)
    t.check('from an earlier run' in text, 'continued', text)
    t.check(out.read_bytes() == data and not part.exists(), 'a continued pack')
    print(f'{n_killed} of {N_KILLS} runs killed, {n_kept} left something to continue')


def check_full(t):
    """No room: a line, nothing left behind."""
    model, out = t.folder / 'a-f32.gguf', t.folder / 'full.rgpack'

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))

    t.fails('a limit on file sizes', ['writing ', 'full.rgpack.part', 'File too large'], 'pack',
            model, out, preexec_fn=limit)
    t.check(not out.exists() and not Path(f'{out}.part').exists(), 'nothing is left')
    disk = t.folder / 'disk'
    disk.mkdir()
    script = (f'mount -t tmpfs -o size=400k none {disk} || exit 77; '
              f'"$0" pack {model} {disk}/m.rgpack; s=$?; ls -A {disk}; exit $s')
    for unshare in (['unshare', '-m'], ['unshare', '-rm']):
        try:
            done = subprocess.run([*unshare, 'sh', '-c', script, t.binary], capture_output=True,
                                  text=True, timeout=SECONDS_MAX, check=False)
        except OSError:
            continue
        if 'unshare' in done.stderr or done.returncode == 77:
            continue
        t.check(done.returncode == 1 and 'not enough space' in done.stderr
                and '790528 bytes are needed' in done.stderr and not done.stdout,
                'a full file system', f'{done.returncode} {done.stderr} {done.stdout}')
        return
    print('no mounts here: the full file system was not tried')


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix='regolith-pack-') as folder:
        t = Test(sys.argv[1], folder)
        copy_models(t)
        check_words(t)
        for name, model in MODELS:
            check_bits(t, name, model)
        check_plan(t)
        check_refusals(t)
        check_fine_tune(t)
        check_kills(t)
        check_full(t)
    print(f'{t.n_passed} passed, {t.n_failed} failed')
    return 1 if t.n_failed else 0


if __name__ == '__main__':
    sys.exit(main())
