#!/usr/bin/env python3
"""Small jobs of the GPU bundle.

  gpu-tables.py drop-ptx PLAN      leaves the machine code alone in a GPU's plan
  gpu-tables.py step JSON...       tables of mla-run bench --json-file
  gpu-tables.py compare JSON...    one line for each mla-run compare --json
  gpu-tables.py cublas FILE        writes the rate of a large bf16 product, by torch
  gpu-tables.py prefill FOLDER     rates of kimi_layers' prefill against that
  gpu-tables.py hf FOLDER...       Hugging Face in bf16 against each golden.json
"""

import json
import os
import sys


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def drop_ptx(folder):
    path = os.path.join(folder, "plan.json")
    with open(path) as f:
        plan = json.load(f)
    text = b"// PTX left out: the machine code is beside this file.\n"
    with open(os.path.join(folder, plan["library"]["file"]), "wb") as f:
        f.write(text)
    plan["library"]["hash"] = fnv1a(text)
    with open(path, "w") as f:
        json.dump(plan, f)


def step(*paths):
    for path in paths:
        with open(path) as f:
            data = json.load(f)
        name = os.path.basename(path)[: -len(".json")]
        floor = (f"{data['device_over_floor']:.2f} times its floor"
                 if "device_over_floor" in data else "no floor")
        print(f"{name}: {1e6 * data['step_seconds_device']:.1f} us a step, {floor} at "
              f"{data.get('read_ceiling_bytes_per_second', 0) / 1e9:.0f} GB/s")
        for k in sorted(data["kernels"], key=lambda k: -k["seconds"] * k["launches"]):
            print(f"  {1e6 * k['seconds'] * k['launches']:8.1f} us = {k['launches']:4} x "
                  f"{1e6 * k['seconds']:8.2f} us  {k['bytes_per_second'] / 1e9:6.0f} GB/s "
                  f"{100 * k.get('share_of_ceiling', 0):3.0f}%  {k['name'][:70]}")


def compare(*paths):
    for path in paths:
        name = os.path.basename(path)[: -len(".json")]
        try:
            with open(path) as f:
                data = json.load(f)
        except (OSError, ValueError):
            print(f"{name}: no result")
            continue
        def error(found):
            value = found["relative_error"]
            return float("inf") if value == "infinite" else value

        worst = max(data["values"].items(), key=lambda v: error(v[1]), default=None)
        choices = data["choices"]
        others = len(choices["differ"]) - choices["ties"]
        print(f"{name}: logits {error(data['logits']):.1e}"
              + (f", {choices['ties']} ties of experts" if choices["ties"] else "")
              + (f", {others} other choices of experts" if others else "")
              + (f", worst {error(worst[1]):.1e} {worst[0]}" if worst else ""))


def cublas(path):
    import torch

    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    with open(path, "w") as f:
        json.dump({"size": n, "seconds": sorted(times),
                   "flops_per_second": 2 * n**3 / sorted(times)[5]}, f)


def prefill(folder):
    """4096 tokens from position 0 on, Kimi's dimensions, 64 heads, 8 of 64 experts."""
    with open(os.path.join(folder, "cublas.json")) as f:
        peak = json.load(f)["flops_per_second"]
    tokens, pairs = 4096, 4096 * 8
    products = {
        "linear_large_bf16_1536_576_7168": tokens * 2112 * 7168,
        "linear_large_bf16_12288_1536": tokens * 12288 * 1536,
        "linear_large_bf16_7168_8192": tokens * 7168 * 8192,
        "linear_large_bf16_2048_2048_7168": tokens * 4096 * 7168,
        "linear_large_bf16_7168_2048": tokens * 7168 * 2048,
        "experts_gate_up_bf16_2048_7168": pairs * 4096 * 7168,
        "experts_down_bf16_7168_2048": pairs * 7168 * 2048,
        "latent_attention_prefill": tokens * (tokens + 1) // 2 * 64 * (576 + 512),
    }
    print(f"cuBLAS bf16 8192^3: {peak / 1e12:.0f} TFLOP/s")
    with open(os.path.join(folder, "prefill_kimi_layers.txt")) as f:
        for line in f:
            fields = line.split()
            if len(fields) < 6 or not fields[4].startswith("prefill"):
                continue
            for name, products_ in products.items():
                if fields[5].startswith(name):
                    rate = 2 * products_ / (float(fields[3]) * 1e-6)
                    print(f"  {float(fields[3]):8.0f} us  {rate / 1e12:5.0f} TFLOP/s "
                          f"{100 * rate / peak:3.0f}%  {fields[5]}")


def kjv(torch, transformers, folder):
    from safetensors.torch import load_file

    goldens = os.path.join(folder, "..", "..", "..", "test", "data", "goldens", "kjv-tiny")
    with open(os.path.join(goldens, "golden.json")) as f:
        prompts = json.load(f)["prompts"]
    expected = load_file(os.path.join(goldens, "logits.safetensors"))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager").cuda()
    errors = []
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            found = model(torch.tensor([prompt["ids"]]).cuda()).logits[0].float().cpu()
        errors.append(f"{(found - expected[f'p{i}']).norm() / expected[f'p{i}'].norm():.1e}")
    print("kjv-tiny: Hugging Face in bf16, relative error of each prompt", " ".join(errors))


def hf(*folders):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    for folder in folders:
        path = os.path.join(folder, "golden.json")
        if not os.path.exists(path):  # kjv-tiny: its goldens lie elsewhere
            kjv(torch, transformers, folder)
            continue
        with open(path) as f:
            golden = json.load(f)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="eager").cuda()
        with torch.no_grad():
            logits = model(torch.tensor([golden["ids"]]).cuda()).logits[0].float().cpu()
        found = logits[golden["logit_rows"]]
        expected = torch.tensor(golden["logits"])
        rows = (found - expected).norm(dim=1) / expected.norm(dim=1)
        print(f"{os.path.basename(folder.rstrip('/'))}: Hugging Face in bf16, relative "
              f"error {(found - expected).norm() / expected.norm():.1e}, median of tokens "
              f"{rows.median():.1e}, worst {rows.max():.1e}")


if __name__ == "__main__":
    jobs = {"drop-ptx": drop_ptx, "step": step, "compare": compare,
            "cublas": cublas, "prefill": prefill, "hf": hf}
    if len(sys.argv) < 3 or sys.argv[1] not in jobs:
        sys.exit(__doc__)
    jobs[sys.argv[1]](*sys.argv[2:])
