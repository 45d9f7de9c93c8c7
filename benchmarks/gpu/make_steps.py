#!/usr/bin/env python3
"""Step functions whose launches are benchmarks of single kernels.

  make_steps.py FOLDER                  writes FOLDER/*.mlir
  make_steps.py FOLDER kimi_slice       FOLDER/kimi_slice/config.json, Kimi-K2.5-NVFP4
  make_steps.py FOLDER kimi_part        the first twelve layers of that
  make_steps.py FOLDER kimi_layers      four layers of it with 64 experts, in bf16
  make_steps.py FOLDER v3_slice         six layers of DeepSeek-V3, in FP8 blocks

Each is compiled like a model (mla-compile FILE.mlir --synthetic-weights 1), and
mla-run bench times all launches of a kernel as one graph: there are as many weights
of a shape as it takes to keep them out of the L2 cache, and as many caches.
"""

import json
import os
import sys

CONFIG = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "data", "configs",
    "nvidia--Kimi-K2.5-NVFP4_config.json")

V3 = os.path.join(os.path.dirname(CONFIG), "deepseek-ai--DeepSeek-V3_config.json")

ROTATE = 250e6  # bytes that a kernel's weights have together
BYTES = {"bf16": 2, "fp8_block": 1, "nvfp4": 0.5625, "int4_g32": 0.5625}
SHAPES = [  # rows, columns: Kimi-K2.5's linears on one rank of eight, and large ones
    (2112, 7168), (1536, 1536), (7168, 1024), (7168, 2304), (4608, 7168),
    (20480, 7168),
]
VOCAB = 64


def rows(width, element="f32"):
    return f"tensor<?x{width}x{element}>"


class Step:
    """A step function from ids to logits of VOCAB entries."""

    def __init__(self):
        self.declarations, self.body, self.names = [], [], set()

    def weight(self, name, shape, form):
        if name not in self.names:
            self.names.add(name)
            dims = "x".join(map(str, shape))
            parts = {"fp8_block": 1, "nvfp4": 2, "int4_g32": 1}.get(form, 0)
            hole = ".{}" if len(shape) == 3 else ""
            scales = ", ".join(f'"{name}{hole}.scale{i}"' for i in range(parts))
            text = f'mla.weight @{name} : !mla.weight<{dims}x{form}> from "{name}{hole}"'
            self.declarations.append(text + (f" scales [{scales}]" if parts else ""))
            self.body.append(f"%{name} = mla.get_weight @{name} : {self.type(shape, form)}")
        return f"%{name}"

    @staticmethod
    def type(shape, form):
        return f"!mla.weight<{'x'.join(map(str, shape))}x{form}>"

    def cache(self, name, width, form="f32"):
        self.declarations.append(f"mla.cache @{name} : !mla.cache<latent, {width}x{form}>")
        self.body.append(f"%{name} = mla.get_cache @{name} : !mla.cache<latent, {width}x{form}>")
        return f"%{name}"

    def embedding(self, name, width):
        w = self.weight(f"embed_{width}", (VOCAB, width), "bf16")
        self.body.append(
            f"{name} = mla.embedding %ids, {w} : (tensor<?xi32>, "
            f"{self.type((VOCAB, width), 'bf16')}) -> {rows(width)}")
        return name

    def linear(self, name, x, shape, form, weight):
        w = self.weight(weight, shape, form)
        self.body.append(
            f"{name} = mla.linear {x}, {w} : ({rows(shape[1])}, {self.type(shape, form)})"
            f" -> {rows(shape[0])}")
        return name

    def add(self, name, a, b, width):
        self.body.append(f"{name} = mla.add {a}, {b} : {rows(width)}")
        return name

    def text(self, x, width):
        w = self.weight("head", (VOCAB, width), "bf16")
        head = (f"%logits = mla.lm_head {x}, {w}, %batch : ({rows(width)}, "
                f"{self.type((VOCAB, width), 'bf16')}, !mla.batch) -> {rows(VOCAB)}")
        return "\n".join(
            self.declarations
            + [f"func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> {rows(VOCAB)} {{"]
            + ["  " + line for line in self.body + [head, f"return %logits : {rows(VOCAB)}"]]
            + ["}", ""])


def linears(shape, formats=tuple(BYTES), rotate=ROTATE):
    """y += W_i x over enough weights, in each format."""
    n, k = shape
    step = Step()
    x, acc = step.embedding("%x", k), step.embedding("%acc", n)
    for form in formats:
        for i in range(max(2, int(rotate / (n * k * BYTES[form])) + 1)):
            y = step.linear(f"%{form}_{i}", x, shape, form, f"w_{form}_{i}")
            acc = step.add(f"%sum_{form}_{i}", acc, y, n)
    return step.text(acc, n)


def attention(heads, layers=4):
    """Latent attention of `heads` heads over one cache a layer."""
    step = Step()
    q = step.embedding("%q", heads * 576)
    acc = step.embedding("%acc", heads * 512)
    for i in range(layers):
        cache = step.cache(f"latent_{i}", 576)
        step.body.append(
            f"%o_{i} = mla.latent_attention {q}, {cache}, %batch {{heads = {heads} : i64, "
            f"kv_lora = 512 : i64, scale = 0.1308608 : f64}} : ({rows(heads * 576)}, "
            f"!mla.cache<latent, 576xf32>, !mla.batch) -> {rows(heads * 512)}")
        acc = step.add(f"%sum_{i}", acc, f"%o_{i}", heads * 512)
    return step.text(acc, heads * 512)


def experts(form, layers, local=384, rows_=256, hidden=7168, topk=8):
    """Router, experts and shared expert, as of Kimi-K2.5 on one rank of eight. Without
    a bias, by which random tokens would all choose the same experts."""
    step = Step()
    x = step.embedding("%x", hidden)
    routing = (f"#mla.routing<topk = {topk}, groups = 1, topk_groups = 1, scoring = sigmoid, "
               "method = greedy, normalize = true, scale = 2.827 : f64>")
    for i in range(layers):
        names = [step.weight(f"router_{i}", (local, hidden), "bf16")]
        shapes = [(local, rows_, hidden), (local, rows_, hidden), (local, hidden, rows_),
                  (rows_, hidden), (rows_, hidden), (hidden, rows_)]
        for part, shape in zip(("gate", "up", "down", "sgate", "sup", "sdown"), shapes):
            names.append(step.weight(f"{part}_{i}", shape, form))
        types = [step.type((local, hidden), "bf16")]
        types += [step.type(shape, form) for shape in shapes]
        step.body.append(
            f"%m_{i} = mla.moe {x}, {names[0]} experts {names[1]}, {names[2]}, "
            f"{names[3]} shared {names[4]}, {names[5]}, {names[6]} routing {routing} {{}} : "
            f"({rows(hidden)}, {', '.join(types)}) -> {rows(hidden)}")
        x = step.add(f"%x_{i}", x, f"%m_{i}", hidden)
    return step.text(x, hidden)


def model(folder, name):
    with open(CONFIG) as f:
        config = json.load(f)
    if name == "v3_slice":
        with open(V3) as f:
            config = json.load(f)
        config.update(num_hidden_layers=6, first_k_dense_replace=1, vocab_size=8192,
                      bos_token_id=0, eos_token_id=1)
    if name == "kimi_part":
        config["text_config"].update(num_hidden_layers=12)
    if name == "kimi_layers":
        for part in (config, config["text_config"]):
            part.pop("quantization_config", None)
        config["text_config"].update(
            num_hidden_layers=4, first_k_dense_replace=0, n_routed_experts=64,
            vocab_size=1024, max_position_embeddings=8192, bos_token_id=0,
            eos_token_id=1, pad_token_id=2)
        config.update(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, name, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


def main(folder, name=None):
    os.makedirs(folder, exist_ok=True)
    if name:
        return model(folder, name)
    files = {}
    for n, k in SHAPES:
        files[f"linear_{n}x{k}"] = linears((n, k))
    for heads in (8, 16, 64, 128):
        files[f"attention_{heads}"] = attention(heads)
    files["experts_nvfp4"] = experts("nvfp4", 4)
    for name, text in files.items():
        with open(os.path.join(folder, name + ".mlir"), "w") as out:
            out.write(text)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:3] not in (
            [], ["kimi_slice"], ["kimi_layers"], ["kimi_part"], ["v3_slice"]):
        sys.exit(__doc__)
    main(*sys.argv[1:])
