#!/usr/bin/env bash
# Fails if a page names a path of the repository that does not exist: words in
# backquotes that begin with a folder of ours.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bad=0
for page in README.md ARCHITECTURE.md CONTRIBUTING.md docs/*.md; do
  [ -e "$page" ] || continue
  while read -r path; do
    case $path in *[*{}\<\>\$]*) continue ;; esac
    [ -e "$path" ] || { echo "$page names $path, which does not exist"; bad=1; }
  done < <(grep -oE '`(include|lib|runtime|tools|test|unittests|benchmarks|docs|scripts|python-free-examples|cmake)/[^` ]*`' "$page" | tr -d '`' | sed 's/:[0-9].*//' | sort -u)
done
exit $bad
