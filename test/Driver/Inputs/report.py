"""Checks the JSON of --explain or --compare:
    report.py FILE PATH=VALUE...
PATH is keys and indices with dots between them; [KEY:VALUE] finds the element of an
array that has this value. VALUE is JSON, or text; PATH~TEXT asks for a part of the text,
PATH? that it is there, PATH! that it is not.
    report.py same FILE PLAN.txt
compares the bytes of the report with those that mla-run inspect printed of a plan."""
import json
import re
import sys


def unique(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key comes twice: {keys}"
    return dict(pairs)


def load(name):
    with open(name, encoding="utf-8") as file:
        return json.load(file, object_pairs_hook=unique)


def find(value, path):
    for key in re.findall(r"\[[^\]]*\]|[^.\[]+", path):
        if key.startswith("["):
            name, _, wanted = key[1:-1].partition(":")
            found = [v for v in value if v.get(name) is not None and str(v[name]) == wanted]
            value = found[0] if found else None
        elif isinstance(value, list):
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = value.get(key)
        if value is None:
            return None
    return value


def plain(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if sys.argv[1] == "same":
    memory = load(sys.argv[2])["memory"]
    with open(sys.argv[3], encoding="utf-8") as file:
        line = next(l for l in file if l.startswith("memory "))
    numbers = [int(n) for n in re.findall(r"\d+", line)]
    keys = ["weights", "workspace", "ports"]
    ours = [memory[f"{key}_bytes"] for key in keys]
    ours.append(memory["cache_bytes_per_token"])
    if ours != numbers:
        sys.exit(f"expected {numbers}, found {ours}")
    sys.exit(0)

report = load(sys.argv[1])
for check in sys.argv[2:]:
    path, sign, wanted = re.match(r"(.*?)([=~?!])(?![^\[]*\])(.*)", check).groups()
    found = find(report, path)
    ok = {
        "=": lambda: found == plain(wanted),
        "~": lambda: found is not None and wanted in json.dumps(found, ensure_ascii=False),
        "?": lambda: found is not None,
        "!": lambda: found is None,
    }[sign]()
    if not ok:
        sys.exit(f"{check}: found {json.dumps(found)}")
