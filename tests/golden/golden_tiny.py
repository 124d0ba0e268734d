"""The tiny random models against float64 and transformers logits, and their tokenizer.

usage: golden_tiny.py REGOLITH

Reference mode: 1e-4 at every position. Default mode on quantised weights: rounding of activations
spreads through random weights, so the error is only held to that of llama.cpp on the same file
(per-position rms error over the standard deviation of the reference: median 1.5 times, ninth decile
twice).
"""
import numpy as np

from common import DATA, main, max_error, read_ids

TINY = DATA / 'tiny'
REF = ('--kernels', 'ref', '--kv', 'f32')
AUTO = ('--kernels', 'auto', '--kv', 'f32')
ERROR_MAX = 1e-4
MEDIAN_FACTOR, P90_FACTOR = 1.5, 2.0

# name -> (file, weights are all F32, has a draft block)
MODELS = {
    'a-f32': ('a-f32.gguf', True, False),
    'c-f32': ('c-f32.gguf', True, False),
    'b-f16': ('b-f16.gguf', False, False),
    'a-mix': ('a-mix.gguf', False, False),
    'a-fused': ('a-fused-00001-of-00003.gguf', False, False),
    'k-mtp': ('k-mtp.gguf', False, True),
}


def golden(name, what, n_vocab):
    return np.fromfile(TINY / f'{name}.{what}.f32', '<f4').reshape(-1, n_vocab)


def spread(x, ref):
    """median and ninth decile of the rms error of a position, over the reference's deviation"""
    d = x.astype(np.float64) - ref
    r = np.sqrt((d * d).mean(1)) / ref.astype(np.float64).std()
    return np.median(r), np.percentile(r, 90)


def check_auto(report, name, x, ref, is_f32):
    if is_f32:
        report.below(max_error(x, ref), ERROR_MAX, f'{name}, auto: logits')
        return
    peer = golden(name, 'llama', ref.shape[1])
    (median, p90), (peer_median, peer_p90) = spread(x, ref), spread(peer, ref[:len(peer)])
    report.below(median, MEDIAN_FACTOR * peer_median, f'{name}, auto: median error of a position',
                 f'llama.cpp {peer_median:.1e}')
    report.below(p90, P90_FACTOR * peer_p90, f'{name}, auto: ninth decile',
                 f'llama.cpp {peer_p90:.1e}')


def check_tokenizer(report, engine):
    model, text = TINY / 'a-f32.gguf', TINY / 'tok.txt'
    report.check(engine.tokenize(model, text) == read_ids(TINY / 'tok.ids'), 'tokenize')
    report.check(engine.tokenize(model, text, '--special') == read_ids(TINY / 'tok-special.ids'),
                 'tokenize --special')
    back = engine.call('tokenize', '-m', model, '--decode', '-f', TINY / 'tok.ids')
    report.check(back in (text.read_bytes(), text.read_bytes() + b'\n'), 'tokenize --decode',
                 f'{len(back)} bytes')


def body(report, engine):
    for name, (file, is_f32, has_draft) in MODELS.items():
        model, ids = TINY / file, read_ids(TINY / f'{name}.ids')
        if has_draft:
            x, dump = engine.logits_and_dump(model, ids, *REF)
            layer = max(layer for what, layer in dump if what == 'mtp_logits')
            report.below(max_error(dump['mtp_logits', layer], golden(name, 'mtp', x.shape[1])),
                         ERROR_MAX, f'{name}, ref: draft logits')
        else:
            x = engine.logits(model, ids, *REF)
        ref = golden(name, 'ref', x.shape[1])
        report.below(max_error(x, ref), ERROR_MAX, f'{name}, ref: logits against float64',
                     f'{len(ids)} positions')
        if is_f32:
            hf = golden(name, 'hf', x.shape[1])  # of the last positions
            report.below(max_error(x[-len(hf):], hf), ERROR_MAX,
                         f'{name}, ref: logits against transformers', f'{len(hf)} positions')
        check_auto(report, name, engine.logits(model, ids, *AUTO), ref, is_f32)
    want = read_ids(TINY / 'a-f32.greedy')
    got = engine.greedy(TINY / 'a-f32.gguf', read_ids(TINY / 'a-f32.ids')[:8], len(want), *REF)
    report.check(got == want, 'a-f32: greedy ids', f'{len(want)} tokens')
    check_tokenizer(report, engine)


if __name__ == '__main__':
    main('golden_tiny', body, 0)
