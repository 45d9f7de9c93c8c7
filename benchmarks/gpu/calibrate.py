#!/usr/bin/env python3
"""What the cost model's constants are fitted to, and what they are tested with.

  calibrate.py make BUILD OUT     plans and mla-run of a build folder, and run.sh
  calibrate.py run RESULTS        there, on the machine with the GPU: measures all
  calibrate.py list               steps of each split

OUT is then a folder for a machine without LLVM: OUT/run.sh RESULTS. Results are one
file for each split and family, RESULTS/calibrate/linear.json and so on, each an array
of what mla-run bench found at a step. cost_model fit and check read them.

Steps of the two splits are different: other shapes of matrices and experts, other
pairs of batch and context; the share of a whole model is in the second alone.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.environ.get("MLA_TARGET", "sm_90a")
DECODE = "8:64 40:64 64:64"
PROMPTS = "1:0:512 1:0:2048"

# family, plan, what make_steps.py makes it of, options of mla-compile,
# {split: steps as sequences:context[:new tokens of each]}
PLANS = []


def options(tokens, context, *more):
    return ["--synthetic-weights", "1", "--max-step-tokens", str(tokens),
            "--max-context", str(context), *more]


def linear(split, rows, columns):
    """One token."""
    PLANS.append(("linear", f"linear_{rows}x{columns}", ("linears", (rows, columns)),
                  options(1, 4096), {split: "1:64"}))


def linears(split, rows, columns):
    """Several tokens, prompts too."""
    PLANS.append(("linears", f"linears_{rows}x{columns}", ("linears", (rows, columns)),
                  options(4096, 8192), {split: f"{DECODE} {PROMPTS}"}))


def attention(heads, cache, steps):
    PLANS.append(("attention", f"attention_{heads}_{cache}", ("attention", heads),
                  options(64, 131072, "--kv-cache-dtype", cache), steps))


def prompts(split, heads, cache):
    PLANS.append(("prompts", f"prompts_{heads}_{cache}", ("attention", heads),
                  options(4096, 16384, "--kv-cache-dtype", cache),
                  {split: "1:0:512 1:0:2048 1:0:4096 1:8192:1024 4:1024:512"}))


def experts(split, form, layers, local, topk, rows, hidden, tokens=64):
    PLANS.append(("experts", f"experts_{form}_{topk}of{local}_{rows}x{hidden}",
                  ("experts", form, layers, local, rows, hidden, topk),
                  options(tokens, 8192),
                  {split: f"1:64 {DECODE}" + (f" {PROMPTS}" if tokens > 64 else "")}))


def model(name, arguments, steps):
    PLANS.append(("model", name, ("model", name),
                  ["--synthetic-weights", "1", *arguments], steps))


for shape in ((2112, 7168), (1536, 1536), (7168, 2304), (20480, 7168), (1024, 4096),
              (8192, 2048), (576, 6144)):
    linear("calibrate", *shape)
for shape in ((7168, 1024), (4608, 7168), (3072, 1536), (6144, 2048), (12288, 1536)):
    linear("check", *shape)
for shape in ((2112, 7168), (7168, 2304), (8192, 2048)):
    linears("calibrate", *shape)
for shape in ((4608, 7168), (3072, 1536)):
    linears("check", *shape)
for h in (8, 16, 64, 128):
    for c in ("bf16", "fp8_e4m3"):
        attention(h, c, {
            "calibrate": "1:512 1:8192 1:131000 4:1024 4:32768 8:16384 32:1024 32:32768 "
                         "64:8192",
            "check": "1:1024 1:2048 1:32768 4:8192 8:4096 32:8192 64:1024"})
for c in ("bf16", "fp8_e4m3"):
    attention(32, c, {"check": "1:1024 1:32768 8:8192 32:8192"})
prompts("calibrate", 64, "bf16")
prompts("calibrate", 16, "fp8_e4m3")
prompts("check", 16, "bf16")
prompts("check", 128, "fp8_e4m3")
experts("calibrate", "nvfp4", 6, 384, 8, 256, 7168, 4096)
experts("calibrate", "bf16", 6, 64, 8, 512, 4096, 4096)
experts("calibrate", "fp8_block", 5, 256, 8, 256, 7168)
experts("calibrate", "int4_g32", 8, 64, 4, 1024, 2048)
experts("check", "nvfp4", 6, 256, 8, 256, 6144, 4096)
experts("check", "fp8_block", 8, 64, 4, 1408, 2048)
experts("check", "int4_g32", 5, 384, 8, 256, 7168)
experts("check", "bf16", 6, 128, 8, 256, 4096)
experts("check", "nvfp4", 8, 64, 4, 1024, 4096)
model("kimi_layers", ["--max-step-tokens", "4096", "--max-context", "8192"],
      {"calibrate": "1:1024 8:1024 64:1024 1:0:4096"})
# What was measured, whatever the cost model prefers by now.
REPLICATED = ["--latent-projections", "replicated", "--router", "replicated"]
model("v3_slice", ["--ranks", "8", "--collectives=local", *REPLICATED,
                   "--kv-cache-dtype", "fp8_e4m3", "--max-step-tokens", "64",
                   "--max-context", "131072"],
      {"calibrate": "1:1024 8:4096", "check": "1:32768 64:1024"})
SLICE = ["--ranks", "8", "--collectives=local", *REPLICATED,
         "--kv-cache-dtype", "fp8_e4m3", "--max-step-tokens", "1", "--max-context", "131072"]
model("kimi_part", SLICE, {"calibrate": "1:512 1:8192"})
model("kimi_slice", SLICE, {"check": "1:1024 1:32768"})


def wanted(family, name):
    """MLA_COST_PARTS picks families or plans; all by default."""
    parts = os.environ.get("MLA_COST_PARTS")
    return not parts or any(p in (family, name) for p in parts.split())


def chosen():
    return [plan for plan in PLANS if wanted(plan[0], plan[1])]


def make(build, out):
    import make_steps

    root = os.path.join(HERE, "..", "..")
    shutil.rmtree(out, ignore_errors=True)
    for folder in ("bin", "lib", "plans"):
        os.makedirs(os.path.join(out, folder))
    run = os.path.join(build, "bin", "mla-run")
    subprocess.run(["strip", "-o", os.path.join(out, "bin", "mla-run"), run], check=True)
    libraries = subprocess.run(["ldd", run], check=True, capture_output=True, text=True)
    for line in libraries.stdout.splitlines():
        path = line.split("=>")[-1].split("(")[0].strip()
        if not path.startswith("/") or os.path.basename(path).split(".")[0] in (
                "libc", "libm", "ld-linux-x86-64", "libpthread", "libdl"):
            continue
        shutil.copy(path, os.path.join(out, "lib"))

    def one(plan):
        _, name, recipe, arguments, _ = plan
        with tempfile.TemporaryDirectory() as folder:
            if recipe[0] == "model":
                make_steps.model(folder, recipe[1])
                source = os.path.join(folder, recipe[1])
            else:
                source = os.path.join(folder, name + ".mlir")
                with open(source, "w") as f:
                    f.write(getattr(make_steps, recipe[0])(*recipe[1:]))
            target = os.path.join(out, "plans", name)
            result = subprocess.run(
                [os.path.join(build, "bin", "mla-compile"), source, "--target", TARGET,
                 *arguments, "-o", target], capture_output=True, text=True)
            if result.returncode:
                sys.exit(f"{name}: {result.stderr}")
            # The machine code is all that runs there.
            subprocess.run([sys.executable, os.path.join(root, "scripts", "gpu-tables.py"),
                            "drop-ptx", target], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, chosen()))
    subprocess.run(["tar", "-C", out, "-czf", os.path.join(out, "plans.tar.gz"), "plans"],
                   check=True)
    shutil.rmtree(os.path.join(out, "plans"))
    shutil.copy(__file__, os.path.join(out, "calibrate.py"))
    with open(os.path.join(out, "run.sh"), "w") as f:
        f.write('#!/usr/bin/env bash\n# Measures; results go to the folder $1 (default: '
                'results).\nhere=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n'
                'exec python3 "$here/calibrate.py" run "${1:-$here/results}"\n')
    os.chmod(os.path.join(out, "run.sh"), 0o755)


def slim(step, name):
    """What fitting needs of a measured step. Of step functions only what they are for:
    embedding and head come once."""
    model = step["architecture"] != "step function"
    kernels = [{"name": k["name"], "launches": k["launches"], "measured": k["measured"],
                "seconds": float("%.4g" % k["seconds"]), "bytes": int(k["bytes"])}
               for k in step["kernels"] if model or k["launches"] > 1]
    return {"plan": name, "architecture": step["architecture"],
            "device": step["device"]["name"], "target": step["target"],
            "sequences": step["sequences"], "context": step["context"],
            "tokens": step["tokens"],
            "step_seconds_device": float("%.5g" % step["step_seconds_device"]),
            "read_ceiling_bytes_per_second":
                float("%.5g" % step["read_ceiling_bytes_per_second"]),
            "kernels": kernels}


def write(path, steps):
    """One line a step: small, and differences can be read."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(s, separators=(",", ":")) for s in steps)
                + "\n]\n")


def run(results):
    import time

    env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(HERE, "lib") + ":"
               + os.environ.get("LD_LIBRARY_PATH", ""))
    failed, found = 0, {}
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["tar", "-C", work, "-xzf", os.path.join(HERE, "plans.tar.gz")],
                       check=True)
        for family, name, _, _, splits in chosen():
            start = time.time()
            steps = [(split, s) for split, text in splits.items() for s in text.split()]
            file = os.path.join(work, "bench.json")
            result = subprocess.run(
                [os.path.join(HERE, "bin", "mla-run"), "bench",
                 os.path.join(work, "plans", name), "--steps", ",".join(s for _, s in steps),
                 "--decode-tokens", "10", "--json-file", file],
                env=env, capture_output=True, text=True)
            print(f"{name}: {time.time() - start:.1f} s {result.stderr.strip()[:500]}",
                  flush=True)
            if result.returncode:
                failed += 1
                continue
            with open(file) as f:
                measured = json.load(f)
            if isinstance(measured, dict):
                measured = [measured]
            for (split, _), step in zip(steps, measured):
                found.setdefault((split, family), []).append(slim(step, name))
            # After each plan: what was measured stays if time runs out.
            for (split, kind), all_steps in found.items():
                write(os.path.join(results, split, kind + ".json"), all_steps)
    print(f"{sum(map(len, found.values()))} steps, {failed} plans failed")
    sys.exit(1 if failed else 0)


def main(arguments):
    if arguments[:1] == ["make"] and len(arguments) == 3:
        make(*arguments[1:])
    elif arguments[:1] == ["run"] and len(arguments) == 2:
        run(arguments[1])
    elif arguments == ["list"]:
        for family, name, _, _, splits in PLANS:
            for split, steps in splits.items():
                print(f"{split:10} {family:10} {name:32} {steps}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
