#!/usr/bin/env bash
# From a fresh Debian 12 to text: installs missing packages by name, builds the
# compiler and the runtime, compiles kjv-tiny for the host and lets it speak.
#
#   ./python-free-examples/quickstart.sh [PROMPT]

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../scripts/setup.sh"

prompt=${1:-In the beginning}
setup_packages
setup_build release mla-compile mla-run

bin=$mla_root/build/release/bin
plan=$mla_root/build/release/kjv-tiny.plan
model=$here/models/kjv-tiny
if [ ! -e "$plan/plan.json" ] || [ "$bin/mla-compile" -nt "$plan/plan.json" ]; then
  "$bin/mla-compile" "$model" --target=host -o "$plan" >&2
fi
printf '%s' "$prompt"
"$bin/mla-run" generate "$plan" --prompt "$prompt" --max-tokens 200 \
  --temperature 0.6 --top-p 0.95 --seed 1
