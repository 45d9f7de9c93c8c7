#!/usr/bin/env python3
"""What the graphs of all ranks compute together, in float64: the oracle of mla-distribute.

  ranks.py FOLDER RANKS [--tokens N] [--ids 1,2,3] [--graphs 0,0]

FOLDER has a config.json, weights if golden.json names no seed, and a golden.json. Takes
the graphs after the stage distribute, of the model as one and of each rank, from
mla-compile, and evaluates each op by the formula of its description on every rank, then
the next one; a collective sees the values of all ranks. Fails unless the parts of each
weight are the whole of it, every rank has the logits of the model as one within 1e-12,
and these are those of the golden within 1e-5 (not asked with --ids). --graphs gives
ranks other graphs than their own, which must fail. Plain Python: the tests run it.
"""

import argparse
import array
import json
import math
import os
import re
import struct
import subprocess
import sys
from operator import mul

# The IR ----------------------------------------------------------------------

LINE = re.compile(r'\s*(?:%(\w+)(?::(\d+))? = )?"([\w.]+)"\(([^)]*)\)(.*)$')


def split(text, separator=","):
    """Cuts at separators that stand in no bracket or string."""
    parts, depth, quoted, begin = [], 0, False, 0
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "<[{(":
            depth += 1
        elif not quoted and c in ">]})":
            depth -= 1
        elif not quoted and depth == 0 and c == separator:
            parts.append(text[begin:i].strip())
            begin = i + 1
    return [part for part in parts + [text[begin:].strip()] if part]


def dictionary(text):
    pairs = (part.partition(" = ") for part in split(text))
    return {key: attribute(value) if value else True for key, _, value in pairs}


def attribute(text):
    """Numbers, strings, symbols, arrays of numbers, structs; else the text."""
    if text.startswith('"'):
        return text[1:-1]
    if text.startswith("@"):
        return text[1:].strip('"')
    if text.startswith("array<"):
        return [attribute(v) for v in split(text.partition(":")[2][:-1])]
    if text.startswith("#mla."):
        return dictionary(text.partition("<")[2][:-1])
    if text in ("true", "false"):
        return text == "true"
    number, _, kind = text.partition(" : ")
    if number.startswith("0x") and kind.startswith("f"):
        form = {"f32": ">f", "f64": ">d"}[kind]
        return struct.unpack(form, bytes.fromhex(number[2:]))[0]
    try:
        return int(number)
    except ValueError:
        pass
    try:
        return float(number)
    except ValueError:
        return text


class Op:
    def __init__(self, match):
        result, count, self.name, operands, rest = match.groups()
        self.operands = [o.strip().lstrip("%") for o in operands.split(",") if o]
        self.results = []
        if result:
            self.results = [result]
            if count:
                self.results = [f"{result}#{i}" for i in range(int(count))]
        self.attributes = {}
        if rest.startswith(" <{"):
            self.attributes = dictionary(rest[3 : rest.index("}>")])
        self.types = rest

    def __getattr__(self, name):
        return self.attributes[name]

    def segments(self):
        """The operands by the op's groups, of which some are optional."""
        sizes, begin = self.operandSegmentSizes, 0
        for size in sizes:
            yield self.operands[begin : begin + size]
            begin += size


class Module:
    """A module in MLIR's generic form: its weights, and the ops of its function."""

    def __init__(self, lines):
        self.weights, self.body = {}, []
        inside = False
        for line in lines:
            inside = inside or "^bb0(" in line
            match = LINE.match(line)
            if match and match[3] == "mla.weight":
                op = Op(match)
                self.weights[op.sym_name] = op
            elif match and inside:
                self.body.append(Op(match))
        assert self.body and self.body[-1].name == "func.return"


def compiled(command, *options):
    """The module that mla-compile makes."""
    command = [*command, "--stop-after=distribute", *options]
    module = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    generic = subprocess.run(
        ["mla-opt", "--mlir-print-op-generic"],
        input=module, check=True, stdout=subprocess.PIPE,
    ).stdout
    return Module(generic.decode().splitlines())


# Weights ---------------------------------------------------------------------


class Synthetic:
    """docs/synthetic.md."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, name, shape):
        mask = 2**64 - 1
        x = 0xCBF29CE484222325
        for byte in name.encode():
            x = ((x ^ byte) * 0x100000001B3) & mask
        x += self.seed * 0x9E3779B97F4A7C15
        bias = name.endswith("e_score_correction_bias")
        factor = 0.1
        if len(shape) == 2:
            wide = name == "model.embed_tokens.weight"
            factor = 1 if wide else f32(math.sqrt(3 / shape[1]))
        offset = 1 if len(shape) == 1 and not name.endswith("bias") else 0
        values = []
        for i in range(math.prod(shape)):
            z = (x + i + 0x9E3779B97F4A7C15) & mask
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            z ^= z >> 31
            u = (z >> 40) * 2.0**-23 - 1
            value = f32(offset + factor * u)
            values.append(value if bias else bf16(value))
        return values


class Stored:
    """One safetensors file."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        (size,) = struct.unpack_from("<Q", self.data)
        self.header = json.loads(self.data[8 : 8 + size])
        self.begin = 8 + size

    def __call__(self, name, shape):
        info = self.header[name]
        assert info["shape"] == list(shape), (name, info["shape"], shape)
        begin, end = (self.begin + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            bits = array.array("H", self.data[begin:end])
            words = array.array("I", (b << 16 for b in bits)).tobytes()
            return list(array.array("f", words))
        return list(array.array({"F32": "f", "F64": "d"}[info["dtype"]], self.data[begin:end]))


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16(value):
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


class Parts:
    """Matrices of declarations; a tensor is read or made once for all ranks."""

    def __init__(self, source):
        self.source, self.tensors = source, {}

    def __call__(self, op):
        shape = [int(d) for d in re.findall(r"(\d+)x", op.type)]
        if len(shape) < 3:
            return self.part(op, op.tensor, shape)
        return [
            self.part(op, op.tensor.replace("{}", str(i)), shape[1:])
            for i in range(shape[0])
        ]

    def part(self, op, name, shape):
        cut = op.attributes.get("slice")
        whole = [cut["rows"], cut["columns"]] if cut else shape
        if name not in self.tensors:
            values, columns = self.source(name, whole), whole[-1]
            self.tensors[name] = [
                values[i : i + columns] for i in range(0, len(values), columns)
            ]
        rows = self.tensors[name]
        if cut:
            first, column = cut.get("first_row", 0), cut.get("first_column", 0)
            rows = [
                rows[first + b * cut.get("row_stride", 0) + i][column : column + shape[-1]]
                for b in range(cut.get("blocks", 1))
                for i in range(cut["block_rows"])
            ]
        assert [len(rows), len(rows[0])] == (shape if len(shape) == 2 else [1] + shape)
        return rows if len(shape) == 2 else rows[0]


def check_tiling(ranks):
    """The parts of each weight cover it, and none of it twice."""
    cut = 0
    for name in ranks[0].weights:
        parts = [module.weights[name] for module in ranks]
        slices = [part.attributes.get("slice") for part in parts]
        if not any(slices):
            continue
        cut += 1
        by_rows = parts[0].slice["block_rows"] != parts[0].slice["rows"]
        edge = 0
        for part, place in zip(parts, slices):
            size = [int(d) for d in re.findall(r"(\d+)x", part.type)][-2 if by_rows else -1]
            first = place.get("first_row" if by_rows else "first_column", 0)
            assert first == edge, f"{name}: expected a part from {edge} on, found {first}"
            edge += size
        all_of_it = slices[0]["rows" if by_rows else "columns"]
        assert edge == all_of_it, f"{name}: parts end at {edge} of {all_of_it}"
    return cut


# The ops ---------------------------------------------------------------------


def dot(a, b):
    return sum(map(mul, a, b))


def linear(x, matrix):
    return [[dot(row, w) for w in matrix] for row in x]


def add(*rows):
    return [[sum(values) for values in zip(*same)] for same in zip(*rows)]


def silu(v):
    return v / (1 + math.exp(-v))


def gated(x, gate, up):
    return [
        [silu(g) * u for g, u in zip(*pair)]
        for pair in zip(linear(x, gate), linear(x, up))
    ]


def rms_norm(row, weight, eps):
    scale = 1 / math.sqrt(dot(row, row) / len(row) + eps)
    return [v * scale * w for v, w in zip(row, weight)]


def layer_norm(row, weight, bias, eps):
    mean = sum(row) / len(row)
    row = [v - mean for v in row]
    return [v + b for v, b in zip(rms_norm(row, weight, eps), bias)]


def rotate(values, rotary, interleaved):
    half = len(values) // 2
    cos, sin = rotary[:half], rotary[half:]
    first, second = values[:half], values[half:]
    if interleaved:
        first, second = values[0::2], values[1::2]
    return [a * c - b * s for a, b, c, s in zip(first, second, cos, sin)] + [
        b * c + a * s for a, b, c, s in zip(first, second, cos, sin)
    ]


def heads_of(row, count):
    width = len(row) // count
    return [row[i : i + width] for i in range(0, len(row), width)]


def flat(lists):
    return [value for part in lists for value in part]


def columns_of(matrix):
    return list(zip(*matrix))


def best(scores, count):
    """The places of the best, of equals the lower first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def attend(op, q, cache, selected):
    out = []
    for t, row in enumerate(q):
        places = [p for p in selected[t] if p >= 0] if selected else range(t + 1)
        heads = []
        for head in heads_of(row, op.heads):
            scores = [op.scale * dot(head, cache[p]) for p in places]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            total = sum(weights)
            values = columns_of([cache[p][: op.kv_lora] for p in places])
            heads.append([dot(weights, v) / total for v in values])
        out.append(flat(heads))
    return out


def choose(op, q, weights, keys):
    out = []
    for t, row in enumerate(q):
        scores = [
            op.scale
            * sum(
                w * max(dot(head, keys[p]), 0)
                for w, head in zip(weights[t], heads_of(row, op.heads))
            )
            for p in range(t + 1)
        ]
        chosen = best(scores, op.topk)
        out.append(chosen + [-1] * (op.topk - len(chosen)))
    return out


def route(logits, bias, how):
    if how["scoring"] == "sigmoid":
        scores = [1 / (1 + math.exp(-v)) for v in logits]
    else:
        scores = [math.exp(v - max(logits)) for v in logits]
        scores = [s / sum(scores) for s in scores]
    ranking = [s + b for s, b in zip(scores, bias)] if bias else list(scores)
    if how["method"] != "greedy" and how["groups"] > 1:
        members = 2 if how["method"] == "noaux_tc" else 1
        groups = heads_of(ranking, how["groups"])
        values = [sum(sorted(g)[-members:]) for g in groups]
        kept = best(values, how["topk_groups"])
        for i, group in enumerate(groups):
            if i not in kept:
                groups[i] = [-math.inf] * len(group)
        ranking = flat(groups)
    chosen = best(ranking, how["topk"])
    weights = [scores[e] for e in chosen]
    if how["normalize"]:
        weights = [w / (sum(weights) + 1e-20) for w in weights]
    return chosen, [w * how["scale"] for w in weights]


def experts(x, chosen, weights, gate, up, down):
    out = []
    for row, numbers, factors in zip(x, chosen, weights):
        parts = []
        for e, factor in zip(numbers, factors):
            (y,) = linear(gated([row], gate[e], up[e]), down[e])
            parts.append([[factor * v for v in y]])
        out += add(*parts)
    return out


class Rank:
    """The values of one rank."""

    def __init__(self, module, parts, ids):
        self.module, self.parts, self.ids = module, parts, ids
        self.values = {"arg0": ids, "arg1": None}

    def run(self, op):
        v = [self.values[name] for name in op.operands]
        a = op.attributes
        tokens = range(len(self.ids))
        match op.name.removeprefix("mla."):
            case "get_weight":
                return [self.parts(self.module.weights[a["name"]])]
            case "get_cache":
                return [None]
            case "rotary_embedding":
                angles = [[t * f for f in a["frequencies"]] for t in tokens]
                return [
                    [[a["factor"] * fn(x) for fn in (math.cos, math.sin) for x in row] for row in angles]
                ]
            case "embedding":
                return [[v[1][i] for i in v[0]]]
            case "rms_norm":
                return [[rms_norm(row, v[1], a["eps"]) for row in v[0]]]
            case "layer_norm":
                return [[layer_norm(row, v[1], v[2], a["eps"]) for row in v[0]]]
            case "linear" | "lm_head":
                return [linear(v[0], v[1])]
            case "joined_linear":
                return [linear(v[0], w) for w in v[1:]]
            case "gated_linear":
                return [gated(*v)]
            case "add":
                return [add(*v)]
            case "rope":
                return [[self.rope(row, cs, a) for row, cs in zip(v[0], v[1])]]
            case "cache_write":
                return [[flat(parts) for parts in zip(*v[2:])]]
            case "latent_cache_write":
                latent = len(v[1])
                return [[
                    rms_norm(row[:latent], v[1], a["eps"])
                    + rotate(row[latent:], cs, a["interleaved"])
                    for row, cs in zip(v[0], v[2])
                ]]
            case "absorb_query":
                return [[self.absorb(row, v[1], cs, a) for row, cs in zip(v[0], v[2])]]
            case "latent_attention":
                return [attend(op, v[0], v[1], v[3] if len(v) > 3 else None)]
            case "expand_value":
                per_head = a["nope"] + a["v"]
                return [[
                    flat(
                        linear([x], v[1][h * per_head + a["nope"] : (h + 1) * per_head])[0]
                        for h, x in enumerate(heads_of(row, a["heads"]))
                    )
                    for row in v[0]
                ]]
            case "indexer":
                return [choose(op, v[0], v[1], v[2])]
            case "route":
                pairs = [route(row, v[1] if len(v) > 1 else None, a["routing"]) for row in v[0]]
                return [list(part) for part in zip(*pairs)]
            case "experts":
                return [experts(*v)]
            case "moe":
                x, router, bias, gate, up, down, shared = (
                    [self.values[name] for name in names] for names in op.segments()
                )
                pairs = [
                    route(row, bias[0] if bias else None, a["routing"])
                    for row in linear(x[0], router[0])
                ]
                chosen, weights = zip(*pairs)
                out = experts(x[0], chosen, weights, gate[0], up[0], down[0])
                if shared:
                    inner = gated(x[0], shared[0], shared[1])
                    out = add(out, linear(inner, shared[2]))
                return [out]
        sys.exit(f"no formula for {op.name}")

    @staticmethod
    def rope(row, rotary, a):
        out = []
        begin, end = a["offset"], a["offset"] + len(rotary)
        for head in heads_of(row, len(row) // a["head_dim"]):
            turned = rotate(head[begin:end], rotary, a["interleaved"])
            out += head[:begin] + turned + head[end:]
        return out

    @staticmethod
    def absorb(row, kv_b, rotary, a):
        out, per_head, nope = [], a["nope"] + a["v"], a["nope"]
        for h, head in enumerate(heads_of(row, a["heads"])):
            keys = columns_of(kv_b[h * per_head : h * per_head + nope])
            out += [dot(head[:nope], column) for column in keys]
            out += rotate(head[nope:], rotary, a["interleaved"])
        return out


def evaluate(modules, parts, ids):
    """The logits of each rank, all ops run in step."""
    ranks = [Rank(module, parts, ids) for module in modules]
    for ops in zip(*(module.body for module in modules), strict=True):
        same = {(op.name, *op.operands, *op.results) for op in ops}
        assert len(same) == 1, f"the ranks run different ops: {same}"
        op = ops[0]
        if op.name == "func.return":
            return [rank.values[op.operands[0]] for rank in ranks]
        if op.name in ("mla.all_reduce", "mla.all_gather"):
            assert op.ranks == len(ranks), f"{op.ranks} ranks in {op.name}"
            values = [rank.values[op.operands[0]] for rank in ranks]
            if op.name == "mla.all_reduce":
                result = add(*values)
            else:
                result = [flat(same) for same in zip(*values)]
            for rank in ranks:
                rank.values[op.results[0]] = result
            continue
        for rank, own in zip(ranks, ops):
            rank.values.update(zip(own.results, rank.run(own), strict=True))
    sys.exit("no return")


def error(found, expected):
    differences = [a - b for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)]
    size = flat(expected)
    return math.sqrt(dot(differences, differences) / dot(size, size))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--tokens", type=int, default=18)
    parser.add_argument("--ids")
    parser.add_argument("--graphs")
    args = parser.parse_args()

    if args.ids:
        golden = {"ids": [int(i) for i in args.ids.split(",")], "logit_rows": []}
    else:
        with open(os.path.join(args.folder, "golden.json")) as f:
            golden = json.load(f)
    command = ["mla-compile", args.folder]
    if "seed" in golden:
        parts = Parts(Synthetic(golden["seed"]))
        command[1] = os.path.join(args.folder, "config.json")
        command.append(f"--synthetic-weights={golden['seed']}")
    else:
        parts = Parts(Stored(os.path.join(args.folder, "model.safetensors")))
    graphs = range(args.ranks)
    if args.graphs:
        graphs = [int(g) for g in args.graphs.split(",")]
    whole = compiled(command)
    ranks = [compiled(command, f"--ranks={args.ranks}", f"--rank={g}") for g in graphs]

    cut = 0 if args.graphs else check_tiling(ranks)
    ids = golden["ids"][: args.tokens]
    (expected,) = evaluate([whole], parts, ids)
    found = evaluate(ranks, parts, ids)
    apart = max(error(logits, expected) for logits in found)
    print(f"{args.ranks} ranks, {cut} weights in parts: {apart:.1e} from one rank")
    # Nothing shared would be right, too, but is not what is tested.
    good = apart < 1e-12 and (cut or args.graphs)
    kept = [i for i, row in enumerate(golden["logit_rows"]) if row < len(ids)]
    if kept:
        rows = [expected[golden["logit_rows"][i]] for i in kept]
        wrong = error(rows, [golden["logits"][i] for i in kept])
        print(f"{wrong:.1e} from the golden")
        good = good and wrong < 1e-5
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
