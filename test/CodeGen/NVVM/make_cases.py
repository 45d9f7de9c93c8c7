#!/usr/bin/env python3
"""Step functions for the conformance of targets: what a GPU computes is compared
with what the host computes from the same file.

    make_cases.py FOLDER [NAME...]   writes FOLDER/NAME.mlir, all cases by default
    make_cases.py --list             prints the names
    make_cases.py --joined           prints all cases in one, split by // -----

A case is one op or a short chain between mla.embedding and mla.lm_head, in the
plain form that the front end makes: `mla-compile CASE.mlir --synthetic-weights 1`
fuses it as it does a model. Caches take their format from --kv-cache-dtype.
"""
import itertools
import sys
from pathlib import Path

VOCAB = 128
FORMATS = ["bf16", "f16", "f32", "fp8_block", "nvfp4", "int4_g32"]
GROUPS = {"nvfp4": 16, "int4_g32": 32}  # what must divide the columns
SCALES = {
    "fp8_block": ["{}.weight_scale_inv"],
    "nvfp4": ["{}.weight_scale", "{}.weight_scale_2"],
    "int4_g32": ["{}.weight_scale"],
}


def rows(width, element="f32"):
    return f"tensor<?x{width}x{element}>"


class Step:
    """Builds one module. Values are (name, type); widths are read from types."""

    def __init__(self, width, table="bf16"):
        self.weights, self.lines, self.count = [], [], 0
        table = self.weight("model.embed_tokens", [VOCAB, width], table)
        self.ids = ("%ids", "tensor<?xi32>")
        self.batch = ("%batch", "!mla.batch")
        self.x = self.op("embedding", [self.ids, table], [rows(width)])

    def fresh(self):
        self.count += 1
        return f"%v{self.count}"

    def weight(self, name, shape, format="bf16", suffix=".weight"):
        """A weight; `name` with {} is a stack."""
        kind = f"!mla.weight<{'x'.join(map(str, shape))}x{format}>"
        symbol = "@" + name.removeprefix("model.").replace(".{}", "")
        packed = "_packed" if format == "int4_g32" else ""
        text = f'mla.weight {symbol} : {kind} from "{name}{suffix}{packed}"'
        if format in SCALES:
            scales = ", ".join(f'"{s.replace("{}", name)}"' for s in SCALES[format])
            text += f" scales [{scales}]"
        self.weights.append(text)
        value = self.fresh()
        self.lines.append(f"{value} = mla.get_weight {symbol} : {kind}")
        return value, kind

    def op(self, name, operands, results, attributes="", infix=None):
        """Appends an op of rows; `infix` replaces the list of operands."""
        names = infix or ", ".join(v for v, _ in operands)
        values = [self.fresh() for _ in results]
        types = ", ".join(t for _, t in operands)
        out = results[0] if len(results) == 1 else f"({', '.join(results)})"
        self.lines.append(
            f"{', '.join(values)} = mla.{name} {names}{attributes} : ({types}) -> {out}"
        )
        made = list(zip(values, results))
        return made[0] if len(made) == 1 else made

    @staticmethod
    def width(value):
        return int(value[1].split("x")[1])

    def norm(self, x, name, format="bf16", eps=1e-6):
        weight = self.weight(name, [self.width(x)], format)
        return self.op("rms_norm", [x, weight], [x[1]], f" {{eps = {eps:e}}}")

    def linear(self, x, name, out, format="bf16"):
        weight = self.weight(name, [out, self.width(x)], format)
        return self.op("linear", [x, weight], [rows(out)])

    def same(self, name, *operands):
        value = self.fresh()
        names = ", ".join(v for v, _ in operands)
        self.lines.append(f"{value} = mla.{name} {names} : {operands[0][1]}")
        return value, operands[0][1]

    def add(self, a, b):
        return self.same("add", a, b)

    def mlp(self, x, name, inner, format, down_format=None):
        gate = self.linear(x, f"{name}.gate_proj", inner, format)
        up = self.linear(x, f"{name}.up_proj", inner, format)
        return self.linear(self.same("swiglu", gate, up), f"{name}.down_proj",
                           self.width(x), down_format or format)

    def rotary(self, width, factor=1.0):
        frequencies = ", ".join(f"{10000.0 ** (-i / (width // 2)):e}"
                                for i in range(width // 2))
        return self.op("rotary_embedding", [self.batch], [rows(width)],
                       f" {{factor = {factor:e} : f64, frequencies = array<f32: {frequencies}>}}")

    def rope(self, x, rotary, head, offset, interleaved):
        return self.op("rope", [x, rotary], [x[1]],
                       f" {{head_dim = {head} : i64, interleaved = "
                       f"{str(interleaved).lower()}, offset = {offset} : i64}}")

    def attention(self, x, heads, nope, rope, v, latent, q_rank=0, interleaved=True,
                  format="bf16", kv_b="bf16", name="model.layers.0.self_attn",
                  cos_sin=None):
        """A layer's attention as Hugging Face has it, without the residual."""
        cos_sin = cos_sin or self.rotary(rope)
        if q_rank:
            q = self.norm(self.linear(x, f"{name}.q_a_proj", q_rank, format),
                          f"{name}.q_a_layernorm")
            q = self.linear(q, f"{name}.q_b_proj", heads * (nope + rope), format)
        else:
            q = self.linear(x, f"{name}.q_proj", heads * (nope + rope), format)
        q = self.rope(q, cos_sin, nope + rope, nope, interleaved)
        down = self.linear(x, f"{name}.kv_a_proj_with_mqa", latent + rope, format)
        kv, key = self.op("split", [down], [rows(latent), rows(rope)])
        kv = self.norm(kv, f"{name}.kv_a_layernorm")
        kv = self.linear(kv, f"{name}.kv_b_proj", heads * (nope + v), kv_b)
        key = self.rope(key, cos_sin, rope, 0, interleaved)
        width = heads * (nope + v) + rope
        kind = f"!mla.cache<expanded, {width}xf32>"
        symbol = f"@{name.removeprefix('model.')}.kv"
        self.weights.append(f"mla.cache {symbol} : {kind}")
        cache = self.fresh()
        self.lines.append(f"{cache} = mla.get_cache {symbol} : {kind}")
        new = self.op("cache_write", [(cache, kind), self.batch, kv, key], [kind])
        scale = (nope + rope) ** -0.5
        y = self.op("attention", [q, new, self.batch], [rows(heads * v)],
                    f" {{heads = {heads} : i64, nope = {nope} : i64, rope = {rope} : i64,"
                    f" scale = {scale:e} : f64, v = {v} : i64}}")
        return self.linear(y, f"{name}.o_proj", self.width(x), format)

    def experts(self, x, route, experts, inner, formats, router="bf16", bias="f32",
                shared=0, name="model.layers.0.mlp", keep_logits=False):
        topk, groups, topk_groups, scoring, method, normalize = route
        width = self.width(x)
        logits = self.linear(x, f"{name}.gate", experts, router)
        text = (f"#mla.routing<topk = {topk}, groups = {groups}, topk_groups = "
                f"{topk_groups}, scoring = {scoring}, method = {method}, normalize = "
                f"{str(normalize).lower()}, scale = 2.500000e+00 : f64>")
        operands, infix = [logits], f"{logits[0]}"
        if method == "noaux_tc":
            operands.append(self.weight(f"{name}.gate.e_score_correction_bias",
                                        [experts], bias, suffix=""))
            infix += f" bias {operands[1][0]}"
        indices, weights = self.op(
            "route", operands, [rows(topk, "i32"), rows(topk)],
            infix=f"{infix} routing {text.removeprefix('#mla.routing')}")
        up, down = formats
        stacks = [self.weight(f"{name}.experts.{{}}.{part}_proj",
                              [experts, inner, width] if part != "down"
                              else [experts, width, inner],
                              down if part == "down" else up)
                  for part in ("gate", "up", "down")]
        y = self.op("experts", [x, indices, weights] + stacks, [x[1]])
        if shared:
            y = self.add(y, self.mlp(x, f"{name}.shared_experts", shared, up, down))
        return (y, logits) if keep_logits else y

    def module(self, result, head="bf16"):
        weight = self.weight("lm_head", [VOCAB, self.width(result)], head)
        logits = self.op("lm_head", [result, weight, self.batch], [rows(VOCAB)])
        lines = "\n".join("    " + line for line in self.lines)
        weights = "\n".join("  " + line for line in self.weights)
        return (f"module {{\n{weights}\n"
                f"  func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> {rows(VOCAB)} {{\n"
                f"{lines}\n    return {logits[0]} : {rows(VOCAB)}\n  }}\n}}\n")


def row_cases():
    for table, norm in itertools.product(["f32", "bf16", "f16"], repeat=2):
        step = Step(77, table)
        yield f"norm_{table}_{norm}", step.module(step.norm(step.x, "model.norm", norm))
    step = Step(24)
    first, second = step.op("split", [step.x], [rows(16), rows(8)])
    rotary = step.rotary(6, 1.25)
    turned = step.rope(first, rotary, 8, 1, False)
    turned = step.rope(turned, rotary, 16, 10, True)
    y = step.linear(turned, "model.a", 8)
    yield "split_rope_swiglu", step.module(step.same("swiglu", y, second))


def linear_cases():
    shapes = [(1, 1), (77, 40), (96, 33), (160, 130), (1000, 17), (2048, 515),
              (7168, 2112)]
    for format, (columns, out) in itertools.product(FORMATS, shapes):
        if columns % GROUPS.get(format, 1):
            continue
        step = Step(columns)
        y = step.linear(step.norm(step.x, "model.norm"), "model.a", out, format)
        yield f"linear_{format}_{columns}_{out}", step.module(y)
    for format in FORMATS:
        step = Step(96)
        yield f"head_{format}", step.module(step.norm(step.x, "model.norm"), format)
        step = Step(160)
        y = step.mlp(step.norm(step.x, "model.norm"), "model.mlp", 288, format)
        yield f"mlp_{format}", step.module(step.add(step.x, y))
    step = Step(160)
    y = step.mlp(step.norm(step.x, "model.norm"), "model.mlp", 200, "nvfp4", "bf16")
    yield "mlp_nvfp4_bf16", step.module(step.add(step.x, y))
    step = Step(77)
    y = step.mlp(step.norm(step.x, "model.norm"), "model.mlp", 45, "bf16")
    yield "mlp_odd", step.module(step.add(step.x, y))


def moe_cases():
    routes = {
        "kimi": (8, 1, 1, "sigmoid", "noaux_tc", True),
        "v3": (8, 8, 4, "sigmoid", "noaux_tc", True),
        "v2": (6, 8, 3, "softmax", "group_limited_greedy", False),
        "lite": (6, 1, 1, "softmax", "greedy", False),
        "softmax": (2, 4, 2, "softmax", "noaux_tc", True),
        "greedy": (3, 1, 1, "sigmoid", "greedy", True),
    }
    for name, route in routes.items():
        step = Step(96)
        y = step.experts(step.norm(step.x, "model.norm"), route, 32, 64,
                         ("bf16", "bf16"), shared=64)
        yield f"moe_{name}", step.module(step.add(step.x, y))
    for up, down in [("fp8_block", "fp8_block"), ("nvfp4", "nvfp4"),
                     ("int4_g32", "int4_g32"), ("nvfp4", "bf16")]:
        for shared in (0, 96):
            step = Step(160)
            y = step.experts(step.norm(step.x, "model.norm"), routes["kimi"], 24, 96,
                             (up, down), shared=shared)
            name = f"moe_{up}_{down}" + ("_shared" if shared else "")
            yield name, step.module(step.add(step.x, y))
    sizes = {"one_expert": (1, 1), "all_chosen": (7, 7), "384": (384, 8),
             "1024": (1024, 32)}
    for name, (experts, topk) in sizes.items():
        step = Step(64)
        route = (topk, 1, 1, "sigmoid", "noaux_tc", True)
        y = step.experts(step.norm(step.x, "model.norm"), route, experts, 32,
                         ("bf16", "bf16"), bias="bf16")
        yield f"moe_{name}", step.module(step.add(step.x, y))
    step = Step(77)
    y = step.experts(step.norm(step.x, "model.norm"), routes["greedy"], 5, 45,
                     ("bf16", "bf16"), router="f32", shared=19)
    yield "moe_odd_f32_router", step.module(step.add(step.x, y))
    # The logits are used twice, so route and experts stay apart.
    step = Step(64)
    y, logits = step.experts(step.norm(step.x, "model.norm"), routes["lite"], 16, 32,
                             ("bf16", "bf16"), keep_logits=True)
    y = step.add(y, step.linear(logits, "model.a", 64))
    yield "route_experts_apart", step.module(y)


def attention_cases():
    def case(width, *arguments, **named):
        step = Step(width)
        y = step.attention(step.norm(step.x, "model.norm"), *arguments, **named)
        return step.module(step.add(step.x, y))

    for heads in (1, 2, 3, 8, 16, 20, 64, 128):
        yield f"attention_{heads}", case(128, heads, 128, 64, 128, 512)
    yield "attention_q_lora", case(256, 16, 128, 64, 128, 512, q_rank=192)
    yield "attention_glm", case(256, 20, 192, 64, 256, 512, q_rank=96)
    yield "attention_halves", case(128, 8, 128, 64, 128, 512, interleaved=False)
    yield "attention_small", case(64, 4, 16, 16, 16, 32)
    yield "attention_odd", case(77, 3, 10, 6, 7, 21, interleaved=False)
    yield "attention_odd_lora", case(60, 5, 12, 4, 9, 28, q_rank=27)
    for format in ("fp8_block", "nvfp4", "int4_g32"):
        yield f"attention_{format}", case(256, 8, 128, 64, 128, 512, q_rank=128,
                                          format=format)
    for format in ("f32", "fp8_block"):
        yield f"attention_kv_b_{format}", case(128, 8, 128, 64, 128, 512, kv_b=format)
    # Two layers with a rotary embedding in common.
    step = Step(128)
    cos_sin = step.rotary(64)
    x = step.x
    for layer in range(2):
        y = step.norm(x, f"model.layers.{layer}.input_layernorm")
        y = step.attention(y, 8, 128, 64, 128, 512, cos_sin=cos_sin,
                           name=f"model.layers.{layer}.self_attn")
        x = step.add(x, y)
    yield "attention_two_layers", step.module(step.norm(x, "model.norm"))


def all_cases():
    return dict(itertools.chain(row_cases(), linear_cases(), moe_cases(),
                                attention_cases()))


def main(arguments):
    cases = all_cases()
    if arguments == ["--list"]:
        print("\n".join(cases))
        return 0
    if arguments == ["--joined"]:
        print("// -----\n".join(f"// {name}\n{text}" for name, text in cases.items()))
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder, names = Path(arguments[0]), arguments[1:] or list(cases)
    unknown = [name for name in names if name not in cases]
    if unknown:
        print(f"make_cases.py: no case is called {', '.join(unknown)}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.mlir").write_text(cases[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
