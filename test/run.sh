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

# unit_tests PRESET: GoogleTest programs through CTest.
unit_tests() {
  local log total bad
  log=$(mktemp)
  echo "unit tests ($1)"
  ctest --test-dir "$root/build/$1" -E '^lit$' -j "$jobs" \
    --output-on-failure >"$log" 2>&1
  # "97% tests passed, 3 tests failed out of 120"
  read -r bad total < <(sed -n \
    's/.*tests passed, \([0-9]*\) tests* failed out of \([0-9]*\).*/\1 \2/p' "$log")
  if [ -z "${total:-}" ]; then
    cat "$log"
    failed=$((failed + 1))
    echo "FAILED: ctest printed no total"
    return
  fi
  [ "$bad" -eq 0 ] || cat "$log"
  passed=$((passed + total - bad))
  failed=$((failed + bad))
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
lit_tests ci
count "generated documentation is current" "$root/docs/check-generated.sh" "$root/build/ci"
count "paths named in the documentation exist" "$root/docs/check-paths.sh"
if [ "${1:-}" != --quick ]; then
  count "sanitized build" setup_build asan-runtime unittests
  export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
  [ "$failed" -eq 0 ] && unit_tests asan-runtime
fi
finish
