"""The charter's first clauses: the bits of all logits do not depend on how the work is cut.

usage: charter.py REGOLITH

For each model and kernel set the hash of 300 tokens' logits must be the same for every chunk size,
number of T = 1 turns and number of threads; the default kernels must also give it on the scalar CPU
level. The rows of the n-gram table come from memory (the default: these tables are small) or, under a
small budget, from the file: through the page cache or past it, at any pace.
"""
from common import DATA, demo_model, load_json, main, read_ids

N_TOKENS = 300
BASE = ('--chunk', 512, '--threads', 2)
CUTS = [
    ('--chunk', 1, '--threads', 2),
    ('--chunk', 7, '--threads', 2),
    ('--chunk', 64, '--threads', 2),
    ('--chunk', 512, '--threads', 1),
    ('--chunk', 512, '--threads', 3),
    ('--chunk', 512, '--threads', 2, '--decode', 1),
    ('--chunk', 512, '--threads', 2, '--decode', 40),
    ('--chunk', 64, '--threads', 3, '--decode', 40),
]
# Of the demo, whose table is then larger than the part of the budget that would load it.
SMALL = ('--ram', '70M', '--threads', 2, '--faults')
NGRAM = [
    (*SMALL, 'seed=1', '--chunk', 64, '--direct', 'off'),
    (*SMALL, 'seed=2,stall=20,stall_ms=3,short=300,eio=20', '--chunk', 64, '--direct', 'auto'),
    (*SMALL, 'seed=3,stall=20,stall_ms=3,short=300,eio=20', '--chunk', 64, '--direct', 'off'),
    (*SMALL, 'seed=4,stall=20,stall_ms=3', '--chunk', 7, '--decode', 40, '--direct', 'auto'),
]
SCALAR = {'RG_CPU': 'scalar'}


def words(cut):
    return ' '.join(map(str, cut))


def check_model(report, engine, name, model, ids):
    seen = set()
    for kernels, kv in (('auto', 'f16'), ('ref', 'f32')):
        mode = ('--kernels', kernels, '--kv', kv)
        want = engine.hash(model, ids, *mode, *BASE)
        cuts = CUTS + (NGRAM if name == 'demo q4' and kernels == 'auto' else [])
        runs = [(cut, None) for cut in cuts] + ([(BASE, SCALAR)] if kernels == 'auto' else [])
        wrong = [words(cut) + (' RG_CPU=scalar' if env else '') for cut, env in runs
                 if engine.hash(model, ids, *mode, *cut, env=env) != want]
        report.check(not wrong, f'{name}, {kernels}',
                     f'{want}, {len(runs) - len(wrong)} of {len(runs)} equal'
                     + (f'; not with {"; ".join(wrong)}' if wrong else ''))
        seen.add(want)
    report.check(len(seen) == 2, f'{name}: the two kernel sets differ, so the flag is obeyed')


def body(report, engine):
    tiny = DATA / 'tiny'
    prompts = load_json(DATA / 'demo' / 'golden.json.gz')['prompts']
    long = next(p['ids'] for p in prompts if p['name'] == 'long')
    mix = read_ids(tiny / 'a-mix.ids')
    for name, model, ids in (('demo q4', demo_model('q4'), long),
                             ('c-f32', tiny / 'c-f32.gguf', read_ids(tiny / 'c-f32.ids')),
                             ('a-mix', tiny / 'a-mix.gguf', mix * (N_TOKENS // len(mix) + 1))):
        check_model(report, engine, name, model, ids[:N_TOKENS])


if __name__ == '__main__':
    main('charter', body, 0)
