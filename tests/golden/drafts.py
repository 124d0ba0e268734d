"""Drafts against the golden data, and the charter's clause about them: never another bit.

usage: drafts.py REGOLITH [full [PART [FROM TO [STEP]]]]

Golden: the chained drafts of the BF16 demo, and how often its first drafts are right, as a training
run measured it. Charter: ids and logits of a generation are equal without drafts and with drafts of
any source and length, fixed or governed, for several arenas, numbers of threads and seeds, with
penalties and with cache-aware routing, over the border where attention selects blocks, and with the
draft block from a file of its own. `full`: 512 tokens; every two of draft, way to sample, arena
(the steps of the streaming charter) and number of threads together at least once; a session of
4,096 tokens. PART: one of the parts alone; FROM and TO: some of the runs of `demo` or `tiny`.
"""
import itertools
import json
import re
import shutil
import struct
import subprocess
import sys

import numpy as np

from charter_stream import shape, slots
from common import DATA, SHARED, Failed, demo_model, load_json, main, read_ids

sys.path.insert(0, str(DATA.parent / 'support'))
from gguf_read import SCALARS, Gguf  # noqa: E402

ACCEPTANCE_ERROR = 0.02
MODES = [('mtp', n) for n in range(1, 5)] + [('suffix', n) for n in range(1, 8)]
PENALTIES = ('--repeat-penalty', 1.1, '--frequency-penalty', 0.2, '--penalty-last-n', 48)
SAMPLING = [('--temp', 0)] + [('--temp', 0.9, '--seed', s) for s in (1, 2, 3)]
SAMPLING += [('--temp', 0, *PENALTIES), ('--temp', 1.1, '--seed', 4, *PENALTIES)]


# ---- a model cut in two -------------------------------------------------------------------------

def packed_value(kind, value):
    if kind == 8:
        raw = value if isinstance(value, bytes) else value.encode()
        return struct.pack('<Q', len(raw)) + raw
    return struct.pack('<' + SCALARS[kind], value)


def write_part(path, source, keep, changes, rename):
    """Tensors for which keep(name), under other names; some metadata replaced."""
    g = Gguf(source)
    raw = open(source, 'rb').read()
    kv = dict(g.kv, **changes)
    tensors = [t for t in g.tensors if keep(t.name)]
    head = b'GGUF' + struct.pack('<IQQ', 3, len(tensors), len(kv))
    for key, value in kv.items():
        kind = g.kinds.get(key, 4)
        head += packed_value(8, key)
        if isinstance(kind, tuple):
            head += struct.pack('<IIQ', 9, kind[1], len(value))
            head += b''.join(packed_value(kind[1], v) for v in value)
        else:
            head += struct.pack('<I', kind) + packed_value(kind, value)
    data, at = [], 0
    for t in tensors:
        body = raw[t.offset:t.offset + t.size_bytes]
        head += packed_value(8, rename(t.name)) + struct.pack('<I', len(t.dims))
        head += struct.pack(f'<{len(t.dims)}Q', *t.dims) + struct.pack('<IQ', t.type, at)
        data.append(body + bytes(-len(body) % 32))
        at += len(data[-1])
    path.write_bytes(head + bytes(-len(head) % 32) + b''.join(data))


def cut(engine, model):
    """The trunk, and the draft block with its mixer under the name that some files give it."""
    g = Gguf(model)
    layers = g.kv['qwen4exp.block_count'] - 1
    ratios = 'qwen4exp.attention.compress_ratios'
    trunk, draft = engine.folder / 'trunk.gguf', engine.folder / 'draft.gguf'
    block = f'blk.{layers}.'
    changes = {'qwen4exp.block_count': layers, 'qwen4exp.nextn_predict_layers': 0}
    if ratios in g.kv:
        changes[ratios] = g.kv[ratios][:layers]
    write_part(trunk, model, lambda n: not n.startswith(block), changes, lambda n: n)
    write_part(draft, model, lambda n: n.startswith(block), {},
               lambda n: n.replace(block + 'nextn.hc_head_', 'output_hc_'))
    return trunk, draft


# ---- runs ---------------------------------------------------------------------------------------

def generate(engine, model, ids, n, *flags):
    """(ids, hash of the logits), and the figures of the drafts"""
    out = engine.call('run', '-m', model, '--ids', engine.ids_file(ids), '-n', n, '--ignore-eos',
                      '--json', '--logits-hash', *flags)
    r = json.loads(out)
    if len(r['ids']) != n or len(r['logits_hash']) != 32:
        raise Failed(f'run gave {len(r["ids"])} of {n} tokens, hash {r["logits_hash"]!r}')
    return (r['ids'], r['logits_hash']), r.get('draft')


def draft_flags(mode, n, fixed=True):
    return ('--draft', mode, '--draft-max', n, *(['--draft-fixed'] if fixed else []))


def arms(full, arenas):
    """(draft, sampling, arena, threads): every draft with two ways to sample, or all pairs"""
    drafts = [draft_flags(*m) for m in MODES]
    drafts += [draft_flags('auto', n, fixed) for n, fixed in ((4, False), (7, False), (7, True))]
    if full:
        for a, d in itertools.product(range(len(arenas)), range(len(drafts))):
            # Any two of the four meet: the sums are independent modulo 3.
            yield drafts[d], SAMPLING[(a + d) % len(SAMPLING)], arenas[a], 1 + (a + 2 * d) % 3
        return
    for i, d in enumerate(drafts):
        yield d, SAMPLING[i % len(SAMPLING)], arenas[(i + i // 6) % len(arenas)], 1 + i % 3
        yield d, SAMPLING[(i + 3) % len(SAMPLING)], (), 2


def check_charter(report, engine, name, model, ids, n, arenas, full, span):
    want, wrong, offered, accepted, count = {}, [], 0, 0, 0
    for d, s, arena, threads in itertools.islice(arms(full, arenas), *span):
        if s not in want:
            want[s], _ = generate(engine, model, ids, n, *s)
        got, figures = generate(engine, model, ids, n, *d, *s, *arena, '--threads', threads)
        count += 1
        offered += figures['offered']
        accepted += figures['accepted']
        if got != want[s]:
            wrong.append(' '.join(map(str, (*d, *s, *arena, threads))))
    report.check(not wrong, f'{name}: {n} tokens', f'{count - len(wrong)} of {count} runs equal, '
                 f'{accepted} of {offered} drafts accepted'
                 + ''.join(f'; not {w}' for w in wrong[:3]))
    report.check(offered > 3 * count and 0 < accepted < offered,
                 f'{name}: drafts were made, and some were wrong')


def check_trace(report, engine, name, model, ids, arenas):
    """The simulator follows a run with drafts: only accepted rows made experts recent."""
    trace, wrong = engine.folder / 'drafts.trace', []
    for (mode, n), slots in itertools.product((('mtp', 3), ('suffix', 5), ('auto', 7)), arenas):
        engine.call('trace', 'record', '-m', model, '--ids', engine.ids_file(ids), '-n', 60,
                    '--ignore-eos', '--temp', 0, *draft_flags(mode, n), '--arena-experts', slots,
                    trace)
        out = engine.call('trace', 'replay', trace, '--arena-experts', slots).decode()
        if 'is equal in every window' not in out:
            wrong.append((mode, slots, out.strip().splitlines()[-1]))
    report.check(not wrong, f'{name}: the replay of a recorded run with drafts', str(wrong or ''))


def check_arena(report, engine, model, ids):
    """Windows of 1 to 8 rows whose experts do not fit the smallest arena together."""
    least = ('--arena-experts', 7)
    want, _ = generate(engine, model, ids, 48, '--temp', 0)
    wrong, waves = [], 0
    for n in range(1, 8):
        got, d = generate(engine, model, ids, 48, '--temp', 0, *draft_flags('suffix', n), *least)
        waves += sum(w['waves'] for w in d['windows'])
        if got != want:
            wrong.append(n)
    report.check(not wrong and waves, 'windows of 1..8 rows at the least arena',
                 f'{waves} waves; wrong: {wrong}')
    _, d = generate(engine, model, ids, 400, '--temp', 0, *draft_flags('suffix', 7, False), *least)
    report.check(d['rows_max'] < 8, 'the governor shrinks windows that do not fit',
                 f'to {d["rows_max"]} rows')


def check_moce(report, engine, model, ids, n):
    flags = ('--moce', 0.85, '--moce-slots', 60, '--temp', 0)
    want, _ = generate(engine, model, ids, n, *flags)
    plain, _ = generate(engine, model, ids, n, '--temp', 0)
    wrong = [m for m in MODES[::3]
             if generate(engine, model, ids, n, *flags, *draft_flags(*m))[0] != want]
    report.check(not wrong and want != plain, 'cache-aware routing with drafts', f'wrong: {wrong}')


def check_crossing(report, engine, model, ids, n):
    """Past the budget of the indexer: attention selects blocks inside drafted windows. A model
    whose budget is never reached shows that the selection decided something."""
    flags = ('--temp', 0, '--ctx', 4096)
    wide = engine.folder / 'wide.gguf'
    write_part(wide, model, lambda n: True, {'qwen4exp.attention.indexer.top_k': 4096}, lambda n: n)
    dense, _ = generate(engine, wide, ids, n, *flags)
    wide.unlink()
    want, _ = generate(engine, model, ids, n, *flags)
    wrong, offered, accepted = [], 0, 0
    for m in (('mtp', 3), ('suffix', 7), ('auto', 7), ('auto', 7, False)):
        got, d = generate(engine, model, ids, n, *flags, *draft_flags(*m))
        offered += d['offered']
        accepted += d['accepted']
        if got != want:
            wrong.append(m)
    report.check(not wrong, f'{len(ids)} + {n} tokens cross the budget of the indexer',
                 f'{accepted} of {offered} drafts accepted; wrong: {wrong}')
    report.check(dense != want and 0 < accepted < offered, 'the budget was crossed, with drafts')


def first_drafts(engine, model, ids, *flags):
    """Drafts of the first window, from the log."""
    done = subprocess.run([engine.binary, 'run', '-m', str(model), '--ids',
                           str(engine.ids_file(ids)), '-n', '8', '--temp', '0', '-v', '-v',
                           *map(str, flags)], capture_output=True, check=True, timeout=600)
    found = re.search(rb'drafts \(mtp\) behind (\d+):((?: \d+)+)', done.stderr)
    return [int(x) for x in (found[1] + found[2]).split()] if found else []


def check_sidecar(report, engine, model, ids):
    trunk, draft = cut(engine, model)
    flags = ('--draft', 'mtp', '--draft-max', 3, '--draft-fixed')
    want, d = generate(engine, model, ids, 40, '--temp', 0, *flags)
    got, e = generate(engine, trunk, ids, 40, '--temp', 0, *flags, '--draft-model', draft)
    report.check(got == want and e['offered'] == d['offered'] and e['accepted'] == d['accepted']
                 and d['offered'], 'a draft block from its own file drafts the same',
                 f'{e["accepted"]} of {e["offered"]}')
    same = first_drafts(engine, trunk, ids, *flags, '--draft-model', draft, '--arena-experts', 8)
    report.check(same == first_drafts(engine, model, ids, *flags) and len(same) == 4,
                 'its experts stream from both files', str(same))
    for bad, why in ((trunk, 'no draft block'), (engine.folder / 'none.gguf', 'none.gguf')):
        try:
            engine.call('run', '-m', trunk, '-p', 'x', '-n', 1, '--draft', 'mtp',
                        '--draft-model', bad)
            report.check(False, f'{bad.name} as a draft file is refused')
        except Failed as e2:
            report.check(why in str(e2), f'{bad.name} as a draft file is refused', str(e2)[-90:])
    try:
        engine.call('run', '-m', trunk, '-p', 'x', '-n', 1, '--draft', 'mtp')
        report.check(False, 'a model without a draft block refuses --draft mtp')
    except Failed as e2:
        report.check('no draft block' in str(e2), 'a model without one refuses --draft mtp')


# ---- golden -------------------------------------------------------------------------------------

def share_right(engine, model, ids, *flags):
    """Share of drafts equal to the trunk's choice, over a whole text."""
    shutil.rmtree(engine.folder / 'dump', ignore_errors=True)
    x, dump = engine.logits_and_dump(model, ids, '--kernels', 'ref', '--kv', 'f32', *flags)
    layer = max(k[1] for k in dump if k[0] == 'mtp_logits')
    drafts = dump['mtp_logits', layer].argmax(1)          # row p: token p + 2
    right = drafts == x.argmax(1)[1:len(drafts) + 1]
    return float(np.mean(right))


def check_golden(report, engine):
    golden = load_json(DATA / 'demo' / 'golden.json.gz')
    model = demo_model('bf16')
    mtp = golden['mtp']
    want = [mtp['next'], *mtp['chain']]
    got = first_drafts(engine, model, mtp['ids'], '--kernels', 'ref', '--kv', 'f32',
                       *draft_flags('mtp', 4))
    report.check(got == want, 'chained drafts of the BF16 demo', f'{got}, golden {want}')
    heldout = SHARED / 'models' / 'demo' / 'heldout.txt'
    ids = engine.tokenize(model, heldout)[2000:2512]
    value = golden['mtp_acceptance']
    rate = share_right(engine, model, ids)
    report.check(abs(rate - value['heldout_512_dense']) <= ACCEPTANCE_ERROR,
                 'acceptance on held-out text', f'{rate:.4f}, golden {value["heldout_512_dense"]}')
    other = share_right(engine, model, ids, '--mtp-hnorm', 'stream')
    report.check(0.3 < other < rate, 'a norm for each stream, not as trained, is right less often',
                 f'{other:.4f}')
    rates = [share_right(engine, model, p['ids'] + p['greedy'])
             for p in golden['prompts']]
    rate = float(np.mean(rates))
    report.check(abs(rate - value['own_greedy_text_mean_over_prompts']) <= ACCEPTANCE_ERROR,
                 'acceptance on its own text',
                 f'{rate:.4f}, golden {value["own_greedy_text_mean_over_prompts"]}')


def arenas_of(engine, model, full, few):
    """Everything resident, and arenas: few of them, or all steps of the streaming charter."""
    sizes = slots(*shape(engine, model)) if full else few
    return [(), *(('--arena-experts', n) for n in sizes)]


def body(report, engine, what='', part='', *span):
    full, span = what == 'full', [int(x) for x in span] or [None]
    tiny = DATA / 'tiny'
    prompts = load_json(DATA / 'demo' / 'golden.json.gz')['prompts']
    long = next(p['ids'] for p in prompts if p['name'] == 'long')
    k_mtp, k_ids = tiny / 'k-mtp.gguf', read_ids(tiny / 'k-mtp.ids')
    q4 = demo_model('q4')
    n = 512 if full else 96
    parts = {
        'demo': lambda: check_charter(report, engine, 'demo q4', q4, long[:80], n,
                                      arenas_of(engine, q4, full, (7, 60, 300)), full, span),
        'tiny': lambda: check_charter(report, engine, 'k-mtp', k_mtp, k_ids, n,
                                      arenas_of(engine, k_mtp, full, (3, 9)), full, span),
        'trace': lambda: (check_trace(report, engine, 'demo q4', q4, long[:60], (8, 100)),
                          check_trace(report, engine, 'k-mtp', k_mtp, k_ids, (3, 8))),
        'arena': lambda: check_arena(report, engine, q4, long[:60]),
        'moce': lambda: check_moce(report, engine, q4, long[:40], n),
        'crossing': lambda: check_crossing(report, engine, q4, long[:100], 3996 if full else 120),
        'sidecar': lambda: check_sidecar(report, engine, k_mtp, k_ids[:30]),
        'golden': lambda: check_golden(report, engine),
    }
    if part and part not in parts:
        raise Failed(f'no part {part}; there are {" ".join(parts)}')
    for name, check in parts.items():
        if part in ('', name):
            check()


if __name__ == '__main__':
    main('drafts', body, 5)
