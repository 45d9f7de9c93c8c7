"""Writes the tables of docs/predictions.md: what mla-compile --explain predicts for eight
RTX PRO 6000, beside figures that others have published.

    benchmarks/predictions.py [--compiler build/release/bin/mla-compile] [--write]

Without --write the tables go to standard output."""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "test/data/configs"
MACHINE = "rtx-pro-6000x8-pcie5"
PAGE = ROOT / "docs/predictions.md"

KIMI25 = "nvidia--Kimi-K2.5-NVFP4_config.json"
KIMI26 = "nvidia--Kimi-K2.6-NVFP4_config.json"
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


def explain(compiler, model, machine, *options):
    command = [compiler, CONFIGS / model, "--explain=json", "--machine", machine, *options]
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
            "--max-sequences", "128",
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
        "| reductions of 14 KB | us each | of a step | step | tokens/s |",
        "| --- | --- | --- | --- | --- |",
    ]

    def row(what, report, method):
        step = step_of(report, 0, 1)
        seconds = step["collectives_by_method"][method]
        total = step["seconds"]["step"] - step["seconds"]["collectives"] + seconds
        each = seconds / report["all_reduces"] * 1e6
        lines.append(
            f"| {what} | {each:.0f} | {seconds / total * 100:.0f}% | {total * 1e3:.1f} ms | "
            f"{1 / total:.0f} |"
        )

    options = ("--contexts", "0", "--batches", "1")
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler", default=str(ROOT / "build/release/bin/mla-compile"))
    parser.add_argument("--write", action="store_true", help="put them into docs/predictions.md")
    arguments = parser.parse_args()
    tables = {
        "published": published_table(arguments.compiler),
        "collectives": collectives_table(arguments.compiler),
    }
    if not arguments.write:
        for lines in tables.values():
            print("\n".join(lines) + "\n")
        return
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = before + begin + "\n".join(lines) + "\n" + end + after
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
