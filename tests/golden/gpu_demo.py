"""The Vulkan backend against the CPU's float reference and the goldens.

usage: gpu_demo.py REGOLITH [TOKENS [PROMPTS]]

Demo q4: divergence over TOKENS (96) of the held-out text within the bounds that 8-bit activations
have on the CPU; greedy ids of PROMPTS (2) golden prompts equal up to the first step whose gap is
below twice the error measured there. Float tiny model: the experts that its routers choose, in
prefill and in decode, with plain and with cache-aware routing, are the CPU's.
"""
import struct

import numpy as np

from auto_vs_ref import LIMITS, REF, show
from common import DATA, Failed, demo_model, kl_and_top1, load_json, main, max_error, read_ids, skip

GPU = ('--backend', 'vulkan')
STEPS_MAX = 24      # greedy steps of a prompt
DECODE = 40         # tokens generated while routes are recorded
SLOTS = 12          # of the arena and of the shadow directory
TURN, AHEAD, WARM, WINDOW = 1, 2, 3, 4
EVENT = struct.Struct('<BBHII')


def need_device(engine):
    tiny = DATA / 'tiny' / 'a-f32.gguf'
    try:
        engine.logits(tiny, [1, 2], *GPU)
    except Failed as e:
        if 'no GPU' not in str(e) and 'device' not in str(e):
            raise
        skip(f'no usable GPU: {e}')


def check_divergence(report, engine, model, n):
    ids = engine.tokenize(model, DATA / 'demo' / 'heldout.txt')[:n]
    ref = engine.logits(model, ids, *REF)
    kl, same = kl_and_top1(ref, engine.logits(model, ids, *GPU))
    mean_max, median_max, same_min = LIMITS['q4']
    report.below(kl.mean(), mean_max, 'mean KL', f'{len(kl)} tokens; {show(kl, same)}')
    report.below(np.median(kl), median_max, 'median KL')
    report.check(same.mean() >= same_min, 'best token', f'at least {100 * same_min:g} %')
    report.check(kl.max() > 0.0, 'the two are not one computation')


def check_greedy(report, engine, model, n_prompt):
    """A prompt of few clear steps shows little: those with most of them come first."""
    prompts = load_json(DATA / 'demo' / 'golden-q4.json.gz')['prompts']
    ids_of = {p['name']: p['ids'] for p in load_json(DATA / 'demo' / 'golden.json.gz')['prompts']}
    short = sorted((p for p in prompts if len(ids_of[p['name']]) <= 64),
                   key=lambda p: -min(p['greedy_gap'][:STEPS_MAX]))
    total = 0
    for prompt in short[:n_prompt]:
        ids, name = ids_of[prompt['name']], prompt['name']
        error = max_error(engine.logits(model, ids, *GPU)[-1], prompt['last_logits'])
        gap = np.array(prompt['greedy_gap'][:STEPS_MAX])
        near = gap < 2 * error
        n = int(np.argmax(near)) if near.any() else len(gap)
        got = engine.greedy(model, ids, len(gap), *GPU)
        total += n
        report.check(np.isfinite(error) and got[:n] == prompt['greedy'][:n],
                     f'{name}: greedy ids',
                     f'{n} of {len(gap)} steps have a gap of at least 2 x {error:.3f}')
    report.check(total >= 2 * n_prompt, 'steps compared', f'{total}')


def routes(path):
    """{(layer, row of all the run): set of experts}"""
    data = path.read_bytes()
    if data[:8] != b'RGTRACE1':
        raise Failed(f'{path} is no trace')
    at = 12 + struct.unpack_from('<I', data, 8)[0]
    out, seen = {}, {}
    while at < len(data):
        kind, flags, group, rows, n = EVENT.unpack_from(data, at)
        at += EVENT.size
        if kind == TURN:
            ids = np.frombuffer(data, '<u2', n, at).reshape(rows, -1)
            for row in ids:
                out[group, seen.get(group, 0)] = frozenset(row.tolist())
                seen[group] = seen.get(group, 0) + 1
        at += {TURN: 2 * n, AHEAD: 2 * n, WARM: 4 * n, WINDOW: 16 + 4 * n * (flags >> 1 & 1)}[kind]
    return out


def recorded(engine, *args):
    trace = engine.folder / 'routes.trace'
    engine.call(*args, '--trace', trace)
    return routes(trace)


def check_routers(report, engine):
    model = DATA / 'tiny' / 'c-f32.gguf'
    ids = read_ids(DATA / 'tiny' / 'c-f32.ids')[:70]
    file = engine.ids_file(ids)
    runs = {'prefill': ('logits', '-m', model, '--ids', file, '--hash')}
    for strength in (0, 0.85):
        runs[f'decode, strength {strength}'] = (
            'run', '-m', model, '--ids', file, '-n', DECODE, '--temp', 0, '--ignore-eos',
            '--print-ids', '--moce', strength)
    by_strength = []
    for name, args in runs.items():
        args += ('--arena-experts', SLOTS, '--kv', 'f32')
        want = recorded(engine, *args, '--kernels', 'ref')
        got = recorded(engine, *args, *GPU)
        differ = [k for k in want if want[k] != got.get(k)]
        report.check(want.keys() == got.keys() and not differ, f'routes: {name}',
                     f'{len(want)} of {len({k[0] for k in want})} layers, '
                     f'{len(differ)} differ, first {differ[:1]}')
        by_strength.append(got)
    report.check(by_strength[1] != by_strength[2], 'cache-aware routing changes routes')


def body(report, engine, n_token='96', n_prompt='2'):
    need_device(engine)
    model = demo_model('q4')
    check_routers(report, engine)
    check_greedy(report, engine, model, int(n_prompt))
    check_divergence(report, engine, model, int(n_token))


main('GPU', body, 2)
