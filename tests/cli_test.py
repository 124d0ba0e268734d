#!/usr/bin/env python3
"""The command line as a user or a script meets it: tests/cli_test.py PROGRAM

Exit codes, one-line errors, what goes to which stream, interrupts, figures as JSON. A test prints
one line a check and ends with a count; exit status 1 when one failed.
"""
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / 'tests' / 'data' / 'tiny'
DEMO = ROOT / 'models' / 'regolith-demo-q4.gguf'
MODEL = TINY / 'a-mix.gguf'
RUN_SECONDS_MAX = 120
N_VOCAB = 512

program = sys.argv[1]
counts = [0, 0]


def check(good, name, detail=''):
    counts[not good] += 1
    if not good:
        print(f'FAIL {name}: {detail}', flush=True)
    return bool(good)


def run(*args, stdin=b'', stdout=subprocess.PIPE, env=None):
    return subprocess.run([program, *map(str, args)], input=stdin, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=RUN_SECONDS_MAX,
                          env={**os.environ, **(env or {})})


def fails(code, args, words=(), **keys):
    """The command ends with `code`, says one line on standard error and nothing elsewhere."""
    name = ' '.join(str(a)[:40] for a in args) or '(no words)'
    r = run(*args, **keys)
    lines = r.stderr.decode(errors='replace').splitlines()
    good = check(r.returncode == code, name, f'exit {r.returncode}, {code} expected: {lines}')
    good &= check(len(lines) == 1, name, f'{len(lines)} lines: {lines}')
    if lines:
        good &= check(re.match(r'regolith: [^:]+: .', lines[0]), name, lines[0])
        for word in words:
            good &= check(word in lines[0], name, f'"{word}" is not in: {lines[0]}')
    check(not r.stdout, name, f'standard output: {r.stdout[:80]}')
    return good


def works(*args, **keys):
    r = run(*args, **keys)
    check(r.returncode == 0, ' '.join(map(str, args))[:90],
          f'exit {r.returncode}: {r.stderr[-300:]}')
    return r


# ---- usage ---------------------------------------------------------------------------------------

def usage():
    r = run()
    check(r.returncode == 2 and b'regolith run' in r.stderr and not r.stdout, 'no words: overview')
    for word in ('--help', '-h', 'help', '--version'):
        check(works(word).stdout, word)
    for command in ('run', 'logits', 'tokenize', 'inspect', 'ppl'):
        check(b'--model' in works(command, '--help').stdout, f'{command} --help')
        fails(2, [command], ['MODEL'])
        fails(2, [command, '--no-such-option'], ['--no-such-option'])
        fails(2, [command, '-Z'], ['-Z'])
        fails(2, [command, '-m'], ['-m'])
        fails(2, [command, '--model'], ['--model'])
    fails(2, ['walk'], ['walk'])
    fails(2, ['wa\nlk'], ['wa?lk'])
    fails(2, [''], ['unknown command'])
    fails(2, ['run', '-m', MODEL], ['-p'])
    fails(2, ['run', '-m', MODEL, '-p', 'x', '-f', 'y'], ['-p'])
    fails(2, ['run', '-m', MODEL, '-p', 'x', 'word'], ['word'])
    fails(2, ['run', '-m', MODEL, '--raw=yes', '-p', 'x'], ['--raw'])
    fails(2, ['logits', '-m', MODEL], ['--ids'])
    fails(2, ['ppl', '-m', MODEL], ['-f'])
    fails(2, ['ppl', '-m', MODEL, '-f', 'x', '--ctx', '1'], ['--ctx'])
    fails(2, ['tokenize', '-m', MODEL], ['TEXT'])
    fails(2, ['inspect', MODEL, 'word'], ['word'])


def numbers():
    bad = {
        '--threads': ['0', '-1', '9999', 'x', '', '1.5', '99999999999999999999', ' 1x'],
        '--ctx': ['-1', 'x', '', '4294967296', '1e3', '0x10', ' -5', '+-1'],
        '--chunk': ['-1', 'many', '99999999999999999999999'],
        '-n': ['-1', '2147483648', 'nan'],
        '--temp': ['nan', 'x', '', '1,5', 'NaN'],
        '--top-k': ['-1', '1.5', 'x'],
        '--top-p': ['x', 'nan'],
        '--min-p': ['x'],
        '--seed': ['-1', '18446744073709551616', 'x'],
        '--penalty-last-n': ['-2', 'x'],
        '--repeat-penalty': ['x'],
        '--logit-bias': ['5', '5=', 'x=1', '-1=2', '5=nan', '=1', '99999999999=1'],
        '--kernels': ['fast', ''],
        '--kv': ['q8', ''],
        '--backend': ['abacus'],
        '--head': ['half', ''],
    }
    for flag, values in bad.items():
        for value in values:
            fails(2, ['run', '-m', MODEL, '-p', 'x', flag, value], [flag.lstrip('-')[:1]])
    for flag, value in (('--top-p', '7'), ('--min-p', '-3'), ('--temp', '1e400'),
                        ('--repeat-penalty', '0'), ('--frequency-penalty', '1e9'),
                        ('--logit-bias', '512=1'), ('--stop', '')):
        refused_late(flag, value)


def refused_late(flag, value):
    """Refused by the sampler: exit 1, one error line, then the profile line."""
    r = run('run', '-m', MODEL, '--raw', '-p', 'x', '-n', '2', flag, value)
    lines = r.stderr.decode().splitlines()
    errors = [s for s in lines if not s.startswith('profile:')]
    check(r.returncode == 1 and len(errors) == 1 and errors[0].startswith('regolith: '),
          f'{flag} {value}', f'exit {r.returncode}: {lines}')
    check(not r.stdout, f'{flag} {value}', f'standard output {r.stdout}')


# ---- files ---------------------------------------------------------------------------------------

def model_files(folder):
    whole = MODEL.read_bytes()
    fails(1, ['inspect', folder / 'missing.gguf'], ['missing.gguf', 'No such file'])
    for command in (['inspect'], ['run', '-p', 'x', '-m'], ['tokenize', 'x', '-m']):
        fails(1, [*command, folder], [str(folder)])
        fails(1, [*command, '/dev/null'])
        fails(1, [*command, ROOT / 'README.md'], ['README.md'])
    for length in (0, 3, 4, 7, 8, 23, 24, 100, 1000, 5000, len(whole) // 4, len(whole) // 2,
                   len(whole) - 70000, len(whole) - 33):
        cut = folder / f'cut-{length}.gguf'
        cut.write_bytes(whole[:length])
        fails(1, ['run', '-m', cut, '--raw', '-p', 'x', '-n', '1'], [cut.name])
        fails(1, ['tokenize', '-m', cut, 'x'], [cut.name])
    split = TINY / 'a-fused-00002-of-00003.gguf'
    alone = folder / split.name
    alone.write_bytes(split.read_bytes())
    fails(1, ['inspect', alone], ['a-fused'])
    if os.geteuid() != 0:
        secret = folder / 'secret.gguf'
        secret.write_bytes(whole)
        secret.chmod(0)
        fails(1, ['inspect', secret], ['Permission'])
    # A path that holds a line break is still one line.
    fails(1, ['inspect', f'{folder}/a\nb.gguf'], ['a?b.gguf'])


def id_files(folder):
    def ids(name, data):
        path = folder / name
        path.write_bytes(data)
        return path
    for name, data, word in (('junk.ids', b'1 2 x7 3', 'x7'), ('two.ids', b'ab\ncd', '"ab"'),
                             ('empty.ids', b'', 'no token ids'),
                             ('blank.ids', b' \n\t ', 'no token'),
                             ('nul.ids', b'1 2\0 3', 'NUL'), ('minus.ids', b'1 -2', '-2'),
                             ('big.ids', b'1 99999999999999999999', '999'),
                             ('float.ids', b'1 2.5', '2.5'),
                             ('escape.ids', b'1 \x1b[31m', 'byte 2')):
        fails(1, ['logits', '-m', MODEL, '--ids', ids(name, data)], [word])
    fails(1, ['logits', '-m', MODEL, '--ids', ids('range.ids', b'1 2 512')], ['512'])
    fails(1, ['logits', '-m', MODEL, '--ids', folder / 'none.ids'], ['none.ids'])
    fails(1, ['logits', '-m', MODEL, '--ids', folder], [str(folder)])
    five = ids('five.ids', b'1 2 3 4 5')
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--ctx', '4'], ['5', '4'])
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--ctx', '999999'], ['999999'])
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--chunk', '999999'], ['999999'])
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--out', folder / 'no' / 'x'], ['cannot write'])
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--out', '/dev/full'], ['/dev/full'])
    fails(1, ['logits', '-m', MODEL, '--ids', five, '--ref', five], ['five.ids'])
    r = works('logits', '-m', MODEL, '--ids', '-', '--top', '2', stdin=b'1 2 3')
    check(len(r.stdout.splitlines()) == 3, 'ids from standard input', r.stdout)
    r = works('logits', '-m', MODEL, '--ids', five)
    check([line.split()[0] for line in r.stdout.decode().splitlines()] == list('01234'),
          'logits alone prints the best of each position', r.stdout)
    a = works('logits', '-m', MODEL, '--ids', five, '--hash').stdout
    check(re.fullmatch(rb'[0-9a-f]{32}\n', a), 'hash', a)
    for extra in (['--chunk', '1'], ['--decode', '2'], ['--decode', '99'], ['--threads', '3']):
        check(works('logits', '-m', MODEL, '--ids', five, '--hash', *extra).stdout == a,
              f'hash with {extra}')


def prompts(folder):
    fails(1, ['run', '-m', MODEL, '--raw', '-p', ''], ['empty'])
    fails(1, ['run', '-m', MODEL, '--raw', '-f', folder / 'none.txt', '-n', '1'], ['none.txt'])
    fails(1, ['run', '-m', MODEL, '-p', 'x', '--chat-template', 'none'], ['none'])
    for extra, words in ((['--ctx', '3'], ['context of 3']), (['--ctx', '99999'], ['99999'])):
        r = run('run', '-m', MODEL, '--raw', '-p', 'some words that are more than three', *extra)
        line = r.stderr.decode().splitlines()[0]
        check(r.returncode == 1 and all(w in line for w in words) and not r.stdout,
              f'run {extra}', f'{r.returncode} {r.stderr} {r.stdout}')
    r = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '3', '--ctx', '0')
    text = works('run', '-m', MODEL, '--raw', '-f', '-', '-n', '3', stdin=b'the').stdout
    check(text == r.stdout, 'prompt from standard input', (text, r.stdout))


# ---- output --------------------------------------------------------------------------------------

def outputs(folder):
    r = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '12', '--temp', '0', '--ignore-eos')
    lines = r.stderr.decode().splitlines()
    check(len(lines) == 1 and lines[0].startswith('profile: '), 'profile line', lines)
    r2 = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '12', '--temp', '0', '--ignore-eos',
               '--print-ids')
    ids = [int(x) for x in r2.stdout.split()]
    check(len(ids) == 12 and r2.stdout.count(b'\n') == 1, 'print-ids: one line', r2.stdout)
    words = folder / 'reply.ids'
    words.write_text(' '.join(map(str, ids)))
    decoded = works('tokenize', '-m', MODEL, '--decode', '-f', words).stdout
    shown = decoded.decode(errors='replace')
    check(r.stdout.decode() == shown + '\n', 'text is that of the ids', (r.stdout, decoded))
    r3 = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '12', '--temp', '0', '--ignore-eos',
               '--json')
    figures = json.loads(r3.stdout)
    check(figures['ids'] == ids and figures['text'] == shown and figures['finish'] == 'length',
          'JSON: text and ids', figures)
    for key in ('prefill_tok_s', 'decode_tok_s', 'ttft_ms', 'compute_ms', 'host_ms',
                'rss_peak_bytes', 'prefill_tokens', 'decode_tokens'):
        check(isinstance(figures.get(key), (int, float)) and figures[key] >= 0, f'JSON: {key}')
    check(all(re.fullmatch(r'[a-z][a-z0-9_]*', k) for k in figures), 'JSON: snake_case')
    check(figures['decode_tokens'] == 12 and figures['ttft_ms'] > 0, 'JSON: figures', figures)
    a = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '20', '--seed', '4').stdout
    b = works('run', '-m', MODEL, '--raw', '-p', 'the', '-n', '20', '--seed', '4', '--chunk', '1',
              '--threads', '2').stdout
    check(a == b, 'the seed decides alone', (a, b))


def heads():
    greedy = ['run', '-m', DEMO, '--raw', '-p', 'The wind', '-n', '60', '--temp', '0',
              '--ignore-eos', '--print-ids']
    full = works(*greedy).stdout
    check(len(full.split()) == 60, 'a greedy text', full)
    check(works(*greedy, '--head', 'two-stage').stdout == full, 'two-stage head: the same ids')
    drawn = greedy[:8] + ['--temp', '0.9'] + greedy[10:]
    check(works(*drawn, '--head', 'two-stage').stdout == works(*drawn).stdout,
          'two-stage head: drawn tokens see all logits')
    table = works('plan', '-m', DEMO, '--ram', '1G', '--head', 'two-stage').stdout.decode()
    check(re.search(r'^  head +[0-9.]+ MiB', table, re.M), 'the copy is in the plan', table)
    check('  head ' not in works('plan', '-m', DEMO, '--ram', '1G').stdout.decode(), 'only then')
    fails(1, ['run', '-m', MODEL, '--raw', '-p', 'x', '--head', 'two-stage'], ['two-stage', '64'])


def closed_outputs(folder):
    five = folder / 'five.ids'
    for args in (['run', '-m', MODEL, '--raw', '-p', 'the', '-n', '50', '--ignore-eos'],
                 ['run', '-m', MODEL, '--raw', '-p', 'the', '-n', '5', '--json'],
                 ['logits', '-m', MODEL, '--ids', five, '--hash'], ['inspect', MODEL],
                 ['tokenize', '-m', MODEL, 'x'], ['--help'], ['run', '--help'],
                 ['ppl', '-m', MODEL, '-f', TINY / 'tok.txt']):
        with open('/dev/full', 'wb') as full:
            r = run(*args, stdout=full)
        errors = [s for s in r.stderr.decode().splitlines() if not s.startswith('profile:')]
        name = f'{args[0]} to a full disk'
        check(r.returncode == 1 and len(errors) == 1 and 'No space' in errors[0], name,
              f'{r.returncode} {errors}')
        read_end, write_end = os.pipe()
        os.close(read_end)
        r = run(*args, stdout=write_end)
        os.close(write_end)
        errors = [s for s in r.stderr.decode().splitlines() if not s.startswith('profile:')]
        check(r.returncode == 1 and len(errors) == 1 and 'Broken pipe' in errors[0],
              f'{args[0]} to a reader that left', f'{r.returncode} {errors}')


# ---- commands ------------------------------------------------------------------------------------

def tokenizing(folder):
    for text in ('Hello, world', 'a\n\n b\t', 'Grüße 你好 🙂', '<|im_start|>user', '   ',
                 "it's 1234567"):
        for special in ([], ['--special']):
            path = folder / 'text.txt'
            path.write_bytes(text.encode())
            ids = works('tokenize', '-m', MODEL, '-f', path, *special).stdout.decode()
            same = works('tokenize', '-m', MODEL, *special, '--', text).stdout.decode()
            check(ids == same and ids.count('\n') == 1, f'tokenize {text!r}', (ids, same))
            back = works('tokenize', '-m', MODEL, '--decode', ids.strip()).stdout
            check(back == text.encode(), f'round trip of {text!r}', back)
    raw = bytes(range(256)) * 3
    path = folder / 'bytes.bin'
    path.write_bytes(raw)
    ids = folder / 'bytes.ids'
    ids.write_bytes(works('tokenize', '-m', MODEL, '-f', path).stdout)
    check(works('tokenize', '-m', MODEL, '--decode', '-f', ids).stdout == raw, 'any bytes')
    check(works('tokenize', '-m', MODEL, '').stdout == b'\n', 'empty text')
    fails(1, ['tokenize', '-m', MODEL, '--decode', '1 2 x'], ['x'])
    fails(1, ['tokenize', '-m', MODEL, '--decode', '1 99999'], ['99999'])


def inspecting():
    for model in sorted(TINY.glob('*.gguf')):
        text = works('inspect', model).stdout.decode()
        check('qwen4exp.block_count' in text and 'blk.0.' in text, f'inspect {model.name}')


def perplexity(folder):
    text = TINY / 'tok.txt'
    ids = [int(x) for x in works('tokenize', '-m', MODEL, '-f', text).stdout.split()]
    window, sums, n = 50, 0.0, 0
    for begin in range(0, len(ids), window):
        part = ids[begin:begin + window]
        (folder / 'part.ids').write_text(' '.join(map(str, part)))
        works('logits', '-m', MODEL, '--ids', folder / 'part.ids', '--out', folder / 'part.f32')
        x = np.fromfile(folder / 'part.f32', dtype='<f4').astype(np.float64)
        x = x.reshape(len(part), N_VOCAB)
        top = x.max(axis=1)
        lse = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
        for i, token in enumerate(part[1:]):
            sums += lse[i] - x[i, token]
            n += 1
    figures = json.loads(works('ppl', '-m', MODEL, '-f', text, '--ctx', window, '--json').stdout)
    check(figures['tokens'] == n and abs(figures['nll_sum'] - sums) < 1e-6 * sums,
          'perplexity against numpy', (figures, n, sums))
    check(abs(figures['ppl'] - math.exp(sums / n)) < 1e-6 * figures['ppl'], 'exp of it', figures)
    line = works('ppl', '-m', MODEL, '-f', text, '--ctx', window).stdout.decode()
    check(line.startswith('ppl ') and line.count('\n') == 1, 'ppl line', line)
    (folder / 'empty.txt').write_text('')
    fails(1, ['ppl', '-m', MODEL, '-f', folder / 'empty.txt'], ['two tokens'])
    fails(1, ['ppl', '-m', MODEL, '-f', folder / 'none.txt'], ['none.txt'])
    fails(1, ['ppl', '-m', MODEL, '-f', text, '--ctx', '99999'], ['99999'])


def dumps(folder):
    ids = TINY / 'a-mix.ids'
    out = folder / 'dump'
    common = ['logits', '-m', MODEL, '--ids', ids]
    fails(1, [*common, '--dump', out], ['dump'])
    out.mkdir()
    r = works(*common, '--dump', out)
    check(b'tensors dumped' in r.stdout, 'dump report', r.stdout)
    rows = [line.split('\t') for line in (out / 'index.tsv').read_text().splitlines()[1:]]
    for name, layer, n_row, n_col, file in rows:
        size = (out / file).stat().st_size
        check(size == 4 * int(n_row) * int(n_col), f'{name} of layer {layer}', size)
    names = {row[0] for row in rows}
    check({'mixed_attn', 'mixed_ffn', 'inject_attn', 'inject_ffn', 'residual', 'router_ids',
           'router_weights', 'expert_hidden', 'expert_out', 'shared_gate', 'gdn_state'} <= names,
          'every tensor is dumped', names)
    for extra in ([], ['--chunk', '7'], ['--decode', '5'], ['--threads', '2']):
        r = works(*common, '--dump-ref', out, *extra)
        check(r.stdout.startswith(b'no difference in '), f'same run {extra}', r.stdout)
    r = works(*common, '--dump-ref', out, '--kernels', 'ref')
    check(re.match(rb'first difference: layer 0 \w+, row \d+ column \d+: ', r.stdout),
          'ref against auto', r.stdout)
    r = works(*common, '--dump-ref', out, '--kernels', 'ref', '--dump-tol', '1e6')
    check(r.stdout.startswith(b'no difference'), 'tolerance', r.stdout)
    fails(1, [*common, '--dump', out], ['index.tsv', 'exists'])
    fails(1, [*common, '--dump', folder / 'x', '--dump-ref', out], ['not both'])
    fails(1, [*common, '--dump-ref', folder / 'none'], ['none'])
    index = (out / 'index.tsv').read_text()
    (out / 'index.tsv').write_text(index[:200].rsplit('\t', 3)[0] + '\n')
    fails(1, [*common, '--dump-ref', out], ['index.tsv', 'line'])
    (out / 'index.tsv').write_text('')
    fails(1, [*common, '--dump-ref', out], ['index.tsv'])
    (out / 'index.tsv').write_text(index)
    (out / 'residual.0.f32').write_bytes(b'1234')
    fails(1, [*common, '--dump-ref', out], ['residual.0.f32'])
    mtp = folder / 'mtp'
    mtp.mkdir()
    works('logits', '-m', TINY / 'k-mtp.gguf', '--ids', TINY / 'k-mtp.ids', '--dump', mtp)
    check('mtp_logits' in (mtp / 'index.tsv').read_text(), 'draft logits are dumped')


# ---- interrupts and terminals --------------------------------------------------------------------

def interrupts(folder):
    args = [program, 'run', '-m', DEMO, '--raw', '-p', 'the', '-n', '4000', '--ctx', '4096',
            '--ignore-eos', '--threads', '1']
    for extra in ([], ['--print-ids'], ['--json']):
        p = subprocess.Popen([*map(str, args), *extra], bufsize=0, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        if extra == ['--json']:
            time.sleep(1.0)
            first = b''
        else:
            first = p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=RUN_SECONDS_MAX)
        lines = err.decode().splitlines()
        errors = [s for s in lines if not s.startswith('profile:')]
        check(p.returncode == 130, f'interrupted run {extra}', f'exit {p.returncode}: {lines}')
        check(len(errors) == 1 and errors[0].startswith('regolith: run: interrupted: '),
              f'interrupted run {extra}', lines)
        text = first + out
        if extra == ['--json']:
            figures = json.loads(text)
            check(figures['finish'] == 'canceled' and figures['ids'], 'interrupted JSON', figures)
        else:
            check(len(text) > 1 and text.endswith(b'\n'), 'the text so far', text[-40:])
            text.decode()
    long_text = folder / 'long.txt'
    long_text.write_text('some words of a text that is long enough. ' * 4000)
    for command in (['ppl', '-m', MODEL, '-f', long_text, '--threads', '1'],):
        p = subprocess.Popen([program, *map(str, command)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        time.sleep(1.0)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=RUN_SECONDS_MAX)
        check(p.returncode in (130, -signal.SIGINT) and len(err.splitlines()) <= 1,
              f'interrupted {command[0]}', f'{p.returncode} {err}')


def on_terminal(args, seconds=RUN_SECONDS_MAX):
    """Standard error of a command that has a terminal for it."""
    master, slave = pty.openpty()
    p = subprocess.Popen([program, *map(str, args)], stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    seen, end = b'', time.monotonic() + seconds
    while time.monotonic() < end:
        ready, _, _ = select.select([master], [], [], 0.2)
        if not ready:
            if p.poll() is not None:
                break
            continue
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
    os.close(master)
    p.wait(timeout=RUN_SECONDS_MAX)
    return seen


def progress(folder):
    """Shown on a terminal when something takes longer than half a second, nowhere else."""
    sentence = 'some words of a text that is long enough. '
    text = folder / 'slow.txt'
    text.write_text(sentence * 100)
    slow = ['ppl', '-m', MODEL, '-f', text, '--threads', '1', '--ctx', '200', '-v']
    started = time.monotonic()
    quiet = works(*slow)
    spent = time.monotonic() - started
    check(b'\r' not in quiet.stderr and b'\x1b' not in quiet.stderr, 'no progress in a file',
          quiet.stderr[:200])
    text.write_text(sentence * min(20000, max(100, int(100 * 3 / spent))))
    started = time.monotonic()
    seen = on_terminal(slow)
    spent = time.monotonic() - started
    if spent > 1.5:     # else the machine was quicker than a moment before
        shown = re.findall(rb'\rprefill +(\d+) %  [\d.]+ tok/s  \d+ s left', seen)
        shares = [int(x) for x in shown]
        check(len(shares) >= 2, 'progress', seen[:300])
        check(shares == sorted(shares), 'progress only grows', shares)
        check(b'\r\x1b[K' in seen, 'progress is erased', seen[-200:])
    check(b'profile: ' in seen.split(b'\r\x1b[K')[-1], 'profile line on a terminal', seen[-300:])


def main():
    print('== cli_test', flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step, args in ((usage, ()), (numbers, ()), (model_files, (folder,)),
                           (id_files, (folder,)), (prompts, (folder,)), (outputs, (folder,)),
                           (heads, ()), (closed_outputs, (folder,)), (tokenizing, (folder,)),
                           (inspecting, ()), (perplexity, (folder,)), (dumps, (folder,)),
                           (interrupts, (folder,)), (progress, (folder,))):
            start = time.monotonic()
            step(*args)
            print(f'{step.__name__}: {time.monotonic() - start:.1f} s', flush=True)
    print(f'{counts[0]} passed, {counts[1]} failed')
    sys.exit(1 if counts[1] else 0)


main()
