"""The charter's streaming clauses: the bits do not depend on where the experts were.

usage: charter_stream.py REGOLITH

For each model the hash of 300 tokens' logits with every expert in memory must be that of every arena
from the legal minimum upward, for the model file and its pack, io_uring and pread, read-ahead and
splitting on and off, in prefill and in turns of one token, under reads that are late, cut or
repeated, with evicted slots poisoned. The same for the ids of a long greedy generation.
"""
import itertools
import re
import shutil

from common import DATA, Failed, demo_model, load_json, main, read_ids

N_TOKENS = 300
N_GENERATED = 512
N_DELAYED = 20
STEPS = 8
DECODE = ((), ('--decode', 64))
POISON = ('--faults', 'seed=1,poison=1')


def slots(n_used, n_item):
    """STEPS arena sizes in slots, from the least legal one to all experts"""
    least = n_used + 1
    return sorted({round(least + (n_item - least) * i / (STEPS - 1)) for i in range(STEPS)})


def shape(engine, model):
    """experts used, and experts of all layers, as inspect tells them"""
    text = engine.call('inspect', model).decode()
    used, of = map(int, re.search(r'experts\s+(\d+) of (\d+)', text).groups())
    layers, draft = re.search(r'layers\s+(\d+) .*?( \+ 1 draft block)?$', text, re.M).groups()
    return used, of * (int(layers) + bool(draft))


def arms():
    """every way to read and to split"""
    return [(*pack, '--io', io, '--lookahead', ahead, '--split', split)
            for pack, io, ahead, split in itertools.product(
                ((), ('--pack', 'off')), ('uring', 'pread'), ('auto', 'off'), ('on', 'off'))]


def runs(n_used, n_item):
    """All ways at the least arena, a quarter of them, each time others, at the larger ones."""
    ways = arms()
    for i, n in enumerate(slots(n_used, n_item)):
        for j, way in enumerate(ways):
            if i == 0 or (i + j) % 4 == 0:
                for decode in DECODE:
                    yield ('--arena-experts', n, *way, *decode, *POISON)
    for seed in range(N_DELAYED):
        n = slots(n_used, n_item)[seed % 3]
        faults = f'seed={seed},stall=150,stall_ms=3,short=50,eio=20,poison=1'
        io = ('uring', 'pread')[seed % 2]
        yield ('--arena-experts', n, '--io', io, *DECODE[seed // 2 % 2], '--faults', faults)


def check(report, engine, name, model, ids):
    n_used, n_item = shape(engine, model)
    want = engine.hash(model, ids, '--pack', 'off')
    all_runs = list(runs(n_used, n_item))
    wrong = [r for r in all_runs if engine.hash(model, ids, *r) != want]
    report.check(not wrong, name, f'{want}, {len(all_runs) - len(wrong)} of {len(all_runs)} equal'
                 + ''.join('; not with ' + ' '.join(map(str, r)) for r in wrong[:4]))


def check_generation(report, engine, name, model, prompt):
    n_used, n_item = shape(engine, model)
    want = engine.greedy(model, prompt, N_GENERATED)
    least = slots(n_used, n_item)[0]
    ways = [('--arena-experts', n) for n in slots(n_used, n_item)[::3]]
    ways += [('--arena-experts', least, *way) for way in arms()[::5]]
    wrong = [w for w in ways if engine.greedy(model, prompt, N_GENERATED, *w) != want]
    report.check(not wrong and len(want) == N_GENERATED, f'{name}, {N_GENERATED} generated',
                 f'{len(ways) - len(wrong)} of {len(ways)} equal')


def packed(engine, model):
    """The model in the test's folder, its pack beside it."""
    copy = engine.folder / model.name
    shutil.copyfile(model, copy)
    engine.call('pack', copy)
    if not copy.with_suffix('.rgpack').exists():
        raise Failed('pack wrote no file')
    return copy


def body(report, engine):
    tiny = DATA / 'tiny'
    prompts = load_json(DATA / 'demo' / 'golden.json.gz')['prompts']
    long = next(p['ids'] for p in prompts if p['name'] == 'long')
    for name, source, ids in (('demo q4', demo_model('q4'), long),
                              ('c-f32', tiny / 'c-f32.gguf', read_ids(tiny / 'c-f32.ids')),
                              ('k-mtp', tiny / 'k-mtp.gguf', read_ids(tiny / 'k-mtp.ids') * 5)):
        model = packed(engine, source)
        check(report, engine, name, model, ids[:N_TOKENS])
        if name == 'demo q4':
            check_generation(report, engine, name, model, ids[:20])


if __name__ == '__main__':
    main('charter_stream', body, 0)
