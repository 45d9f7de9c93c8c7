"""Checks the choice of a layout in the JSON of --explain by the rule of
docs/cost-model.md:
    layouts.py FILE [MODULE.mlir]
With a module: that a compile divided the model as the report says."""
import json
import re
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
rows = report["layouts"]["alternatives"]


def departures(row):
    name = row["layout"]
    return 0 if name == "tensor parallel" else 1 + name.count(",")


def mean(row):
    return sum(row["seconds"]) / len(row["seconds"])


room = report["machine"]["memory_bytes"]
possible = [r for r in rows if "refusal" not in r and r["weights_bytes"] < room]
least = min(map(mean, possible))
within = [r for r in possible if mean(r) <= 1.03 * least]
best = min(within, key=lambda r: (departures(r), mean(r)))
chosen = [r for r in rows if r["chosen"]]
assert chosen == [best], f"expected {best['layout']}, found {[r['layout'] for r in chosen]}"
assert report["layout"] == best["layout"]

# A sharded cache takes a rank's part of the bytes; experts in groups as many as not.
by_name = {r["layout"]: r for r in rows}
plain, cache = by_name["tensor parallel"], by_name.get("cache sharded", {})
if "seconds" in cache:
    assert cache["cache_bytes_per_token"] * report["ranks"] == plain["cache_bytes_per_token"]
    assert cache["seconds"][0] > plain["seconds"][0], "two exchanges a layer more cost something"
down = by_name["latent projections sharded"]
assert down["weights_bytes"] < plain["weights_bytes"]

for step in report["steps"]:
    totals = step["step_by_method"]
    assert abs(min(totals.values()) - step["seconds"]["step"]) < 1e-9
    assert totals["overlapped"] <= totals.get("fused", 1e9) + 1e-9
    if step["collectives_method"] != "overlapped":  # part of which is hidden
        assert step["seconds"]["collectives_floor"] <= step["seconds"]["collectives"] + 1e-9

if len(sys.argv) > 2:
    with open(sys.argv[2], encoding="utf-8") as file:
        text = re.search(r'mla.layout = "([^"]*)"', file.read())[1]
    for part in ["latent projections", "router", "cache"]:
        word = "sharded" if f"{part} sharded" in best["layout"] else "replicated"
        assert f"{part} {word}" in text, text
