#!/usr/bin/env python3
"""Models on several ranks of GPUs, against the host on one.

  gpu-ranks.py plans                the plans that a bundle holds: a line each of
                                    MODEL FORMAT NAME and options of mla-compile
  gpu-ranks.py run FOLDER MODELS OUT.json [--gpu LIST] [--jobs N] [--only BEGIN] -- OPTIONS
                                    FOLDER/MODEL.FORMAT/{host,one,NAME}: plans for the
                                    host, for one GPU and for several ranks;
                                    MODELS/MODEL.FORMAT: checkpoints; BEGIN: of the
                                    names that are run; OPTIONS: of mla-run for
                                    several ranks

Compares logits: of two sequences that end behind two pages and with the last token of
one, at once and in pieces of 7 tokens, and of a third token by token. All ranks must
have the same bits (--check-ranks). Of each token's logits the relative error counts. A
token of which an expert is chosen otherwise, by a tie, is far off whatever computes it,
so the median over the tokens is judged: it may be what it is on one GPU and half as much
more, or 1e-2 (MLA_TOLERANCE); the error of all logits together is printed.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "test", "Integration")]
from check import read_safetensors, relative_error  # noqa: E402

FORMATS = ["bf16", "fp8-block", "nvfp4", "int4-g32"]


def plans():
    from rank_matrix import combinations

    def line(model, form, ranks, combination):
        experts, projections, router, cache = combination
        name = f"{ranks}.{experts}.{projections}.{router}.{cache}"
        print(model, form, name, "--ranks", ranks, "--experts", experts, "--latent-projections",
              projections, "--router", router, "--cache", cache)

    for form in FORMATS:
        for ranks in (2, 4, 8):
            for combination in combinations(ranks, False, True):
                line("kjv-tiny", form, ranks, combination)
    for ranks in (3, 8):  # of 4 heads
        for combination in combinations(ranks, False, True):
            line("v3_yarn", "bf16", ranks, combination)


def ids(seed, count, vocab):
    out = []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(str((seed >> 33) % vocab))
    return ",".join(out)


def cases(vocab):
    two = ["--ids", ids(7, 150, vocab), "--ids", ids(9, 64, vocab)]
    return {"whole": two, "pieces": two + ["--chunk", "7"],
            "tokens": ["--ids", ids(11, 40, vocab), "--chunk", "1"]}


def logits(plan, checkpoint, arguments, options):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "logits")
        command = ["mla-run", "logits", plan, "--checkpoint", checkpoint, "-o", file]
        try:
            done = subprocess.run(command + arguments + options, capture_output=True, text=True,
                                  timeout=120)
        except subprocess.TimeoutExpired:
            return None, "does not end"
        if done.returncode:
            return None, done.stderr.strip()[-400:]
        return read_safetensors(file), done.stderr.strip()


def run(args, options):
    tolerance = float(os.environ.get("MLA_TOLERANCE", 1e-2))
    results, failed = [], 0

    def one(folder, name, case, arguments, expected, options):
        """A run, and how far it is from the host."""
        begin = time.time()
        found, text = logits(os.path.join(folder, name), checkpoint, arguments, options)
        entry = {"model": model, "plan": name, "case": case, "seconds": round(time.time() - begin, 2)}
        if found is None:
            entry["failed"] = text
        else:
            entry["error"] = max(
                relative_error(found[k][1], expected[k][1]) for k in expected)
            tokens = sorted(
                relative_error(found[k][1][row:row + vocab], expected[k][1][row:row + vocab])
                for k in expected for row in range(0, len(expected[k][1]), vocab))
            entry["median"] = tokens[len(tokens) // 2]
            said = [line for line in text.splitlines() if "warning" in line]
            if said:
                entry["said"] = said[0]
        return entry

    for model in sorted(os.listdir(args.folder)):
        folder = os.path.join(args.folder, model)
        checkpoint = os.path.join(args.models, model)
        with open(os.path.join(folder, "host", "plan.json")) as f:
            vocab = json.load(f)["model"]["vocab_size"]
        expected, alone = {}, {}
        for case, arguments in cases(vocab).items():
            expected[case], text = logits(os.path.join(folder, "host"), checkpoint, arguments, [])
            if expected[case] is None:
                sys.exit(f"{model}, host: {text}")
            entry = one(folder, "one", case, arguments, expected[case], [])
            if "failed" in entry:
                sys.exit(f"{model}, one GPU: {entry['failed']}")
            alone[case] = entry
            results.append(entry)
        names = sorted(n for n in os.listdir(folder) if n not in ("host", "one") and n.startswith(args.only))
        several = ["--gpu", args.gpu, "--check-ranks", "--collective-timeout", "30", *options]
        if args.gpu == "each":
            several = several[2:]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            jobs = [pool.submit(one, folder, name, case, arguments, expected[case], several)
                    for name in names for case, arguments in cases(vocab).items()]
            for job in jobs:
                entry = job.result()
                results.append(entry)
                limit = max(tolerance, 1.5 * alone[entry["case"]]["median"])
                if "failed" in entry or not entry["median"] <= limit:
                    failed += 1
                    print(f"FAILED: {model} {entry['plan']} {entry['case']}:",
                          entry.get("failed") or f"{entry['median']:.1e}, limit {limit:.1e}")
        for case, one_gpu in alone.items():
            of = [e for e in results if e["model"] == model and e["case"] == case
                  and e["plan"] in names and "error" in e]
            print(f"{model}, {case}: {len(of)} plans, " + ", ".join(
                f"{what} {max((e[what] for e in of), default=0):.1e} ({one_gpu[what]:.1e} on one)"
                for what in ("median", "error")))
    with open(args.out, "w") as f:
        json.dump(results, f, indent=1)
    count = sum(e["plan"] != "one" for e in results)
    said = {e["said"] for e in results if "said" in e}
    for text in sorted(said):
        print("said:", text)
    print(f"ranks: {count - failed} passed, {failed} failed")
    return failed != 0 or count == 0


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "plans":
        return plans()
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=["run"])
    parser.add_argument("folder")
    parser.add_argument("models")
    parser.add_argument("out")
    parser.add_argument("--gpu", default="0", help="list, or 'each': one for each rank")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    own = sys.argv[1:]
    options = []
    if "--" in own:
        own, options = own[:own.index("--")], own[own.index("--") + 1:]
    return run(parser.parse_args(own), options)


if __name__ == "__main__":
    sys.exit(main())
