"""Reads the header of a GGUF file (versions 2 and 3): metadata and tensor table. Standard library
only. Strings come back as str, or as bytes where they are not UTF-8.

As a program:
    gguf_read.py FILE                  lists metadata and tensors
    gguf_read.py FILE --get KEY        prints one value, strings as they are
    gguf_read.py FILE --vocab OUT      writes a GGUF of the tokenizer keys alone, without tensors
"""
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}
STRING, ARRAY = 8, 9

# type number: (name, values of a block, bytes of a block)
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}


class Tensor:
    """name, type (number), dims (contiguous first), offset (absolute, in the file)."""

    def __init__(self, name, type_, dims, offset):
        self.name, self.type, self.dims, self.offset = name, type_, dims, offset

    @property
    def type_name(self):
        return TYPES[self.type][0] if self.type in TYPES else "type%d" % self.type

    @property
    def size_bytes(self):
        """None for a type this table does not know."""
        if self.type not in TYPES:
            return None
        _, block, size = TYPES[self.type]
        count = 1
        for d in self.dims:
            count *= d
        return count // block * size

    def __repr__(self):
        return "%s %s %s @%d" % (self.name, self.type_name, self.dims, self.offset)


class Gguf:
    """version, kv (key -> value), kinds (key -> type, or (array, element type)), tensors."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self._f = f
            if f.read(4) != b"GGUF":
                raise ValueError("%s: not a GGUF file" % path)
            self.version = self._scalar("I")
            if self.version not in (2, 3):
                raise ValueError("%s: version %d, known are 2 and 3" % (path, self.version))
            n_tensors, n_kv = self._scalar("Q"), self._scalar("Q")
            self.kv, self.kinds, self.tensors = {}, {}, []
            for _ in range(n_kv):
                key = self._string()
                kind = self._scalar("I")
                self.kv[key] = self._value(kind, key)
                self.kinds.setdefault(key, kind)
            for _ in range(n_tensors):
                name = self._string()
                dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
                type_ = self._scalar("I")
                self.tensors.append(Tensor(name, type_, dims, self._scalar("Q")))
            align = self.kv.get("general.alignment", 32)
            self.data_start = (f.tell() + align - 1) // align * align
            for t in self.tensors:
                t.offset += self.data_start
        self.path = path
        del self._f

    def tensor(self, name):
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def read(self, tensor):
        """The payload bytes of a tensor (or of the tensor of that name)."""
        if isinstance(tensor, str):
            tensor = self.tensor(tensor)
        with open(self.path, "rb") as f:
            f.seek(tensor.offset)
            return f.read(tensor.size_bytes)

    def _scalar(self, code):
        raw = self._f.read(struct.calcsize(code))
        return struct.unpack("<" + code, raw)[0]

    def _string(self):
        raw = self._f.read(self._scalar("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw

    def _value(self, kind, key):
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            elem, count = self._scalar("I"), self._scalar("Q")
            self.kinds[key] = (ARRAY, elem)
            if elem in SCALARS:
                code = "<%d%s" % (count, SCALARS[elem])
                return list(struct.unpack(code, self._f.read(struct.calcsize(code))))
            return [self._value(elem, key) for _ in range(count)]
        return self._scalar(SCALARS[kind])


def _packed(kind, value):
    if isinstance(kind, tuple):
        body = b"".join(_packed(kind[1], v) for v in value)
        return struct.pack("<IQ", kind[1], len(value)) + body
    if kind == STRING:
        raw = value.encode("utf-8") if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack("<" + SCALARS[kind], value)


def write_metadata(path, kv, kinds):
    """A GGUF of version 3 with metadata only."""
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(kv)))
        for key, value in kv.items():
            kind = kinds[key]
            f.write(_packed(STRING, key))
            f.write(struct.pack("<I", kind[0] if isinstance(kind, tuple) else kind))
            f.write(_packed(kind, value))
        f.write(b"\0" * (-f.tell() % 32))


def main(argv):
    g = Gguf(argv[1])
    if len(argv) == 4 and argv[2] == "--get":
        value = g.kv[argv[3]]
        sys.stdout.write(value if isinstance(value, str) else repr(value) + "\n")
        return 0
    if len(argv) == 4 and argv[2] == "--vocab":
        keys = [k for k in g.kv if k.startswith("tokenizer.") or k.startswith("general.")]
        write_metadata(argv[3], {k: g.kv[k] for k in keys}, g.kinds)
        return 0
    for key, value in g.kv.items():
        text = repr(value)
        print(key, "=", text if len(text) <= 100 else text[:100] + " ...")
    for t in g.tensors:
        print(t)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
