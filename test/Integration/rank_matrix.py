#!/usr/bin/env python3
"""A model on several ranks, in layouts, against the same on one rank.

  rank_matrix.py MODEL [--full] [--ranks 2,4,8] [--compile OPTIONS] [--run OPTIONS]

Compiles MODEL for one rank and for each number of ranks in each layout, and compares
logits: of two sequences whose lengths end inside and behind pages of the cache, given
at once and in pieces of 7 tokens, within 1e-4 (MLA_TOLERANCE). All ranks must have the
same bits. Without --full a selection in which each number of ranks, each way to divide
experts, projections, routers and caches comes up, and each pair of them that could
disagree; with it, all combinations. --compile and --run are options of mla-compile and
mla-run for all of them. Prints a line each; fails if any is wrong.
"""

import argparse
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile

from check import TOLERANCE, read_safetensors, relative_error


def experts_of(ranks):
    """tpN, epN and one way between."""
    ways = [f"tp{ranks}", f"ep{ranks}"]
    if ranks > 2:
        half = next(d for d in range(2, ranks + 1) if ranks % d == 0)
        if half < ranks:
            ways.append(f"tp{ranks // half}xep{half}")
    return ways


def combinations(ranks, full, can_shard_cache):
    experts = experts_of(ranks)
    caches = ["replicated", "sharded"] if can_shard_cache else ["replicated"]
    both = ["replicated", "sharded"]
    every = list(itertools.product(experts, both, both, caches))
    if full:
        return every
    chosen = [(e, both[i % 2], both[(i + 1) % 2], caches[i % len(caches)]) for i, e in enumerate(experts)]
    return chosen + [(experts[0], both[1], both[1], caches[-1])]


def sequences(vocab):
    """Of 150 and 64 tokens: behind two pages, and a page to the last token."""
    state, out = 7, []
    for length in (150, 64):
        ids = []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            ids.append((state >> 33) % vocab)
        out.append(ids)
    return out


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--compile", default="")
    parser.add_argument("--run", default="")
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--no-sharded-cache", action="store_true")
    args = parser.parse_args()
    ids = [",".join(map(str, s)) for s in sequences(args.vocab)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        plan, file = os.path.join(folder, "plan"), os.path.join(folder, "logits")

        def logits(options, chunk, several):
            shutil.rmtree(plan, ignore_errors=True)
            compiling = ["mla-compile", args.model, "-o", plan, *args.compile.split(), *options]
            subprocess.run(compiling, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            command = ["mla-run", "logits", plan, "-o", file, *args.run.split()]
            if chunk:
                command += ["--chunk", "7"]
            if several:
                command.append("--check-ranks")
            for text in ids:
                command += ["--ids", text]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return read_safetensors(file)

        expected = logits([], False, False)
        number = 0
        for ranks in map(int, args.ranks.split(",")):
            for experts, down, router, cache in combinations(ranks, args.full, not args.no_sharded_cache):
                options = ["--ranks", str(ranks), "--experts", experts]
                options += ["--latent-projections", down, "--router", router]
                if not args.no_sharded_cache:
                    options += ["--cache", cache]
                number += 1
                try:
                    found = logits(options, number % 2 == 0, True)
                    error = max(
                        relative_error(found[name][1], values)
                        for name, (_, values) in expected.items()
                    )
                except subprocess.CalledProcessError as problem:
                    print(" ".join(options), "failed:", problem)
                    error = math.inf
                good = error <= TOLERANCE
                failed += not good
                print(f"{' '.join(options)}: {error:.1e}{'' if good else '  WRONG'}", flush=True)
    print(f"{number - failed} of {number} agree with one rank")
    sys.exit(1 if failed or not number else 0)


if __name__ == "__main__":
    main()
