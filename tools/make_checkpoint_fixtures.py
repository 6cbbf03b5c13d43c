#!/usr/bin/env python3
"""Write tests/data/fixtures/torch: small torch checkpoints of every kind, good and broken.

Needs Python 3.8 and nothing else: torch's pickles are written with stand-ins for torch's names, so
that protocols 2 to 5 and files that torch itself never writes can be made.  The same script gives
the same bytes.

    python3 tools/make_checkpoint_fixtures.py tests/data/fixtures/torch
"""
import collections
import io
import json
import os
import pickle
import struct
import sys
import types
import zipfile
import zlib

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
         "BOOL": 1}
STORAGES = {"F32": "FloatStorage", "BF16": "BFloat16Storage", "F16": "HalfStorage",
            "F64": "DoubleStorage", "I64": "LongStorage", "I32": "IntStorage",
            "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage", "BOOL": "BoolStorage"}


def stand_in(module, name, kind=type):
    """An importable object called module.name, for pickle to refer to."""
    if module not in sys.modules:
        sys.modules[module] = types.ModuleType(module)
    if kind is type:
        value = type(name, (), {"__module__": module})
    else:
        def value(*args):
            raise AssertionError("never called")
        value.__module__, value.__qualname__, value.__name__ = module, name, name
    setattr(sys.modules[module], name, value)
    return value


stand_in("torch", "Tensor")
STORAGE_TYPES = {dtype: stand_in("torch", name) for dtype, name in STORAGES.items()}
COMPLEX = stand_in("torch", "ComplexFloatStorage")
REBUILD = stand_in("torch._utils", "_rebuild_tensor_v2", None)
REBUILD_OLD = stand_in("torch._utils", "_rebuild_tensor", None)
PARAMETER = stand_in("torch._utils", "_rebuild_parameter", None)
FROM_TYPE = stand_in("torch._tensor", "_rebuild_from_type_v2", None)
UNKNOWN = stand_in("training_code", "Config")


class Storage:
    def __init__(self, dtype, key, n):
        self.dtype, self.key, self.n = dtype, key, n
        size = SIZES.get(dtype, 8)
        if dtype == "BOOL":
            self.data = bytes(i % 2 for i in range(n))
        elif dtype == "F32":
            self.data = struct.pack("<%df" % n, *[int(key) + i / 8 for i in range(n)])
        else:
            self.data = bytes((37 * int(key) + 11 * i) % 251 for i in range(n * size))


class Call:
    """Pickles as function(*args)."""
    def __init__(self, function, args, state=None):
        self.function, self.args, self.state = function, args, state

    def __reduce__(self):
        return (self.function, self.args) + ((self.state,) if self.state is not None else ())


def tensor(storage, offset, shape, stride):
    return Call(REBUILD, (storage, offset, tuple(shape), tuple(stride), False,
                          collections.OrderedDict()))


class Pickler(pickle._Pickler):
    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        kind = STORAGE_TYPES.get(value.dtype, COMPLEX)
        return ("storage", kind, value.key, "cpu", value.n)


def dump(value, protocol):
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue()


def write_zip(path, entries, compression=zipfile.ZIP_STORED, root="archive"):
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, data in entries:
            out.writestr(zipfile.ZipInfo("%s/%s" % (root, name), (1980, 1, 1, 0, 0, 0)), data,
                         compress_type=compression)


def write_torch(path, value, storages, protocol=2, more=(), **kwargs):
    entries = [("data.pkl", value if isinstance(value, bytes) else dump(value, protocol))]
    entries += [("data/" + s.key, s.data) for s in storages]
    entries += list(more) or [("version", b"3\n")]
    write_zip(path, entries, **kwargs)


def raw_zip(path, entries, zip64):
    """A zip file as a streaming writer makes it: sizes behind the data, all of them zip64 if so."""
    out, directory = io.BytesIO(), io.BytesIO()
    for name, data in entries:
        name = ("archive/" + name).encode()
        offset, crc = out.tell(), zlib.crc32(data)
        pad = -(offset + 30 + len(name) + 4) % 64
        extra = struct.pack("<HH", 0x4246, pad) + b"Z" * pad
        out.write(b"PK\3\4" + struct.pack("<HHHHHIIIHH", 45, 8, 0, 0, 33, 0, 0, 0, len(name),
                                          len(extra)) + name + extra + data)
        out.write(b"PK\7\x08" + struct.pack("<IQQ" if zip64 else "<III", crc, len(data), len(data)))
        wide = struct.pack("<HHQQQ", 1, 24, len(data), len(data), offset) if zip64 else b""
        sizes = (0xffffffff,) * 3 if zip64 else (len(data), len(data), offset)
        directory.write(b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 45, 45, 8, 0, 0, 33, crc,
                                                sizes[0], sizes[1], len(name), len(wide), 0, 0, 0,
                                                0, sizes[2]) + name + wide)
    start, body = out.tell(), directory.getvalue()
    out.write(body)
    if zip64:
        end64 = out.tell()
        out.write(b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, len(entries),
                                          len(entries), len(body), start))
        out.write(b"PK\6\7" + struct.pack("<IQI", 0, end64, 1))
    n = 0xffff if zip64 else len(entries)
    out.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, n, n, 0xffffffff if zip64 else len(body),
                                      0xffffffff if zip64 else start, 0))
    with open(path, "wb") as file:
        file.write(out.getvalue())


def plain_bytes(storage, offset, shape, stride):
    size = SIZES[storage.dtype]
    out = b""

    def walk(dim, at):
        nonlocal out
        if dim == len(shape):
            out += storage.data[at * size:(at + 1) * size]
            return
        for i in range(shape[dim]):
            walk(dim + 1, at + i * stride[dim])
    walk(0, offset)
    return out


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (storage, offset, shape, stride) in tensors.items():
        raw = plain_bytes(storage, offset, shape, stride)
        header[name] = {"dtype": storage.dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def good_files(out):
    """The same tensors in every protocol and zip dialect."""
    storages = [Storage(dtype, str(i), 12) for i, dtype in enumerate(SIZES)]
    f32, half = storages[0], storages[1]
    odd = Storage("C64", "10", 4)
    tensors = collections.OrderedDict()
    for storage in storages:
        tensors["all." + storage.dtype] = (storage, 0, (3, 4), (4, 1))
    tensors["shared"] = (f32, 0, (12,), (1,))
    tensors["part"] = (f32, 3, (2, 3), (4, 1))
    tensors["turned"] = (half, 0, (4, 3), (1, 4))
    tensors["spread"] = (f32, 2, (5, 2), (0, 3))
    tensors["scalar"] = (f32, 7, (), ())
    tensors["none"] = (half, 0, (0, 3), (3, 1))
    top = collections.OrderedDict((name, tensor(*what)) for name, what in tensors.items())
    nested = {"outer/inner": (f32, 1, (2,), (1,)), "outer/7/0": (f32, 4, (1,), (1,)),
              "outer/7/1": (f32, 5, (1,), (1,)), "outer/parameter": (half, 2, (2, 2), (2, 1)),
              "outer/typed": (half, 0, (3,), (2,))}
    tensors.update(nested)
    top["outer"] = {
        "inner": tensor(*nested["outer/inner"]),
        7: [tensor(*nested["outer/7/0"]), tensor(*nested["outer/7/1"]), None, 2.5],
        "parameter": Call(PARAMETER, (tensor(*nested["outer/parameter"]), True,
                                      collections.OrderedDict())),
        "typed": Call(FROM_TYPE, (REBUILD_OLD, sys.modules["torch"].Tensor,
                                  (half, 0, (3,), (2,)), {"requires_grad": False})),
        ("a", "pair"): 1, None: "none", "yes": True, "no": False, "big": 1 << 200,
        "negative": -(1 << 40), "bytes": b"\0\1\2", "set": {1}, "frozen": frozenset([1]),
        "long text": "x" * 300, "many": list(range(-3, 300)),
        "object": Call(UNKNOWN, (1, "x"), {"field": tensor(f32, 0, (1,), (1,))}),
        "complex": tensor(odd, 0, (4,), (1,)),
        "seven": tensor(f32, 0, (1,) * 7, (1,) * 7),
    }
    storages.append(odd)
    for protocol in (2, 3, 4, 5):
        write_torch(os.path.join(out, "protocol%d.pth" % protocol), top, storages, protocol)
    # An OrderedDict with attributes, as state_dict() gives: BUILD follows.
    data = dump(top, 2)
    assert data.endswith(b".")
    with_state = data[:-1] + b"}b."
    entries = [("data.pkl", with_state), ("byteorder", b"little"), (".data/serialization_id", b"0")]
    entries += [("data/" + s.key, s.data) for s in storages]
    raw_zip(os.path.join(out, "streamed.pth"), entries, False)
    raw_zip(os.path.join(out, "zip64.pth"), entries, True)
    write_safetensors(os.path.join(out, "tensors.safetensors"), tensors)


def bad_files(out):
    listed = []
    storage = Storage("F32", "0", 24)
    good = {"w": tensor(storage, 0, (6, 4), (4, 1))}

    def bad(name, wrong, value, part, storages=(storage,), **kwargs):
        write_torch(os.path.join(out, name), value, storages, **kwargs)
        listed.append({"file": name, "wrong": wrong, "must": "refuse the file", "says": part})

    def bad_bytes(name, wrong, data, part):
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)
        listed.append({"file": name, "wrong": wrong, "must": "refuse the file", "says": part})

    whole = os.path.join(out, "whole.tmp")
    write_torch(whole, good, [storage])
    with open(whole, "rb") as file:
        good_zip = file.read()
    os.remove(whole)

    bad("deflated.pth", "all entries are deflated", good, "compressed",
        compression=zipfile.ZIP_DEFLATED)
    bad("big_endian.pth", "byteorder is big", good, "little-endian", more=[("byteorder", b"big")])
    bad("torchscript.pth", "a TorchScript program", good, "TorchScript",
        more=[("constants.pkl", b"\x80\x02).")])
    write_zip(os.path.join(out, "no_pickle.pth"), [("readme.txt", b"x")])
    listed.append({"file": "no_pickle.pth", "wrong": "no data.pkl", "must": "refuse the file",
                   "says": "no data.pkl"})
    bad("only_object.pth", "an object and no tensor", Call(UNKNOWN, (), {"w": good["w"]}),
        "training_code.Config")
    bad("only_tensor.pth", "a tensor without a name", good["w"], "without a name")
    bad("negative_stride.pth", "a negative stride", {"w": tensor(storage, 23, (6,), (-1,))},
        "negative")
    bad("negative_size.pth", "a negative size", {"w": tensor(storage, 0, (-1, -1), (1, 1))},
        "negative")
    bad("float_size.pth", "a size that is no integer", {"w": tensor(storage, 0, (1.0,), (1,))},
        "without storage")
    bad("strides_differ.pth", "two sizes, one stride", {"w": tensor(storage, 0, (6, 4), (4,))},
        "without storage")
    bad("expanded_huge.pth", "2^62 elements of a stride of 0",
        {"w": tensor(storage, 0, (1 << 62,), (0,))}, "64 bits")
    bad("two_names.pth", "two tensors of one name",
        {1: good["w"], "1": good["w"]}, "named '1'")
    bad("control_name.pth", "a name with an escape sequence", {"\x1b[2J": good["w"]}, "printable")
    bad("long_name.pth", "a name of 5,000 bytes", {"n" * 5000: good["w"]}, "longer than")
    cycle = []
    cycle.append(cycle)
    bad("cycle.pth", "a list that holds itself", {"w": good["w"], "c": cycle}, "nested")
    level = [good["w"]]
    for _ in range(28):
        level = [level, level]
    bad("doubling.pth", "2^28 tensors by sharing", {"w": level}, "far more tensors")
    level = []
    for _ in range(28):
        level = [level, level]
    bad("doubling_empty.pth", "2^28 empty lists by sharing", {"w": level}, "more values")
    bad("protocol0.pth", "protocol 0", pickle.dumps({"w": 1}, 0), "protocol 2 to 5")
    bad("protocol6.pth", "protocol 6", b"\x80\x06N.", "protocol 2 to 5")
    bad("empty_pickle.pth", "no bytes", b"", "protocol 2 to 5")
    bad("extension.pth", "a code of the extension registry", b"\x80\x02\x82\x01.", "opcode 0x82")
    bad("text_persistent.pth", "PERSID", b"\x80\x02P0\n.", "opcode 0x50")
    bad("memo_bomb.pth", "memo index 2^32 - 1", b"\x80\x02Nr\xff\xff\xff\xff.", "memo index")
    bad("memo_unfilled.pth", "memo index not filled", b"\x80\x02h\x05.", "memo index")
    bad("text_length.pth", "a text of 4 GiB", b"\x80\x02X\xff\xff\xff\xffab.", "ends within")
    bad("bytes_length.pth", "a text of 2^63 bytes", b"\x80\x04\x8d" + b"\xff" * 8 + b"ab.",
        "ends within")
    bad("frame_length.pth", "a frame longer than the file", b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
        "within a frame")
    bad("no_stop.pth", "no STOP", b"\x80\x02N", "ends within")
    bad("stack_empty.pth", "SETITEM on nothing", b"\x80\x02s.", "finds no value")
    bad("below_mark.pth", "TUPLE1 reaches below a mark", b"\x80\x02N(\x85.", "finds no value")
    bad("no_mark.pth", "SETITEMS without a mark", b"\x80\x02}u.", "finds no mark")
    bad("odd_dict.pth", "a key without value", b"\x80\x02}(Nu.", "added to something")
    bad("set_on_int.pth", "SETITEM on a number", b"\x80\x02K\x01K\x01K\x01s.", "added to something")
    bad("left_over.pth", "values left at STOP", b"\x80\x02NN.", "left over")
    bad("storage_id.pth", "a persistent id that is a number", b"\x80\x02K\x01Q.", "no storage")
    bad("call_on_list.pth", "arguments that are a list",
        b"\x80\x02ccollections\nOrderedDict\n]R.", "no tuple")
    bad_bytes("two_roots.pth", "two data.pkl", two_roots(good, storage), "more than one")
    bad_bytes("encrypted.pth", "flag bit 0 set", patch(good_zip, 8, b"\1\0"), "encrypted")
    bad_bytes("two_discs.pth", "disc number 1", patch_end(good_zip, 4, b"\1\0"), "several parts")
    bad_bytes("directory_offset.pth", "directory past the file",
              patch_end(good_zip, 16, b"\0\0\0\x7f"), "not within")
    bad_bytes("directory_count.pth", "more entries than its bytes hold",
              patch_end(good_zip, 8, b"\xff\xf0\xff\xf0"), "shorter than its entries")
    bad_bytes("entry_offset.pth", "an entry past the file", patch(good_zip, 42, b"\xf0\xff\0\0"),
              "not where")
    bad_bytes("entry_size.pth", "an entry of 4 GB", patch(good_zip, 20, b"\xfe\xff\xff\xff" * 2),
              "ends behind")
    bad_bytes("zip64_missing.pth", "a size that should stand in a zip64 field",
              patch(good_zip, 20, b"\xff\xff\xff\xff" * 2), "zip64")
    bad_bytes("cut.pth", "cut at 60%", good_zip[:len(good_zip) * 6 // 10], "cut short")
    bad_bytes("tar.pth", "a tar archive", b"x" * 257 + b"ustar\0" + b"0" * 300, "tar archive")
    bad_bytes("gzip.pth", "a gzip file", b"\x1f\x8b\x08\0" + b"\0" * 40, "gzip")
    bad_bytes("bare_pickle.pth", "a pickle without zip", dump({"w": 1}, 2), "bare pickle")
    listed.sort(key=lambda entry: entry["file"])
    with open(os.path.join(out, "bad.json"), "w") as file:
        json.dump({"files": listed}, file, indent=1)
        file.write("\n")


def two_roots(good, storage):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for root in ("a", "b"):
            info = zipfile.ZipInfo(root + "/data.pkl", (1980, 1, 1, 0, 0, 0))
            file.writestr(info, dump(good, 2))
    return out.getvalue()


def patch(data, at, new):
    """Change the directory's record of the first entry, data.pkl."""
    start = data.index(b"PK\1\2") + at
    return data[:start] + new + data[start + len(new):]


def patch_end(data, at, new):
    start = data.rindex(b"PK\5\6") + at
    return data[:start] + new + data[start + len(new):]


def main():
    out = sys.argv[1]
    os.makedirs(os.path.join(out, "bad"), exist_ok=True)
    good_files(out)
    bad_files(os.path.join(out, "bad"))


main()
