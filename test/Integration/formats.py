#!/usr/bin/env python3
"""Quantized checkpoints, read a second time and spelled in other ways.

  formats.py dequantize FROM TO           every weight in F32, no quantization_config
  formats.py synthetic CONFIG TO [KEY=JSON...]
                                          F32 weights of docs/synthetic.md, seed 1
  formats.py kept A B PART...             tensors with one of these parts in their names
                                          are in both folders, and the same bytes
  formats.py rounded F32 BF16             each BF16 weight is that of F32, rounded
  formats.py rewrite FROM TO FORM...      the same model (but for double-up), as

    compressed      NVFP4 as compressed-tensors has it: weight_packed, and the
                    reciprocal of weight_scale_2 as weight_global_scale
    kimi            text_config, the prefix language_model. and vision tensors
    double-up       weight_scale_2 of each up_proj twice as large: gate and up differ
    input-scales    an input_scale beside each weight_scale_2
    scales-apart    everything but the weights in a second shard, whose tensors begin at
                    odd addresses; the index lists the first shard only
    no-index        no index

Written from the published layouts, not from the C++ readers. `dequantize` writes the
same header for each format of a model, so one plan of the model in F32 runs them all
(mla-run --checkpoint). Only the standard library.
"""

import array
import json
import math
import os
import shutil
import struct
import sys

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 += [-v for v in E2M1]
INDEX = "model.safetensors.index.json"


def e4m3(code):
    """The value of an 8-bit float: 1 sign, 4 exponent (bias 7), 3 mantissa bits."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    value = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if sign else value


E4M3 = [e4m3(code) for code in range(256)]


# Folders -----------------------------------------------------------------------------


def read_folder(folder):
    """The config and {name: (dtype, shape, bytes)} of every shard, index or none."""
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            body = f.read()
        for name, info in header.items():
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                tensors[name] = (info["dtype"], info["shape"], body[begin:end])
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f), tensors


def write_shard(path, tensors, odd=False):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + odd)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(data for _, _, data in tensors.values())


def write_folder(folder, config, shards, index=None):
    """`shards`: {file: tensors}; `index`: the files whose tensors it lists."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for i, (file, tensors) in enumerate(shards.items()):
        write_shard(os.path.join(folder, file), tensors, odd=i > 0)
    if index is not None:
        names = {name: file for file in index for name in shards[file]}
        with open(os.path.join(folder, INDEX), "w") as f:
            json.dump({"metadata": {}, "weight_map": names}, f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


# Numbers -----------------------------------------------------------------------------


def words(kind, data):
    out = array.array(kind)
    out.frombytes(data)
    return out


def floats(dtype, data):
    """The values of a tensor that stands alone."""
    if dtype == "F32":
        return words("f", data)
    if dtype == "BF16":
        return words("f", array.array("I", [v << 16 for v in words("H", data)]).tobytes())
    if dtype == "F16":
        return array.array("f", struct.unpack(f"<{len(data) // 2}e", data))
    sys.exit("no float: " + dtype)


def to_bf16(values):
    """The nearest values of bfloat16, ties to even."""
    bits = [(b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000 for b in words("I", values.tobytes())]
    return words("f", array.array("I", bits).tobytes())


def fp8_block(shape, data, scales):
    """W[r, c] = e4m3(q[r, c]) * scale[r / 128, c / 128]"""
    rows, columns = shape
    blocks = -(-columns // 128)
    out = array.array("f")
    for r in range(rows):
        for b in range(blocks):
            scale = scales[r // 128 * blocks + b]
            begin, end = r * columns + 128 * b, r * columns + min(128 * (b + 1), columns)
            out.extend([E4M3[q] * scale for q in data[begin:end]])
    return out


def nvfp4(data, scales, factor):
    """W[r, c] = e2m1(q[r, c]) * (e4m3(scale[r, c / 16]) * factor), the even column in the
    low half of a byte."""
    tables = [[v * (E4M3[code] * factor) for v in E2M1] for code in range(256)]
    out = array.array("f")
    for block, code in enumerate(scales):
        table = tables[code]
        for byte in data[8 * block : 8 * block + 8]:
            out.append(table[byte & 15])
            out.append(table[byte >> 4])
    return out


def int4(data, scales):
    """W[r, c] = (u - 8) * scale[r, c / 32], u in bits 4 * (c % 8) of word c / 8: in
    little-endian bytes again the even column in the low half."""
    out = array.array("f")
    for group, scale in enumerate(scales):
        table = [(u - 8) * scale for u in range(16)]
        for byte in data[16 * group : 16 * group + 16]:
            out.append(table[byte & 15])
            out.append(table[byte >> 4])
    return out


def weight(tensors, module, name):
    """The shape and values of a module's weight, in whichever format it is."""
    dtype, shape, data = tensors[name]
    part = lambda leaf: floats(*tensors[module + leaf][::2])
    if dtype == "F8_E4M3":
        return shape, fp8_block(shape, data, part(".weight_scale_inv"))
    if dtype == "U8":
        scales = tensors[module + ".weight_scale"][2]
        if name.endswith("_packed"):
            factor = 1 / part(".weight_global_scale")[0]
        else:
            factor = part(".weight_scale_2")[0]
        return [shape[0], 2 * shape[1]], nvfp4(data, scales, factor)
    if dtype == "I32":
        shape = list(words("i", tensors[module + ".weight_shape"][2]))
        return shape, int4(data, part(".weight_scale"))
    return shape, floats(dtype, data)


def dequantize(source, target):
    config, tensors = read_folder(source)
    for part in (config, config.get("text_config", {})):
        part.pop("quantization_config", None)
    out = {}
    for name in sorted(tensors):
        module, leaf = name.rsplit(".", 1)
        if leaf in ("weight", "weight_packed"):
            shape, values = weight(tensors, module, name)
            assert len(values) == math.prod(shape), (name, shape, len(values))
            out[module + ".weight"] = ("F32", shape, values.tobytes())
        elif not leaf.startswith("weight_") and not leaf.endswith("_scale"):
            dtype, shape, data = tensors[name]
            out[name] = ("F32", shape, floats(dtype, data).tobytes())
    write_folder(target, config, {"model.safetensors": dict(sorted(out.items()))})


# Models that exist as a config only --------------------------------------------------


def synthetic_values(name, shape):
    start = 0xCBF29CE484222325
    for byte in name.encode():
        start = ((start ^ byte) * 0x100000001B3) % 2**64
    start += 0x9E3779B97F4A7C15
    for i in range(math.prod(shape)):
        x = (start + i + 0x9E3779B97F4A7C15) % 2**64
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) % 2**64
        u = ((x ^ x >> 31) >> 40) * 2.0**-23 - 1
        if name.endswith("e_score_correction_bias"):
            yield 0.1 * u
        elif len(shape) == 1:
            yield 1 + 0.1 * u
        elif name == "model.embed_tokens.weight":
            yield u
        else:
            yield u * words("f", struct.pack("<f", math.sqrt(3 / shape[1])))[0]


def synthetic(config_file, target, *changes):
    with open(config_file) as f:
        c = json.load(f)
    c.update((k, json.loads(v)) for k, v in (change.split("=") for change in changes))
    hidden, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    shapes = {"model.embed_tokens": [c["vocab_size"], hidden], "model.norm": [hidden],
              "lm_head": [c["vocab_size"], hidden]}

    def mlp(prefix, width):
        shapes[prefix + "gate_proj"] = shapes[prefix + "up_proj"] = [width, hidden]
        shapes[prefix + "down_proj"] = [hidden, width]

    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm"] = shapes[at + "post_attention_layernorm"] = [hidden]
        shapes[at + "self_attn.q_a_proj"] = [c["q_lora_rank"], hidden]
        shapes[at + "self_attn.q_a_layernorm"] = [c["q_lora_rank"]]
        shapes[at + "self_attn.q_b_proj"] = [heads * (nope + rope), c["q_lora_rank"]]
        shapes[at + "self_attn.kv_a_proj_with_mqa"] = [latent + rope, hidden]
        shapes[at + "self_attn.kv_a_layernorm"] = [latent]
        shapes[at + "self_attn.kv_b_proj"] = [heads * (nope + value), latent]
        shapes[at + "self_attn.o_proj"] = [hidden, heads * value]
        if layer < c["first_k_dense_replace"]:
            mlp(at + "mlp.", c["intermediate_size"])
            continue
        width, experts = c["moe_intermediate_size"], c["n_routed_experts"]
        shapes[at + "mlp.gate"] = [experts, hidden]
        shapes[at + "mlp.gate.e_score_correction_bias"] = [experts]
        mlp(at + "mlp.shared_experts.", width * c["n_shared_experts"])
        for e in range(experts):
            mlp(at + f"mlp.experts.{e}.", width)
    tensors = {}
    for module, shape in shapes.items():
        name = module if module.endswith("bias") else module + ".weight"
        values = array.array("f", synthetic_values(name, shape))
        if not name.endswith("bias"):
            values = to_bf16(values)
        tensors[name] = ("F32", shape, values.tobytes())
    write_folder(target, c, {"model.safetensors": dict(sorted(tensors.items()))})


def kept(a, b, *parts):
    (_, left), (_, right) = read_folder(a), read_folder(b)
    wanted = lambda tensors: {n: t for n, t in tensors.items() if any(p in n for p in parts)}
    left, right = wanted(left), wanted(right)
    assert left and left.keys() == right.keys(), left.keys() ^ right.keys()
    different = [name for name in left if left[name] != right[name]]
    assert not different, different
    print(f"{len(left)} tensors, the same in both")


def rounded(f32, bf16):
    (_, exact), (_, tensors) = read_folder(f32), read_folder(bf16)
    assert exact.keys() == tensors.keys(), exact.keys() ^ tensors.keys()
    count = 0
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "BF16":
            expected = to_bf16(words("f", exact[name][2]))
            assert floats(dtype, data) == expected and shape == exact[name][1], name
            count += 1
    assert count, "no tensor in BF16"
    print(f"{count} tensors, rounded to the nearest")


# Other spellings ---------------------------------------------------------------------


def compressed(config, tensors):
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        if dtype == "U8":
            name = name + "_packed"
        elif name.endswith(".weight_scale_2"):
            name = name.replace(".weight_scale_2", ".weight_global_scale")
            shape, data = [1], array.array("f", [1 / words("f", data)[0]]).tobytes()
        out[name] = (dtype, shape, data)
    old = config["quantization_config"]
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
               "symmetric": True, "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": old["ignore"],
    }
    return config, out


def kimi(config, tensors):
    out = {"language_model." + name: tensor for name, tensor in tensors.items()}
    out["vision_tower.patch_embed.proj.weight"] = ("BF16", [4, 3, 2, 2], bytes(96))
    out["mm_projector.proj.0.weight"] = ("BF16", [8, 4], bytes(64))
    text = dict(config, model_type="kimi_k2")
    quantization = text.get("quantization_config")
    if quantization and "ignore" in quantization:
        text["quantization_config"] = dict(
            quantization, ignore=["language_model." + m for m in quantization["ignore"]]
            + ["re:vision_tower.*", "re:mm_projector.*"])
    return {"architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25", "text_config": text, "vision_config": {}}, out


def double_up(config, tensors):
    count = 0
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith("up_proj.weight_scale_2"):
            data = array.array("f", [2 * words("f", data)[0]]).tobytes()
            tensors[name] = (dtype, shape, data)
            count += 1
    assert count, "no NVFP4 up_proj"
    return config, tensors


def input_scales(config, tensors):
    scale = ("F32", [], struct.pack("<f", 0.125))
    names = [n for n in tensors if n.endswith(".weight_scale_2")]
    assert names, "no NVFP4 weight"
    tensors.update((n.replace(".weight_scale_2", ".input_scale"), scale) for n in names)
    return config, tensors


def rewrite(source, target, *forms):
    config, tensors = read_folder(source)
    shards, index = {"model.safetensors": tensors}, ["model.safetensors"]
    content = {"compressed": compressed, "kimi": kimi, "double-up": double_up,
               "input-scales": input_scales}
    for form in forms:
        if form in content:
            config, tensors = content[form](config, tensors)
            shards = {"model.safetensors": tensors}
        elif form == "scales-apart":
            isWeight = lambda name: name.endswith((".weight", ".weight_packed"))
            index = ["model-00001-of-00002.safetensors"]
            shards = {
                index[0]: {n: t for n, t in tensors.items() if isWeight(n)},
                "model-00002-of-00002.safetensors":
                    {n: t for n, t in tensors.items() if not isWeight(n)},
            }
        elif form == "no-index":
            index = None
        else:
            sys.exit("unknown form " + form)
    write_folder(target, config, shards, index)


if __name__ == "__main__":
    commands = [dequantize, synthetic, kept, rounded, rewrite]
    {c.__name__: c for c in commands}[sys.argv[1]](*sys.argv[2:])
