#!/usr/bin/env bash
# Installs the packages that a build needs and that are missing, by name, on
# Debian 12; configures and builds a preset. Sourced by quickstart.sh and
# test/run.sh. Quick when there is nothing to do.
#
#   setup_packages            install what is missing
#   setup_build PRESET TARGET...   configure (if needed) and build

set -euo pipefail
mla_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

mla_packages=(
  g++ cmake ninja-build ccache
  libmlir-22-dev mlir-22-tools llvm-22-dev llvm-22-tools liblld-22-dev
  nlohmann-json3-dev libcli11-dev libpcre2-dev libgtest-dev python3
)

setup_packages() {
  local missing=() name
  for name in "${mla_packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null |
      grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "error: these packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2
      return 1
    }
    as_root=(sudo)
  fi
  echo "installing: ${missing[*]}" >&2
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
      --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "error: the packages could not be installed (Debian 12 has them in its main and security archives)" >&2
    return 1
  fi
  rm -f "$log"
}

setup_build() {
  local preset=$1
  shift
  local build=$mla_root/build/$preset log
  log=$(mktemp)
  if [ ! -e "$build/build.ninja" ]; then
    echo "configuring $preset" >&2
    (cd "$mla_root" && cmake --preset "$preset") >"$log" 2>&1 || {
      cat "$log" >&2
      rm -rf "$build/CMakeCache.txt"
      echo "error: configuring failed" >&2
      return 1
    }
  fi
  echo "building $preset" >&2
  # A terminal sees ninja's own progress line; a log sees only failures.
  if [ -t 1 ]; then
    ninja -C "$build" "$@"
  else
    ninja -C "$build" "$@" >"$log" 2>&1 || {
      grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" >&2 || true
      echo "error: the build failed" >&2
      return 1
    }
  fi
  rm -f "$log"
}
