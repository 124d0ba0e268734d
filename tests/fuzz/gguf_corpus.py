"""Writes the seeds of fuzz_gguf: headers of the tiny models, their vocabularies cut to 16 entries,
and two small headers with a value of every type.

  python3 tests/fuzz/gguf_corpus.py        (from the top of the tree)
"""
import pathlib
import struct

TOP = pathlib.Path(__file__).resolve().parents[2]
TINY = TOP / "tests" / "data" / "tiny"
OUT = TOP / "tests" / "fuzz" / "corpus" / "gguf"
N_TOKEN = 16
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}
STRING, ARRAY = 8, 9
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
          16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
          22: (256, 82), 23: (256, 136), 29: (256, 56), 30: (1, 2), 42: (64, 18)}


class Reader:
    def __init__(self, data):
        self.data, self.pos = data, 0

    def take(self, fmt):
        value = struct.unpack_from("<" + fmt, self.data, self.pos)[0]
        self.pos += struct.calcsize("<" + fmt)
        return value

    def string(self):
        size = self.take("Q")
        self.pos += size
        return self.data[self.pos - size:self.pos]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.take(SCALARS[kind])
        elem, count = self.take("I"), self.take("Q")
        return elem, [self.value(elem) for _ in range(count)]


def read(path):
    r = Reader(path.read_bytes())
    magic, version, n_tensor, n_kv = r.take("4s"), r.take("I"), r.take("Q"), r.take("Q")
    assert magic == b"GGUF" and version == 3
    kvs = []
    for _ in range(n_kv):
        key, kind = r.string(), r.take("I")
        kvs.append((key, kind, r.value(kind)))
    tensors = []
    for _ in range(n_tensor):
        name, n_dims = r.string(), r.take("I")
        dims = [r.take("Q") for _ in range(n_dims)]
        tensors.append((name, dims, r.take("I")))
        r.take("Q")
    return kvs, tensors


def string(s):
    return struct.pack("<Q", len(s)) + s


def value(kind, v):
    if kind == STRING:
        return string(v)
    if kind == ARRAY:
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], e) for e in v[1])
    return struct.pack("<" + SCALARS[kind], v)


def header(kvs, tensors, version=3):
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(kvs))]
    for key, kind, v in kvs:
        out += [string(key), struct.pack("<I", kind), value(kind, v)]
    offset = 0
    for name, dims, kind in tensors:
        n, size = BLOCKS[kind]
        elems = 1
        for d in dims:
            elems *= d
        out += [string(name), struct.pack("<I", len(dims)), struct.pack("<%dQ" % len(dims), *dims),
                struct.pack("<IQ", kind, offset)]
        offset += (elems // n * size + 31) // 32 * 32
    return b"".join(out)


def cut(kvs, tensors):
    small = []
    for key, kind, v in kvs:
        if key.startswith(b"split."):
            continue
        if key.startswith(b"tokenizer.ggml.") and kind == ARRAY:
            v = (v[0], v[1][:N_TOKEN])
        if key.endswith(b"_token_id"):
            v = v % N_TOKEN
        small.append((key, kind, v))
    embeddings = (b"token_embd.weight", b"output.weight")
    return small, [(n, [d[0], N_TOKEN] if n in embeddings else d, t) for n, d, t in tensors]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name in ("a-f32", "a-mix", "b-f16", "c-f32", "k-mtp"):
        (OUT / name).write_bytes(header(*cut(*read(TINY / (name + ".gguf")))))
    kvs, tensors = read(TINY / "a-fused-00001-of-00003.gguf")
    for part in ("2", "3"):
        tensors = tensors + read(TINY / ("a-fused-0000%s-of-00003.gguf" % part))[1]
    (OUT / "a-fused").write_bytes(header(*cut(kvs, tensors)))
    every = [(b"k%d" % k, k, 1) for k in SCALARS]
    every += [(b"s", STRING, b"text"), (b"general.alignment", 4, 64)]
    every += [(b"a%d" % k, ARRAY, (k, [0, 1, 1])) for k in SCALARS]
    every += [(b"as", ARRAY, (STRING, [b"", b"\0", b"abc"]))]
    (OUT / "types-v2").write_bytes(header(every, [(b"t", [32, 2], 8)], version=2))
    (OUT / "types-v3").write_bytes(header(every, []))


main()
