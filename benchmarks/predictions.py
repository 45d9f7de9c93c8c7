"""Writes the tables of docs/predictions.md: what mla-compile --explain predicts for eight
RTX PRO 6000, beside figures that others have published.

    benchmarks/predictions.py [--compiler build/release/bin/mla-compile] [--write | --check]

Without --write the tables go to standard output; --check fails if the page has others."""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "test/data/configs"
MACHINE = "rtx-pro-6000x8-pcie5"
PAGE = ROOT / "docs/predictions.md"

KIMI25 = "nvidia--Kimi-K2.5-NVFP4_config.json"
KIMI26 = "nvidia--Kimi-K2.6-NVFP4_config.json"
V3 = "deepseek-ai--DeepSeek-V3_config.json"
GLM5 = "nvidia--GLM-5-NVFP4_config.json"
GLM51 = "nvidia--GLM-5.1-NVFP4_config.json"
GLM52 = "nvidia--GLM-5.2-NVFP4_config.json"

# model, who measured, what, context, requests, tokens/s as published
PUBLISHED = [
    ("Kimi-K2.5 NVFP4", KIMI25, "vLLM, early 2026", 0, 1, "about 60"),
    ("Kimi-K2.5 NVFP4", KIMI25, "SGLang, FP8 cache", 0, 1, "53 to 55"),
    ("Kimi-K2.6 NVFP4", KIMI26, "vLLM fork, FP8 cache", 0, 1, "92.4"),
    ("Kimi-K2.6 NVFP4", KIMI26, "the same", 32768, 1, "73.4"),
    ("Kimi-K2.6 NVFP4", KIMI26, "the same", 131072, 1, "46.1"),
    ("Kimi-K2.6 NVFP4", KIMI26, "the same, all requests", 0, 128, "2223"),
    ("GLM-5.1 NVFP4", GLM51, "without prediction layer", 0, 1, "59"),
    ("GLM-5.2 NVFP4", GLM52, "without prediction layer", 0, 1, "88"),
]


MODELS = [("Kimi-K2.5 NVFP4", KIMI25), ("DeepSeek-V3 FP8", V3), ("GLM-5 NVFP4", GLM5)]
CONTEXTS = (0, 32768, 131072)
# As the published figures' engines divide a model.
PLAIN = ("--experts", "tp8", "--latent-projections", "replicated")
PLAIN += ("--router", "replicated", "--cache", "replicated")


def explain(compiler, model, machine, *options):
    """Of a config, with its producer's hf_quant_config.json where that says more."""
    sidecar = CONFIGS / model.replace("_config.json", "_hf_quant_config.json")
    if sidecar.exists():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(CONFIGS / model, f"{folder}/config.json")
            shutil.copy(sidecar, f"{folder}/hf_quant_config.json")
            return explained(compiler, folder, machine, options)
    return explained(compiler, CONFIGS / model, machine, options)


def explained(compiler, path, machine, options):
    command = [compiler, path, "--explain=json", "--machine", machine, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def step_of(report, context, batch):
    for step in report["steps"]:
        if step["context"] == context and step["batch"] == batch:
            return step
    raise SystemExit(f"no step of {batch} x {context} for {report['model']['file']}")


def slow_machine(folder, microseconds):
    """The machine with one figure for all reductions: NCCL as it was seen."""
    machine = json.loads((ROOT / f"share/machines/{MACHINE}.json").read_text())
    machine["name"] += "-slow"
    machine["collectives"] = [
        {"method": "nccl", "ranks": 8, "bytes": size, "seconds": microseconds * 1e-6}
        for size in (4096, 1 << 20)
    ]
    machine["sources"] = {
        key: value
        for key, value in machine["sources"].items()
        if not key.startswith("/collectives/")
    }
    for i in range(2):
        machine["sources"][f"/collectives/{i}"] = "assumed: as seen in a profile of vLLM"
    path = pathlib.Path(folder) / "slow.json"
    path.write_text(json.dumps(machine, indent=2))
    return str(path)


def published_table(compiler):
    lines = [
        "| model | published by | context | requests | tokens/s | predicted | ms: weights, "
        "attention, experts, small and gaps, collectives | floor |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, config, who, context, batch, published in PUBLISHED:
        report = explain(
            compiler, config, MACHINE, "--contexts", str(context), "--batches", str(batch),
            "--max-sequences", "128", *PLAIN,
        )
        step = step_of(report, context, batch)
        s = step["seconds"]
        parts = [s["weights"], s["attention"], s["experts"]]
        parts += [s["small_kernels"] + s["gaps"], s["collectives"]]
        text = ", ".join(f"{part * 1e3:.2f}" for part in parts)
        lines.append(
            f"| {name} | {who} | {context:,} | {batch} | {published} | "
            f"{step['tokens_per_second']:.0f} | {text} | {s['floor'] * 1e3:.2f} |"
        )
    return lines


def collectives_table(compiler):
    lines = [
        "| reductions of 14 KB (NCCL: 28, and the kernel that adds the residual) | us each | "
        "of a step | step | tokens/s |",
        "| --- | --- | --- | --- | --- |",
    ]

    def row(what, report, method):
        step = step_of(report, 0, 1)
        seconds = step["collectives_by_method"][method]
        total = step["step_by_method"][method]
        each = seconds / report["all_reduces"] * 1e6
        lines.append(
            f"| {what} | {each:.0f} | {seconds / total * 100:.0f}% | {total * 1e3:.1f} ms | "
            f"{1 / total:.0f} |"
        )

    options = ("--contexts", "0", "--batches", "1", *PLAIN)
    with tempfile.TemporaryDirectory() as folder:
        for microseconds in (90, 48):
            report = explain(compiler, KIMI25, slow_machine(folder, microseconds), *options)
            what = "as seen: NCCL" if microseconds == 90 else "NCCL, not tuned, two sockets"
            row(what, report, "nccl")
    report = explain(compiler, KIMI25, MACHINE, *options)
    row("NCCL, tuned", report, "nccl")
    row("fused with the residual and the norm", report, "fused")
    row("one-shot kernel", report, "one_shot")
    return lines


def exchanges_table(reports):
    lines = [
        "| model | reductions: embedding, attention, MLP or experts | kernels before: sums, "
        "residuals, norms | after: fused, sums, residuals, norms | gathers | beside other "
        "work |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, report in reports:

        def count(op, report=report):
            return sum(o["count"] for o in report["ops"] if o["op"] == op)

        layers = report["model"]["layers"]
        sums, fused = report["all_reduces"], report["all_reduces_fused"]
        assert sums == 1 + 2 * layers, "not one for the embedding and two a layer"
        # The report has the ops of the graph after fusion. The embedding's sum has a norm
        # behind it and no residual.
        after = (fused, sums - fused, count("mla.add"), count("mla.rms_norm"))
        adds, norms = after[2] + fused - 1, after[3] + fused
        lines.append(
            f"| {name} | {sums} = 1 + {layers} + {layers} | {sums + adds + norms} = "
            f"{sums} + {adds} + {norms} | {sum(after)} = "
            f"{' + '.join(map(str, after))} | {report['all_gathers']} (logits) | "
            f"{report['overlapped']} |"
        )
    return lines


def methods_table(reports):
    lines = [
        "| model | exchange | ms at context 0 | 32,768 | 131,072 |",
        "| --- | --- | --- | --- | --- |",
    ]
    methods = [
        ("NCCL", "nccl"),
        ("one-shot", "one_shot"),
        ("two-shot", "two_shot"),
        ("fused with residual and norm", "fused"),
        ("each in its fastest way, overlapped", "overlapped"),
    ]

    def row(name, what, seconds):
        values = " | ".join("" if s is None else f"{s * 1e3:.2f}" for s in seconds)
        lines.append(f"| {name} | {what} | {values} |")

    for name, report in reports:
        steps = [step_of(report, context, 1) for context in CONTEXTS]
        for what, method in methods:
            row(name, what, [step["step_by_method"][method] for step in steps])
        row(name, "the fastest of these", [step["seconds"]["step"] for step in steps])
    return lines


def sharded_rows(alternatives):
    """Lines for the cache alone, added to the fastest step."""
    lines = []
    for name, report, layouts in alternatives:
        found = {a["layout"]: a for a in layouts["alternatives"]}
        base, sharded = found["tensor parallel"], found["cache sharded"]
        if "seconds" not in sharded:
            lines.append(f"| {name} | cache sharded | not possible | | |")
            continue
        values = []
        for i, context in enumerate(layouts["contexts"]):
            step = step_of(report, CONTEXTS[i], 1)["seconds"]["step"]
            assert context in (CONTEXTS[i], CONTEXTS[i] - 1)
            values.append(f"{(step + sharded['seconds'][i] - base['seconds'][i]) * 1e3:.2f}")
        lines.append(f"| {name} | the fastest, cache sharded | {' | '.join(values)} |")
    return lines


def layouts_table(alternatives):
    lines = [
        "| model | layout | ms at context 0 | 32,768 | 131,072 | weights of a rank | "
        "tokens that fit | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, _, layouts in alternatives:
        made = [a for a in layouts["alternatives"] if "seconds" in a]
        least = min(made, key=lambda a: sum(a["seconds"]))
        for a in made:
            if a["layout"].count(",") and not a["chosen"] and a is not least:
                continue
            values = [f"{s * 1e3:.2f}" for s in a["seconds"]]
            # A context that the plan cannot have stands for the ones beyond it.
            values = (values + [""] * 3)[:3]
            fits = f"{a['tokens_that_fit']:,}" if "tokens_that_fit" in a else ""
            word = "chosen" if a["chosen"] else "no kernels" if "refusal" in a else ""
            lines.append(
                f"| {name} | {a['layout']} | {' | '.join(values)} | "
                f"{a['weights_bytes'] / 1e9:.1f} GB | {fits} | {word} |"
            )
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default=str(ROOT / "build/release/bin/mla-compile"))
    parser.add_argument("--write", action="store_true", help="put them into docs/predictions.md")
    parser.add_argument("--check", action="store_true", help="fail if the page has others")
    arguments = parser.parse_args()
    compiler = arguments.compiler
    plain = [
        (name, explain(compiler, config, MACHINE, "--batches", "1", *PLAIN))
        for name, config in MODELS
    ]
    open_layouts = [
        (name, report, explain(compiler, config, MACHINE, "--batches", "1")["layouts"])
        for (name, config), (_, report) in zip(MODELS, plain, strict=True)
    ]
    tables = {
        "published": published_table(compiler),
        "collectives": collectives_table(compiler),
        "exchanges": exchanges_table(plain),
        "methods": methods_table(plain) + sharded_rows(open_layouts),
        "layouts": layouts_table(open_layouts),
    }
    if not arguments.write and not arguments.check:
        for lines in tables.values():
            print("\n".join(lines) + "\n")
        return
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = before + begin + "\n".join(lines) + "\n" + end + after
    if arguments.check:
        if text != PAGE.read_text(encoding="utf-8"):
            sys.exit(f"{PAGE} is stale: benchmarks/predictions.py --write")
        return
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
