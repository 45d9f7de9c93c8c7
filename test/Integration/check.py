#!/usr/bin/env python3
"""Checks of whole models, called from the lit tests beside this file.

  check.py golden PLAN GOLDEN.json       logits and greedy tokens of one model
  check.py kjv PLAN GOLDEN_DIR           all prompts of the trained model
  check.py invariance PLAN IDS.json      any chunking, any batch: same bits
  check.py same A.safetensors B.safetensors [TOLERANCE]
  check.py quantized PLAN ORIGINAL_PLAN DEQUANTIZED GOLDEN.json
                                         a quantized model against the F32 folder of its
                                         values, and that it is not the original
  check.py agree PLAN PLAN GOLDEN.json [TOLERANCE [TOKENS]]
                                         the logits of every token, but of so many
  check.py ranks PLAN ONE_RANK_PLAN [CHUNK]
                                         sequences that end around edges of pages
  check.py scales A.json B.json          of mla-run calibrate
  check.py perplexity EXPECTED PERCENT   reads mla-run's JSON from stdin
  check.py limits SECONDS MEGABYTES -- COMMAND...

Only the standard library; every check prints the figure it looked at.
"""

import array
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time

# Relative, Frobenius: the host against Hugging Face in f32. For a GPU another is
# given, and the margin between two logits below which it may choose otherwise.
TOLERANCE = float(os.environ.get("MLA_TOLERANCE", 1e-4))
MARGIN = float(os.environ.get("MLA_MARGIN", 1e-3))
OPTIONS = os.environ.get("MLA_RUN_OPTIONS", "").split()  # of every mla-run


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        assert info["dtype"] == "F32", (name, info)
        begin, end = info["data_offsets"]
        out[name] = (info["shape"], array.array("f", body[begin:end]))
    return out


def relative_error(found, expected):
    assert len(found) == len(expected), (len(found), len(expected))
    difference = math.fsum((a - b) ** 2 for a, b in zip(found, expected))
    norm = math.fsum(b * b for b in expected)
    return math.sqrt(difference / norm)


def run(*command, **kwargs):
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, **kwargs
    ).stdout


def logits(plan, id_lists, *options):
    """The logits of each list of ids, stepped together."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "out.safetensors")
        command = ["mla-run", "logits", plan, "-o", path, *OPTIONS, *options]
        for ids in id_lists:
            command += ["--ids", ",".join(map(str, ids))]
        run(*command)
        tensors = read_safetensors(path)
    if len(id_lists) == 1:
        return [tensors["logits"]]
    return [tensors[f"logits.{i}"] for i in range(len(id_lists))]


def rows(tensor, wanted):
    (_, width), values = tensor
    out = array.array("f")
    for r in wanted:
        out.extend(values[r * width : (r + 1) * width])
    return out


def check_error(what, found, expected):
    error = relative_error(found, expected)
    print(f"{what}: relative error {error:.2e}")
    assert error <= TOLERANCE, f"{what}: expected at most {TOLERANCE}"


def check_greedy(plan, prompt, expected, margins, what):
    """Equal up to the first step whose own margin is below MARGIN."""
    count = len(expected)
    for i, margin in enumerate(margins or []):
        if margin < MARGIN:
            count = min(count, i)
            break
    text = run(
        "mla-run", "generate", plan, *OPTIONS, "--ids", ",".join(map(str, prompt)),
        "--greedy", "--ignore-eos", "--print-ids", "--max-tokens",
        str(max(count, 1)), stderr=subprocess.DEVNULL,
    )
    found = [int(t) for t in text.replace(",", " ").split()][:count]
    assert found == expected[:count], (what, found, expected[:count])
    print(f"{what}: {count} of {len(expected)} greedy tokens compared, all equal")


def golden(plan, path):
    with open(path) as f:
        data = json.load(f)
    (tensor,) = logits(plan, [data["ids"]])
    expected = [v for row in data["logits"] for v in row]
    check_error("logits", rows(tensor, data["logit_rows"]), expected)
    if "greedy" in data:
        check_greedy(
            plan, data["ids"][: data["greedy_from"]], data["greedy"],
            data.get("greedy_margins"), "continuation",
        )


def kjv(plan, folder):
    with open(os.path.join(folder, "golden.json")) as f:
        data = json.load(f)
    reference = read_safetensors(os.path.join(folder, "logits.safetensors"))
    for i, prompt in enumerate(data["prompts"]):
        (tensor,) = logits(plan, [prompt["ids"]])
        check_error(f"prompt {i}", tensor[1], reference[f"p{i}"][1])
        if "greedy" in prompt:
            check_greedy(
                plan, prompt["ids"], prompt["greedy"],
                prompt.get("greedy_margins"), f"prompt {i}",
            )


def invariance(plan, path):
    with open(path) as f:
        data = json.load(f)
    ids = data["ids"]
    (whole,) = logits(plan, [ids])
    for chunk in (1, 2, 3, 7, 63, 64, 65):
        (tensor,) = logits(plan, [ids], "--chunk", str(chunk))
        assert tensor[1].tobytes() == whole[1].tobytes(), f"chunk {chunk}"
        print(f"chunks of {chunk}: the same bits")
    others = [ids[5:40], ids, ids[:1], ids[10:90][::-1]]
    together = logits(plan, others)
    assert together[1][1].tobytes() == whole[1].tobytes(), "among others"
    for i in (0, 2, 3):
        (alone,) = logits(plan, [others[i]])
        assert together[i][1].tobytes() == alone[1].tobytes(), f"sequence {i}"
    print("four sequences together: the same bits as alone")
    (tensor,) = logits(plan, [ids], "--threads", "1")
    assert tensor[1].tobytes() == whole[1].tobytes(), "one thread"
    print("one thread: the same bits")


def same(a, b, tolerance="0"):
    left, right = read_safetensors(a), read_safetensors(b)
    assert left.keys() == right.keys()
    for name in left:
        error = relative_error(left[name][1], right[name][1])
        print(f"{name}: relative error {error:.2e}")
        assert error <= float(tolerance), name


def some_ids(path):
    """The ids of a golden file; of several prompts the longest."""
    with open(path) as f:
        data = json.load(f)
    if "ids" in data:
        return data["ids"]
    return max((prompt["ids"] for prompt in data["prompts"]), key=len)


def quantized(plan, original, dequantized, path):
    ids = some_ids(path)
    (found,) = logits(plan, [ids])
    (expected,) = logits(original, [ids], "--checkpoint", dequantized)
    check_error("against the same values in F32", found[1], expected[1])
    (before,) = logits(original, [ids])
    error = relative_error(found[1], before[1])
    print(f"against the model before: relative error {error:.2e}")
    assert 1e-4 < error < 1, "expected another model, and not quite another"


def agree(a, b, path, tolerance="0", elsewhere="0"):
    """`elsewhere`: tokens that may be beyond the tolerance, since a rounding sends them
    to another expert."""
    ids = some_ids(path)
    (left,), (right,) = logits(a, [ids]), logits(b, [ids])
    errors = sorted(
        relative_error(rows(left, [t]), rows(right, [t])) for t in range(len(ids)))
    beyond = sum(error > float(tolerance) for error in errors)
    print(f"relative error {relative_error(left[1], right[1]):.2e}, of single tokens "
          f"{errors[0]:.2e} to {errors[-1]:.2e}, {beyond} beyond {tolerance}")
    assert beyond <= int(elsewhere), f"expected at most {elsewhere} tokens beyond"


def ranks(plan, one, chunk="50"):
    lists = [[(11 * i * i + 7 * n + 3) % 997 for i in range(n)]
             for n in (1, 63, 64, 65, 129, 600)]
    found, expected = (logits(p, lists, "--chunk", chunk) for p in (plan, one))
    for ids, (_, a), (_, b) in zip(lists, found, expected):
        check_error(f"{len(ids)} tokens", a, b)


def scales(a, b):
    left, right = (json.load(open(path)) for path in (a, b))
    def numbers(value):
        if isinstance(value, dict):
            return [n for key in sorted(value) for n in numbers(value[key])]
        if isinstance(value, list):
            return [n for part in value for n in numbers(part)]
        return [value] if isinstance(value, (int, float)) else []
    left, right = numbers(left), numbers(right)
    assert len(set(left)) > 3, left
    check_error(f"{len(left)} numbers", left, right)


def perplexity(expected, percent):
    """`expected`: a number, or a file of mla-run's JSON."""
    data = json.load(sys.stdin)
    found = data["perplexity"]
    if os.path.exists(expected):
        with open(expected) as f:
            expected = json.load(f)["perplexity"]
    difference = 100 * abs(found / float(expected) - 1)
    print(f"perplexity {found:.4f} over {data['tokens']} tokens, "
          f"{difference:.4f}% from {expected}")
    assert difference <= float(percent)


def limits(seconds, megabytes, dashes, *command):
    assert dashes == "--"
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # On a machine that others use too what counts is the work, not the wait for a core.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = min(time.monotonic() - start, used.ru_utime + used.ru_stime)
    peak = used.ru_maxrss / 1024
    print(f"{took:.2f} s, {peak:.0f} MB at most")
    assert took <= float(seconds) and peak <= float(megabytes)


if __name__ == "__main__":
    checks = [golden, kjv, invariance, same, quantized, agree, ranks, scales,
              perplexity, limits]
    {c.__name__: c for c in checks}[sys.argv[1]](*sys.argv[2:])
