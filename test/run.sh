#!/usr/bin/env bash
# From a fresh Debian 12 to a verdict: installs missing packages by name, builds
# everything, runs the unit tests, the lit suite (whole models included), then
# the unit tests of all that reads files or runs plans again under
# AddressSanitizer and UndefinedBehaviorSanitizer.
# Ends with a line "N passed, N failed".
#
#   ./test/run.sh            all of it
#   ./test/run.sh --quick    without the sanitizers

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/setup.sh"
set +e
passed=0 failed=0
jobs=$(nproc)

# count NAME COMMAND...: a check that is one test.
count() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
  fi
}

# unit_tests PRESET: GoogleTest programs, each in two processes that share its tests.
unit_tests() {
  local logs log good bad
  logs=$(mktemp -d)
  echo "unit tests ($1)"
  for program in "$root/build/$1"/bin/*Tests; do
    [ "$(basename "$program")" = GpuCollectivesTests ] && continue
    for shard in 0 1; do
      printf '%s\0' "$program" "$shard" "$logs/$(basename "$program").$shard"
    done
  done | xargs -0 -n 3 -P "$jobs" bash -c '
    GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$1 "$0" --gtest_brief=1 >"$2" 2>&1
    echo "exit $?" >>"$2"'
  for log in "$logs"/*; do
    good=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
    bad=$(sed -n 's/^ *\([0-9]*\) FAILED TESTS*$/\1/p' "$log")
    # One that ended early, or after its tests, as on a leak, has failed once.
    if [ -z "$good" ] || { [ -z "$bad" ] && ! grep -qx 'exit 0' "$log"; }; then
      bad=$((${bad:-0} + 1))
    fi
    if [ "${bad:-0}" -ne 0 ]; then
      echo "FAILED: $(basename "$log")"
      cat "$log"
    fi
    passed=$((passed + ${good:-0}))
    failed=$((failed + ${bad:-0}))
  done
}

# lit_tests PRESET: one test a file.
lit_tests() {
  local log good bad
  log=$(mktemp)
  echo "lit ($1)"
  "$(llvm_tool lit)" -sv -j "$jobs" "$root/build/$1/test" >"$log" 2>&1
  good=$(sed -n 's/^ *Passed *: *\([0-9]*\).*/\1/p' "$log")
  bad=$(sed -nE 's/^ *(Failed|Unresolved|Timed Out|Unexpectedly Passed) *: *([0-9]*).*/\2/p' \
    "$log" | awk '{ n += $1 } END { print n + 0 }')
  if [ -z "$good" ] || [ "$bad" -ne 0 ]; then
    cat "$log"
  fi
  if [ -z "$good$bad" ] || [ "${good:-0}" -eq 0 ]; then
    bad=$((bad + 1))
    echo "FAILED: lit ran no test"
  fi
  passed=$((passed + ${good:-0}))
  failed=$((failed + bad))
}

# What only runs on GPUs (scripts/gpu-bundle.sh) says so where there is none.
gpu_tests_skip() {
  CUDA_VISIBLE_DEVICES='' "$root/build/ci/bin/GpuCollectivesTests" |
    grep '^skipped: there is no GPU'
}

llvm_tool() {
  command -v "/usr/lib/llvm-22/bin/$1" || command -v "$1"
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

count "packages" setup_packages
[ "$failed" -eq 0 ] || finish
count "build" setup_build ci
[ "$failed" -eq 0 ] || finish
unit_tests ci
count "tests between GPUs are skipped" gpu_tests_skip
lit_tests ci
count "generated documentation is current" "$root/docs/check-generated.sh" "$root/build/ci"
count "paths named in the documentation exist" "$root/docs/check-paths.sh"
if [ "${1:-}" != --quick ]; then
  count "sanitized build" setup_build asan-runtime unittests
  export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
  [ "$failed" -eq 0 ] && unit_tests asan-runtime
fi
finish
