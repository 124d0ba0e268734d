"""Traces, the simulator, usage profiles and cache-aware routing on the built binary.

usage: traces.py REGOLITH

A run that was recorded is replayed on a virtual drive: hits and misses must be equal in every
window, for several arenas, in prefill and decode. A usage profile may change times but no bit of
the logits. Under --moce the generated ids depend on the strength and the slots of the shadow
directory, never on the arena, the chunk or the threads.
"""
import re
import subprocess

from common import DATA, Failed, demo_model, load_json, main, read_ids

VERDICT = re.compile(r'recorded: (\d+) windows, (\d+) tokens, (\d+) hits, (\d+) misses; '
                     r'the replay \(\*\) (.*)')
STREAM = re.compile(r'stream: .* hits ([\d.]+) % of (\d+),')
RECEIPT = re.compile(r'moce: strength \S+ (\d+) tokens, (\d+) of (\d+) routes changed '
                     r'\([\d.]+ %\), ([\d.]+) % of')


def both(engine, *args):
    """stdout and stderr"""
    done = subprocess.run([engine.binary, *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, timeout=300)
    engine.n_starts += 1
    if done.returncode:
        raise Failed(f'{args}: exit {done.returncode}: {done.stderr.strip()}')
    return done.stdout, done.stderr


def replay(engine, trace, *flags):
    """the table's rows, and the verdict or None"""
    out = engine.call('trace', 'replay', trace, *flags).decode()
    rows = [line for line in out.splitlines()[2:] if not line.startswith('recorded')]
    return rows, VERDICT.search(out)


def check_replay(report, engine, name, model, ids, slots):
    want = engine.hash(model, ids)
    for n in slots:
        for flags in (('--chunk', 64), ('--decode', 40), ('--decode', 40, '--lookahead', 'off'),
                      ('--decode', 20, '--lookahead', 3)):
            trace = engine.folder / 'run.trace'
            out, err = both(engine, 'logits', '-m', model, '--ids', engine.ids_file(ids), '--hash',
                            '--arena-experts', n, '-v', '--trace', trace, *flags)
            verdict, stream = replay(engine, trace)[1], STREAM.search(err)
            hits, misses = int(verdict[3]), int(verdict[4])
            meter = f'{100 * hits / (hits + misses):.1f}'
            report.check(out.strip() == want and verdict[5] == 'is equal in every window'
                         and int(verdict[2]) == len(ids)
                         and (stream[1], int(stream[2])) == (meter, hits + misses),
                         f'{name}, {n} slots, {" ".join(map(str, flags))}', verdict[0])


def check_draft_block(report, engine, model, ids):
    """The draft block's turns are recorded too: its rows are one behind."""
    trace, dump = engine.folder / 'draft.trace', engine.folder / 'draft'
    dump.mkdir()
    engine.call('logits', '-m', model, '--ids', engine.ids_file(ids), '--decode', 10, '--dump',
                dump, '--arena-experts', 9, '--trace', trace)
    verdict = replay(engine, trace)[1]
    report.check(verdict[5] == 'is equal in every window', 'with the draft block', verdict[0])


def check_resident(report, engine, name, model, ids, n):
    """A trace of a run with everything in memory asks the same as one that streams."""
    a, b = engine.folder / 'resident.trace', engine.folder / 'streamed.trace'
    ids_file = engine.ids_file(ids)
    engine.call('logits', '-m', model, '--ids', ids_file, '--hash', '--decode', 30, '--trace', a)
    engine.call('logits', '-m', model, '--ids', ids_file, '--hash', '--decode', 30, '--trace', b,
                '--arena-experts', n)
    choice = ('--arena-experts', f'{n},{2 * n}', '--policy', 'lru,slru,lfu', '--lookahead',
              '0,3,auto', '--guard', 'on,off')
    rows = [[row.lstrip('* ') for row in replay(engine, t, *choice)[0]] for t in (a, b)]
    report.check(len(rows[0]) == 36 and rows[0] == rows[1], f'{name}: resident and streamed traces',
                 f'{len(rows[0])} combinations')


def check_profile(report, engine, name, model, ids, slots):
    want = engine.hash(model, ids, '--decode', 30, '--profile', 'off')
    trace, profile = engine.folder / 'use.trace', engine.folder / 'use.rgprofile'
    engine.hash(model, ids, '--trace', trace)
    engine.call('trace', 'profile', trace, trace, '-o', profile)
    for n in slots:
        for flags in ((), ('--decode', 30)):
            out, err = both(engine, 'logits', '-m', model, '--ids', engine.ids_file(ids), '--hash',
                            '--arena-experts', n, '--profile', profile, '--trace', trace, '-v',
                            *flags)
            verdict = replay(engine, trace)[1]
            report.check(out.strip() == want and 'of the usage profile fill the arena' in err
                         and verdict[5] == 'is equal in every window',
                         f'{name}, {n} slots, warm {" ".join(map(str, flags))}', verdict[0])
    return profile


def check_wrong_profile(report, engine, model, other_profile, ids):
    """Named: refused. Found beside the model: passed over."""
    flags = ('logits', '-m', model, '--ids', engine.ids_file(ids), '--hash', '--arena-experts', 30)
    try:
        engine.call(*flags, '--profile', other_profile)
        report.check(False, 'a profile of another model is refused')
    except Failed as e:
        report.check('belongs to model' in str(e), 'a profile of another model is refused', str(e))
    link = engine.folder / 'linked.gguf'
    link.symlink_to(model)
    beside = engine.folder / 'linked.gguf.rgprofile'
    beside.write_bytes(other_profile.read_bytes())
    out, err = both(engine, 'logits', '-m', link, *flags[3:])
    report.check(out.strip() == engine.hash(model, ids) and 'passed over' in err,
                 'one that lies beside the model is passed over', err.strip().splitlines()[0])


def generate(engine, model, ids, *flags):
    out, err = both(engine, 'run', '-m', model, '--ids', engine.ids_file(ids), '-n', 60, '--temp',
                    0, '--print-ids', '--ignore-eos', *flags)
    return out.split(), RECEIPT.search(err)


def check_moce(report, engine, name, model, ids, slots, shadow):
    plain, none = generate(engine, model, ids)
    zero, no_receipt = generate(engine, model, ids, '--moce', 0)
    report.check(zero == plain and not none and not no_receipt, f'{name}, --moce 0 is off')
    want, receipt = generate(engine, model, ids, '--moce', 0.85, '--moce-slots', shadow)
    changed = int(receipt[2]) / int(receipt[3])
    report.check(int(receipt[1]) == 59 and 0 < changed < 1 and 0 < float(receipt[4]) < 100,
                 f'{name}, receipt', receipt[0])
    runs = [('--arena-experts', n) for n in slots]
    runs += [('--threads', 1), ('--threads', 3), ('--chunk', 7), ('--split', 'off'),
             ('--arena-experts', slots[0], '--chunk', 16, '--lookahead', 'off', '--threads', 3)]
    wrong = [' '.join(map(str, run)) for run in runs
             if (lambda r: (r[0], r[1][0]) != (want, receipt[0]))(
                 generate(engine, model, ids, '--moce', 0.85, '--moce-slots', shadow, *run))]
    report.check(not wrong, f'{name}, ids and receipts under --moce', '; '.join(wrong) or
                 f'{len(runs)} runs equal')
    # Prefill is never touched; decode of given tokens is.
    base = engine.logits(model, ids, '--decode', 40)
    moved = engine.logits(model, ids, '--decode', 40, '--moce', 1, '--moce-slots', shadow)
    same = (base == moved).all(1)
    report.check(same[:len(ids) - 40].all() and not same.all(), f'{name}, teacher-forced',
                 f'{int(same.sum())} of {len(ids)} rows equal')


def body(report, engine):
    prompts = load_json(DATA / 'demo' / 'golden.json.gz')['prompts']
    long = next(p['ids'] for p in prompts if p['name'] == 'long')[:150]
    tiny = DATA / 'tiny' / 'a-mix.gguf'
    tiny_ids = read_ids(DATA / 'tiny' / 'a-mix.ids')
    demo = demo_model('q4')
    check_replay(report, engine, 'a-mix', tiny, tiny_ids, (4, 9, 20))
    check_replay(report, engine, 'demo', demo, long, (7, 40, 200))
    check_draft_block(report, engine, DATA / 'tiny' / 'k-mtp.gguf',
                      read_ids(DATA / 'tiny' / 'k-mtp.ids'))
    check_resident(report, engine, 'a-mix', tiny, tiny_ids, 6)
    check_resident(report, engine, 'demo', demo, long, 40)
    other = check_profile(report, engine, 'a-mix', tiny, tiny_ids, (4, 12))
    check_wrong_profile(report, engine, demo, other, long)
    check_profile(report, engine, 'demo', demo, long, (7, 100, 400))
    check_moce(report, engine, 'a-mix', tiny, tiny_ids, (4, 12), 10)
    check_moce(report, engine, 'demo', demo, long, (7, 60, 300), 100)


if __name__ == '__main__':
    main('traces', body, 0)
