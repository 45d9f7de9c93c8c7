#!/usr/bin/env bash
# Makes a folder for a machine that has a GPU and neither LLVM nor this build: the
# programs with the libraries that they need, plans compiled here, and run.sh.
# Models and goldens stay in the tree, beside which the folder is to lie.
#
#   scripts/gpu-bundle.sh BUILD OUT [TARGET]
#
# BUILD is a build folder, TARGET the GPU (default sm_90a). MLA_BUNDLE_PARTS picks
# from "cases goldens kjv ranks collectives bench" (default: all), MLA_BUNDLE_CASES from the cases,
# MLA_BUNDLE_FORMATS from the formats of the goldens.
set -euo pipefail
build=$1 out=$2 target=${3:-sm_90a}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
parts=${MLA_BUNDLE_PARTS:-cases goldens kjv ranks collectives bench}
compile="$build/bin/mla-compile"
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/log"
plans=$(mktemp -d)
trap 'rm -rf "$plans"' EXIT

# program NAME: from the build, with its libraries.
program() {
  strip -o "$out/bin/$1" "$build/bin/$1"
  # All but what every glibc system has.
  ldd "$build/bin/$1" | awk '$3 ~ /^\// { print $3 }' |
    grep -vE '/(libc|libm|ld-linux[^/]*|libpthread|libdl)\.so' |
    xargs -I{} cp -nL {} "$out/lib/" || true
}
program mla-run
program mla-quantize
cp "$root/scripts/gpu-run.sh" "$out/run.sh"
cp "$root/test/Integration/check.py" "$root/scripts/gpu-tables.py" \
  "$root/scripts/gpu-ranks.py" "$out/"

# one NAME TARGET ARGUMENTS...: a plan, or a line in the log why there is none.
one() {
  local name=$1 kind=$2
  shift 2
  local log
  log=$(mktemp)
  mkdir -p "$(dirname "$plans/$name")"
  if ! "$compile" "$@" --target "$kind" -o "$plans/$name" >"$log" 2>&1; then
    echo "$name: $(grep error "$log" | head -1)" | tee -a "$out/log/refused"
  elif [ -e "$plans/$name/kernels.cubin" ]; then
    # The machine code is all that runs there.
    python3 "$root/scripts/gpu-tables.py" drop-ptx "$plans/$name"
  fi
  rm -f "$log"
}
# As many at a time as there are processors.
start() {
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  "$@" &
}
# pair NAME ARGUMENTS...: for the host, the oracle, and for the GPU.
pair() {
  local name=$1
  shift
  start one "$name/host" host "$@" --kv-cache-dtype f32
  start one "$name/gpu" "$target" "$@" --kv-cache-dtype bf16
}

for part in $parts; do
  case $part in
  cases)
    python3 "$root/test/CodeGen/NVVM/make_cases.py" "$plans/src" ${MLA_BUNDLE_CASES:-} >/dev/null
    for file in "$plans"/src/*.mlir; do
      pair "cases/$(basename "$file" .mlir)" "$file" --synthetic-weights 1 \
        --max-step-tokens 128 --max-context 4096
    done
    wait
    rm -rf "$plans/src"
    ;;
  goldens)
    for folder in "$root"/test/data/goldens/*/; do
      name=$(basename "$folder")
      [ -e "$folder/config.json" ] || continue
      if [ ! -e "$folder/model.safetensors" ]; then
        pair "synthetic/$name" "$folder" --synthetic-weights 1 --max-step-tokens 128
        continue
      fi
      for format in ${MLA_BUNDLE_FORMATS:-bf16 fp8-block nvfp4 int4-g32}; do
        model=$plans/models/$name.$format
        mkdir -p "$plans/models"
        "$build/bin/mla-quantize" "$folder" --weights $format -o "$model" \
          >"$plans/log" 2>&1 || {
          echo "$name.$format: $(tail -1 "$plans/log")" >>"$out/log/refused"
          continue
        }
        pair "goldens/$name.$format" "$model" --max-step-tokens 128
      done
    done
    wait
    rm -rf "$plans/models"
    ;;
  kjv)
    model=$root/python-free-examples/models/kjv-tiny
    pair kjv/bf16 "$model"
    one kjv/bf16-fp8cache/gpu "$target" "$model" --kv-cache-dtype fp8_e4m3
    for format in fp8-block nvfp4 int4-g32; do
      "$build/bin/mla-quantize" "$model" --weights $format -o "$plans/q" >/dev/null 2>&1
      pair "kjv/$format" "$plans/q"
      wait
      rm -rf "$plans/q"
    done
    ;;
  ranks)
    python3 "$root/scripts/gpu-ranks.py" plans >"$plans/list"
    for name in $(awk '{ print $1 "." $2 }' "$plans/list" | sort -u); do
      checkpoint=$root/test/data/goldens/${name%.*}
      [ -e "$checkpoint/config.json" ] ||
        checkpoint=$root/python-free-examples/models/${name%.*}
      if [ "$name" != kjv-tiny.bf16 ]; then # That is what it is in.
        mkdir -p "$plans/models"
        "$build/bin/mla-quantize" "$checkpoint" --weights "${name##*.}" \
          -o "$plans/models/$name" >/dev/null
        checkpoint=$plans/models/$name
      fi
      start one "ranks/$name/host" host "$checkpoint" --kv-cache-dtype f32 --max-step-tokens 128
      start one "ranks/$name/one" "$target" "$checkpoint" --kv-cache-dtype bf16 --max-step-tokens 128
      while read -r model format plan options; do
        [ "$model.$format" = "$name" ] || continue
        # shellcheck disable=SC2086
        start one "ranks/$name/$plan" "$target" "$checkpoint" --kv-cache-dtype bf16 \
          --max-step-tokens 128 $options
      done <"$plans/list"
    done
    wait
    rm -rf "$plans/models" "$plans/list"
    ;;
  collectives)
    program GpuCollectivesTests
    program gpu_collectives
    ;;
  bench)
    python3 "$root/benchmarks/gpu/make_steps.py" "$plans/src"
    for file in "$plans"/src/linear_*.mlir "$plans"/src/experts_*.mlir; do
      start one "bench/$(basename "$file" .mlir)/gpu" "$target" "$file" \
        --synthetic-weights 1 --max-step-tokens 1 --max-context 4096
    done
    for file in "$plans"/src/attention_*.mlir; do
      for cache in bf16 fp8_e4m3; do
        start one "bench/$(basename "$file" .mlir)_$cache/gpu" "$target" "$file" \
          --synthetic-weights 1 --max-step-tokens 64 --max-context 131072 \
          --kv-cache-dtype $cache
      done
    done
    for cut in kimi_slice kimi_layers; do
      python3 "$root/benchmarks/gpu/make_steps.py" "$plans/src" $cut
    done
    start one bench/kimi_slice/gpu "$target" "$plans/src/kimi_slice" --ranks 8 \
      --latent-projections replicated --router replicated \
      --collectives=local --synthetic-weights 1 --max-step-tokens 1 \
      --max-context 131072 --kv-cache-dtype fp8_e4m3
    start one bench/kimi_layers/gpu "$target" "$plans/src/kimi_layers" --synthetic-weights 1 \
      --max-step-tokens 4096 --max-context 8192
    wait
    rm -rf "$plans/src"
    ;;
  esac
done
wait
rm -f "$plans/log"
# Each host plan holds a library, each plan its launches: they pack ten to one.
tar -C "$plans" -czf "$out/plans.tar.gz" .
du -sh "$out" >&2
