#!/usr/bin/env python3
"""Logits of DeepSeek-V3-family models in float64: a second opinion for the tests.

  reference.py check FOLDER...                     compares with FOLDER/golden.json
  reference.py write FOLDER --seed S --length N    makes FOLDER/golden.json
  reference.py logits CONFIG (--weights FILE | --seed S) --ids 1,2,3

Written from the formulas of the published models, plainly: no cache, no absorbed
weights, whole prompts at once. Needs numpy; the tests read only what it wrote.
"""

import argparse
import json
import math
import os
import sys

import numpy as np

INNER_EPS = 1e-6  # of the norms inside attention, whatever rms_norm_eps says


# Weights ---------------------------------------------------------------------


def splitmix64(x):
    """SplitMix64 of each number in an array of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draws(name, count, seed):
    """The first random words of a name."""
    start = 0xCBF29CE484222325
    for byte in name.encode():
        start = ((start ^ byte) * 0x100000001B3) % 2**64
    start = (start + seed * 0x9E3779B97F4A7C15) % 2**64
    return splitmix64(np.arange(count, dtype=np.uint64) + np.uint64(start))


def round_to_bf16(values):
    """Float32 values rounded to the nearest bfloat16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


class SyntheticWeights:
    """Weights that are a function of name, index and seed (docs/synthetic.md)."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, name, *shape):
        words = draws(name, math.prod(shape), self.seed)
        u = (words >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
        if name.endswith("e_score_correction_bias"):
            return (0.1 * u).astype(np.float32).astype(np.float64)
        if name.endswith(".bias"):
            values = 0.1 * u
        elif len(shape) == 1:
            values = 1 + 0.1 * u
        elif name == "model.embed_tokens.weight":
            values = u
        else:
            values = u * np.float64(np.float32(math.sqrt(3 / shape[1])))
        return round_to_bf16(values).astype(np.float64).reshape(shape)


class CheckpointWeights:
    """Weights of one safetensors file."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        size = int(self.data[:8].view("<u8")[0])
        self.header = json.loads(bytes(self.data[8 : 8 + size]))
        self.begin = 8 + size

    def __call__(self, name, *shape):
        info = self.header[name]
        assert tuple(info["shape"]) == shape, (name, info["shape"], shape)
        begin, end = (self.begin + offset for offset in info["data_offsets"])
        data = np.array(self.data[begin:end])
        if info["dtype"] == "BF16":
            wide = data.view("<u2").astype(np.uint32) << np.uint32(16)
            data = wide.view(np.float32)
        else:
            data = data.view({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[info["dtype"]])
        return data.astype(np.float64).reshape(shape)


# Small functions -------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight + bias


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def mscale(factor, k):
    return 0.1 * k * math.log(factor) + 1 if factor > 1 else 1.0


# The model -------------------------------------------------------------------


class Model:
    def __init__(self, config, weights):
        config = config.get("text_config", config)
        known = {
            "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
            "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM",
            "Glm4MoeLiteForCausalLM",
        }
        (self.architecture,) = config["architectures"]
        assert self.architecture in known, self.architecture
        assert not config.get("attention_bias"), "attention_bias is not handled"
        assert not config.get("tie_word_embeddings"), "tied embeddings"
        assert config.get("hidden_act", "silu") == "silu"
        self.config = config
        self.weights = weights
        self.hidden = config["hidden_size"]
        # How far each choice is from another one: (what, relative gap).
        self.margins = []
        self.zeros_met = False  # scores of the indexer that were all exactly 0
        self.read_rope()

    def linear(self, x, name, out):
        return x @ self.weights(name + ".weight", out, x.shape[-1]).T

    def norm(self, x, name, eps):
        return rms_norm(x, self.weights(name + ".weight", x.shape[-1]), eps)

    # Positions

    def read_rope(self):
        c = self.config
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
        theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
        width = c["qk_rope_head_dim"]
        i = np.arange(width // 2)
        self.frequencies = theta ** (-2.0 * i / width)
        self.rope_factor = 1.0  # on cosines and sines
        self.scale = (c["qk_nope_head_dim"] + width) ** -0.5
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return
        assert kind == "yarn", kind

        factor = rope["factor"]
        length = rope["original_max_position_embeddings"]

        def turns(r):
            """The index whose pair turns r times over the original length."""
            return width * math.log(length / (2 * math.pi * r)) / (2 * math.log(theta))

        low = max(math.floor(turns(rope.get("beta_fast", 32))), 0)
        high = min(math.ceil(turns(rope.get("beta_slow", 1))), width - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((i - low) / (high - low), 0, 1)
        self.frequencies = (
            self.frequencies / factor * ramp + self.frequencies * (1 - ramp)
        )
        assert rope.get("attention_factor") is None, "attention_factor"
        assert rope.get("truncate", True), "truncate"
        m, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
        # Hugging Face and DeepSeek's own code disagree about the other cases.
        assert (m and all_dim) or (m in (None, 1) and not all_dim), "mscale"
        if m and all_dim:
            self.rope_factor = mscale(factor, m) / mscale(factor, all_dim)
        else:
            self.rope_factor = mscale(factor, 1)
        if all_dim:
            self.scale *= mscale(factor, all_dim) ** 2

    def rotate(self, x, interleaved):
        """Rotates x[token, ..., rope]; pairs are (0,1),(2,3).. or (0,d/2),(1,d/2+1).."""
        tokens = x.shape[0]
        angle = np.arange(tokens)[:, None] * self.frequencies
        angle = angle.reshape(tokens, *[1] * (x.ndim - 2), -1)
        cos = np.cos(angle) * self.rope_factor
        sin = np.sin(angle) * self.rope_factor
        half = x.shape[-1] // 2
        if interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
        else:
            first, second = x[..., :half], x[..., half:]
        a = first * cos - second * sin
        b = second * cos + first * sin
        if interleaved:
            return np.stack([a, b], axis=-1).reshape(x.shape)
        return np.concatenate([a, b], axis=-1)

    # Choices

    def best(self, scores, count, what):
        """A mask of the count best of each row; of equals the lower index.

        A score of -inf is no candidate."""
        order = np.argsort(-scores, axis=-1, kind="stable")
        mask = np.zeros(scores.shape, bool)
        np.put_along_axis(mask, order[:, :count], True, axis=-1)
        for row, places in zip(scores, order):
            if len(places) > count and row[places[count]] > -np.inf:
                last, next_one = row[places[count - 1]], row[places[count]]
                if last == next_one == 0:
                    self.zeros_met = True
                    continue
                size = np.abs(row[np.isfinite(row)]).max()
                self.margins.append((what, (last - next_one) / size))
        return mask & (scores > -np.inf)

    # Attention

    def is_full_indexer(self, layer):
        c = self.config
        if c.get("indexer_types"):
            return c["indexer_types"][layer] == "full"
        frequency = c.get("index_topk_freq") or 1
        offset = c.get("index_skip_topk_offset") or 2
        return max(layer - offset + 1, 0) % frequency == 0

    def choose_tokens(self, x, q_latent, prefix, layer):
        """Which tokens each token attends to, by the indexer of DSA."""
        c = self.config
        tokens = x.shape[0]
        heads, width = c["index_n_heads"], c["index_head_dim"]
        rope = c["qk_rope_head_dim"]
        interleaved = self.architecture == "GlmMoeDsaForCausalLM"
        interleaved = c.get("indexer_rope_interleave", interleaved)

        q = self.linear(q_latent, prefix + "wq_b", heads * width)
        q = q.reshape(tokens, heads, width)
        k = layer_norm(
            self.linear(x, prefix + "wk", width),
            self.weights(prefix + "k_norm.weight", width),
            self.weights(prefix + "k_norm.bias", width), INNER_EPS,
        )
        # The rotated part comes first here, unlike in the attention itself.
        q = np.concatenate(
            [self.rotate(q[..., :rope], interleaved), q[..., rope:]], axis=-1
        )
        k = np.concatenate(
            [self.rotate(k[..., :rope], interleaved), k[..., rope:]], axis=-1
        )
        head_weights = self.linear(x, prefix + "weights_proj", heads) * heads**-0.5
        products = np.einsum("qhd,kd->qhk", q, k) * width**-0.5
        scores = np.einsum("qh,qhk->qk", head_weights, np.maximum(products, 0))
        seen = np.tri(tokens, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        self.zeros_met = False
        chosen = self.best(scores, c["index_topk"], f"indexer of layer {layer}")
        if self.zeros_met:
            # Zeros are equal in any precision if each product keeps its sign.
            size = np.abs(products).transpose(0, 2, 1)[seen]
            self.margins.append((f"signs of layer {layer}", size.min() / size.max()))
        return chosen

    def attention(self, x, layer):
        c = self.config
        prefix = f"model.layers.{layer}.self_attn."
        tokens = x.shape[0]
        heads, latent = c["num_attention_heads"], c["kv_lora_rank"]
        nope, rope = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        value = c["v_head_dim"]
        interleaved = c.get("rope_interleave", True)

        q_latent = None
        if c.get("q_lora_rank") is None:
            q = self.linear(x, prefix + "q_proj", heads * (nope + rope))
        else:
            q_latent = self.linear(x, prefix + "q_a_proj", c["q_lora_rank"])
            q_latent = self.norm(q_latent, prefix + "q_a_layernorm", INNER_EPS)
            q = self.linear(q_latent, prefix + "q_b_proj", heads * (nope + rope))
        q = q.reshape(tokens, heads, nope + rope)
        q_nope, q_rope = q[..., :nope], self.rotate(q[..., nope:], interleaved)

        kv = self.linear(x, prefix + "kv_a_proj_with_mqa", latent + rope)
        k_rope = self.rotate(kv[:, latent:], interleaved)
        kv = self.norm(kv[:, :latent], prefix + "kv_a_layernorm", INNER_EPS)
        kv = self.linear(kv, prefix + "kv_b_proj", heads * (nope + value))
        kv = kv.reshape(tokens, heads, nope + value)
        k_nope, v = kv[..., :nope], kv[..., nope:]

        if "index_topk" in c:
            if self.is_full_indexer(layer):
                self.chosen = self.choose_tokens(x, q_latent, prefix + "indexer.", layer)
            seen = self.chosen
        else:
            seen = np.tri(tokens, dtype=bool)

        scores = np.einsum("qhd,khd->hqk", q_nope, k_nope)
        scores = (scores + np.einsum("qhd,kd->hqk", q_rope, k_rope)) * self.scale
        p = softmax(np.where(seen, scores, -np.inf))
        out = np.einsum("hqk,khd->qhd", p, v).reshape(tokens, heads * value)
        return self.linear(out, prefix + "o_proj", self.hidden)

    # MLPs

    def mlp(self, x, prefix, width):
        gate = self.linear(x, prefix + "gate_proj", width)
        up = self.linear(x, prefix + "up_proj", width)
        return self.linear(silu(gate) * up, prefix + "down_proj", self.hidden)

    def route(self, x, prefix, layer):
        """The weight of each expert for each token, 0 where it is not chosen."""
        c = self.config
        experts, count = c["n_routed_experts"], c["num_experts_per_tok"]
        groups = c.get("n_group") or 1
        logits = self.linear(x, prefix + "gate", experts)

        if self.architecture == "DeepseekV2ForCausalLM":
            scores = softmax(logits)
            ranking = scores
            grouped = c.get("topk_method", "greedy") == "group_limited_greedy"
            group_members = 1  # a group is as good as its best expert
            assert not c.get("norm_topk_prob"), "not defined alike everywhere"
        else:
            scores = sigmoid(logits)
            ranking = scores + self.weights(
                prefix + "gate.e_score_correction_bias", experts
            )
            grouped = groups > 1
            group_members = 2  # or as its best two together

        if grouped:
            members = np.sort(ranking.reshape(len(x), groups, -1), axis=-1)
            group_scores = members[..., -group_members:].sum(axis=-1)
            what = f"groups of layer {layer}"
            kept = self.best(group_scores, c["topk_group"], what)
            kept = np.repeat(kept, experts // groups, axis=1)
            ranking = np.where(kept, ranking, -np.inf)

        chosen = self.best(ranking, count, f"experts of layer {layer}")
        assert (chosen.sum(axis=1) == count).all(), "too few experts to choose from"
        result = np.where(chosen, scores, 0)
        if c.get("norm_topk_prob"):
            result = result / (result.sum(axis=1, keepdims=True) + 1e-20)
        return result * c.get("routed_scaling_factor", 1.0)

    def moe(self, x, prefix, layer):
        c = self.config
        width = c["moe_intermediate_size"]
        weights = self.route(x, prefix, layer)
        out = np.zeros_like(x)
        for e in range(c["n_routed_experts"]):
            tokens = np.flatnonzero(weights[:, e])
            if len(tokens):
                y = self.mlp(x[tokens], f"{prefix}experts.{e}.", width)
                out[tokens] += weights[tokens, e, None] * y
        if c.get("n_shared_experts"):
            shared = prefix + "shared_experts."
            out += self.mlp(x, shared, width * c["n_shared_experts"])
        return out

    def is_moe(self, layer):
        c = self.config
        if c.get("mlp_layer_types"):
            return c["mlp_layer_types"][layer] == "sparse"
        return (
            layer >= c.get("first_k_dense_replace", 0)
            and layer % c.get("moe_layer_freq", 1) == 0
        )

    # All

    def logits(self, ids):
        c = self.config
        eps = c["rms_norm_eps"]
        vocabulary = c["vocab_size"]
        h = self.weights("model.embed_tokens.weight", vocabulary, self.hidden)[ids]
        for layer in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            h = h + self.attention(self.norm(h, prefix + "input_layernorm", eps), layer)
            x = self.norm(h, prefix + "post_attention_layernorm", eps)
            if self.is_moe(layer):
                h = h + self.moe(x, prefix + "mlp.", layer)
            else:
                h = h + self.mlp(x, prefix + "mlp.", c["intermediate_size"])
        return self.linear(self.norm(h, "model.norm", eps), "lm_head", vocabulary)

    def smallest_margin(self):
        """The choice nearest to another one: (what, gap relative to the scores)."""
        return min(self.margins, key=lambda m: m[1], default=("no choice", math.inf))


# Command line ----------------------------------------------------------------


def load_json(*path):
    with open(os.path.join(*path)) as f:
        return json.load(f)


def check(folder):
    golden = load_json(folder, "golden.json")
    if "seed" in golden:
        weights = SyntheticWeights(golden["seed"])
    else:
        weights = CheckpointWeights(os.path.join(folder, "model.safetensors"))
    model = Model(load_json(folder, "config.json"), weights)
    found = model.logits(golden["ids"])[golden["logit_rows"]]
    expected = np.array(golden["logits"])
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    what, margin = model.smallest_margin()
    print(f"{folder}: relative error {error:.1e}, smallest margin {margin:.1e} ({what})")
    return error < 1e-5


def write(folder, seed, length):
    config = load_json(folder, "config.json")
    model = Model(config, SyntheticWeights(seed))
    ids = draws("ids", length, seed) % np.uint64(config["vocab_size"])
    ids = ids.astype(int).tolist()
    rows = sorted({0, 1, length // 3, 63, 64, length - 1})
    logits = model.logits(ids)[rows]
    what, margin = model.smallest_margin()
    print(f"{folder}: smallest margin {margin:.1e} ({what})")
    if margin < 1e-5:
        sys.exit("too near to another choice: take another seed")
    golden = {
        "seed": seed, "ids": ids, "logit_rows": rows,
        "logits": [[float(f"{v:.9g}") for v in row] for row in logits],
    }
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check")
    command.add_argument("folders", nargs="+")
    command = commands.add_parser("write")
    command.add_argument("folder")
    command.add_argument("--seed", type=int, required=True)
    command.add_argument("--length", type=int, required=True)
    command = commands.add_parser("logits")
    command.add_argument("config")
    command.add_argument("--weights")
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--ids", required=True)
    args = parser.parse_args()

    if args.command == "check":
        results = [check(folder) for folder in args.folders]
        sys.exit(0 if all(results) else 1)
    elif args.command == "write":
        write(args.folder, args.seed, args.length)
    else:
        if args.weights:
            weights = CheckpointWeights(args.weights)
        else:
            weights = SyntheticWeights(args.seed)
        model = Model(load_json(args.config), weights)
        for row in model.logits([int(i) for i in args.ids.split(",")]):
            print(json.dumps(row.tolist()))


if __name__ == "__main__":
    main()
