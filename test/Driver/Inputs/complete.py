"""Prints a config with more keys: complete.py CONFIG.json KEY=JSON..."""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    config = json.load(file)
for pair in sys.argv[2:]:
    key, _, value = pair.partition("=")
    config[key] = json.loads(value)
print(json.dumps(config, indent=2))
