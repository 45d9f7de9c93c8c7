"""Copies a model folder with changes, for tests of what a checkpoint may hold.

    edit-model.py FROM TO [EDIT...]

Edits, in order:
    drop NAME                  remove a tensor
    set NAME DTYPE D0,D1,...   replace or add a tensor of zeros ("-": no dims)
    rename PREFIX              put PREFIX before every tensor's name
    config KEY JSON            set a key of config.json

`{}` in a NAME stands for the numbers of eight experts.
"""
import json
import math
import pathlib
import shutil
import struct
import sys

BITS = {"F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "U8": 8, "I32": 32, "I64": 64}

source, target, *edits = sys.argv[1:]
source, target = pathlib.Path(source), pathlib.Path(target)
shutil.rmtree(target, ignore_errors=True)
target.mkdir(parents=True)

raw = (source / "model.safetensors").read_bytes()
length = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8 : 8 + length])
data = raw[8 + length :]
header.pop("__metadata__", None)
tensors = {
    name: (info["dtype"], info["shape"], data[slice(*info["data_offsets"])])
    for name, info in header.items()
}
config = json.loads((source / "config.json").read_text())


def names(pattern):
    if "{}" not in pattern:
        return [pattern]
    return [pattern.replace("{}", str(number)) for number in range(8)]


edits = iter(edits)
for edit in edits:
    if edit == "drop":
        for name in names(next(edits)):
            del tensors[name]
    elif edit == "set":
        pattern, dtype, dims = next(edits), next(edits), next(edits)
        shape = [] if dims == "-" else [int(d) for d in dims.split(",")]
        for name in names(pattern):
            tensors[name] = (dtype, shape, bytes(math.prod(shape) * BITS[dtype] // 8))
    elif edit == "rename":
        prefix = next(edits)
        tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    elif edit == "config":
        key = next(edits)
        config[key] = json.loads(next(edits))
    else:
        sys.exit("unknown edit " + edit)

offset, header, body = 0, {}, []
for name, (dtype, shape, content) in tensors.items():
    end = offset + len(content)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
    body.append(content)
    offset = end
text = json.dumps(header).encode()
(target / "model.safetensors").write_bytes(
    struct.pack("<Q", len(text)) + text + b"".join(body)
)
(target / "config.json").write_text(json.dumps(config))
