"""Default kernels against the float reference on the held-out text: KL divergence and best token.

usage: auto_vs_ref.py REGOLITH bf16|q4 [WINDOWS]

The text is cut into windows of 760 tokens, each with a fresh state; all 23 are compared unless told
otherwise (the whole text has 23). The first window is the text of the figures in act_rounding.tsv,
which tell what ordinary 8-bit rounding of activations costs.
"""
import numpy as np

from common import DATA, ROOT, Failed, demo_model, kl_and_top1, load_json, main

WINDOW = 760
REF = ('--kernels', 'ref', '--kv', 'f32')
AUTO = ('--kernels', 'auto')

# mean KL, median KL (None: not asked), least share of equal best tokens
LIMITS = {'bf16': (1e-3, None, 0.985), 'q4': (3e-3, 5e-4, 0.97)}


def recorded(kind):
    text = (ROOT / 'tests' / 'golden' / 'act_rounding.tsv').read_text(encoding='utf-8')
    rows = [line.split('\t') for line in text.splitlines() if line and not line.startswith('#')]
    row = next(dict(zip(rows[0], r)) for r in rows[1:] if r[0] == kind)
    return (f'recorded rounding, {row["tokens"]} tokens: mean {row["kl_mean"]}, '
            f'median {row["kl_median"]}, best token {row["top1"]}')


def show(kl, same):
    return f'mean {kl.mean():.3e}, median {np.median(kl):.3e}, best token {100 * same.mean():.2f} %'


def body(report, engine, kind, n_windows='23'):
    if kind not in LIMITS:
        raise Failed(f'kind is {kind}, not bf16 or q4')
    model = demo_model(kind)
    ids = engine.tokenize(model, DATA / 'demo' / 'heldout.txt')
    if len(ids) < WINDOW * int(n_windows):
        raise Failed(f'the held-out text has {len(ids)} tokens, {n_windows} windows of {WINDOW} '
                     'were asked for')
    prompts = load_json(DATA / 'demo' / 'golden.json.gz')['prompts']
    long = next(p['ids'] for p in prompts if p['name'] == 'long')
    report.check(ids[:WINDOW] == long, 'the ids of the text begin with the golden ones')
    kl, same = [], []
    for i in range(int(n_windows)):
        part = ids[i * WINDOW:(i + 1) * WINDOW]
        a, b = kl_and_top1(engine.logits(model, part, *REF), engine.logits(model, part, *AUTO))
        print(f'     window {i}, {len(part)} tokens: {show(a, b)}')
        kl.append(a)
        same.append(b)
        if i == 0:
            print(f'     {recorded(kind)}')
    kl, same = np.concatenate(kl), np.concatenate(same)
    mean_max, median_max, same_min = LIMITS[kind]
    report.below(kl.mean(), mean_max, 'mean KL', f'{len(kl)} tokens')
    if median_max:
        report.below(np.median(kl), median_max, 'median KL')
    report.check(same.mean() >= same_min, 'best token',
                 f'{100 * same.mean():.2f} % (at least {100 * same_min:g} %)')


if __name__ == '__main__':
    main('auto_vs_ref', body, 2)
