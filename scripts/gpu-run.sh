#!/usr/bin/env bash
# Runs what a GPU bundle (scripts/gpu-bundle.sh) holds, on the machine with the GPU.
#
#   run.sh [OUT]      raw results go to OUT (default: log/)
#
# The bundle lies in the project's tree or is told where it is: MLA_ROOT.
# MLA_RUN_PARTS picks from "cases goldens kjv ranks collectives hf sanitizer bench
# prefill" (default: all).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mkdir -p "${1:-$here/log}" && cd "${1:-$here/log}" && pwd)
root=${MLA_ROOT:-$(cd "$here/../.." && pwd)}
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$here/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plans=$work/plans
mkdir -p "$plans" "$work/json"
tar -C "$plans" -xzf "$here/plans.tar.gz"
parts=${MLA_RUN_PARTS:-cases goldens kjv ranks collectives hf sanitizer bench prefill}
passed=0 failed=0

# verdict NAME STATUS: counts, and names what failed.
verdict() {
  if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo "FAILED: $1"
    [ -e "$work/err" ] && head -3 "$work/err"
  fi
}

# same NAME TOLERANCE HOST GPU ARGUMENTS...: begins a comparison; a few at a time.
mkdir -p "$work/status"
same() {
  local name=$1 tolerance=$2 host=$3 gpu=$4
  shift 4
  while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n || true; done
  (
    mla-run compare "$host" "$gpu" --tolerance "$tolerance" --threads 3 --poison \
      --json "$@" >"$work/json/$name.json" 2>"$work/status/$name.err"
    echo $? >"$work/status/$name.rc"
  ) &
}
# Waits for the comparisons and counts them.
settle() {
  wait
  local rc name
  for rc in "$work"/status/*.rc; do
    [ -e "$rc" ] || continue
    name=$(basename "$rc" .rc)
    cp "$work/status/$name.err" "$work/err"
    verdict "$name" "$(cat "$rc")"
    rm -f "$rc"
  done
}

# Step sizes that use every program: one token, a few, tens, and a prompt. Two more
# tokens follow each.
lengths="1 3 40 100"
# lengths_of PLAN: those that the plan's context holds.
lengths_of() {
  local context n
  context=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1] + "/plan.json"))["model"]["max_positions"])' "$1")
  for n in $lengths; do [ $((n + 2)) -le "$context" ] && echo "$n"; done
}
# beyond NAME PLAN ARGUMENTS...: what is longer than the context must be refused.
beyond() {
  local name=$1 plan=$2
  shift 2
  [ "$(lengths_of "$plan" | wc -w)" -eq "$(echo $lengths | wc -w)" ] && return
  mla-run logits "$plan" --ids "$(printf '1,%.0s' {1..99})1" -o "$work/l.safetensors" "$@" \
    >"$work/err" 2>&1
  [ $? -eq 1 ] && grep -q "context of" "$work/err"
  verdict "$name, refused beyond its context" $?
}

for part in $parts; do
  start=$(date +%s)
  case $part in
  cases)
    for case in "$plans"/cases/* "$plans"/synthetic/*; do
      [ -e "$case/gpu/plan.json" ] && [ -e "$case/host/plan.json" ] || continue
      beyond "$(basename "$case")" "$case/gpu"
      for n in $(lengths_of "$case/gpu"); do
        same "$(basename "$case").$n" 2e-2 "$case/host" "$case/gpu" \
          --random $n --seed $n --decode 2
      done
    done
    settle
    ;;
  goldens)
    for case in "$plans"/goldens/*; do
      [ -e "$case/gpu/plan.json" ] || continue
      name=$(basename "$case")
      model=$work/models/$name
      mkdir -p "$work/models"
      mla-quantize "$root/test/data/goldens/${name%.*}" --weights "${name##*.}" \
        -o "$model" >/dev/null 2>"$work/err" || verdict "$name" 1
      beyond "$name" "$case/gpu" --checkpoint "$model"
      for n in $(lengths_of "$case/gpu"); do
        same "$name.$n" 5e-2 "$case/host" "$case/gpu" --checkpoint "$model" \
          --random $n --seed $n --decode 2
      done
    done
    settle
    ;;
  kjv)
    model=$root/python-free-examples/models/kjv-tiny
    for plan in "$plans"/kjv/*; do
      name=$(basename "$plan") checkpoint=$model
      if [ "$name" != bf16 ] && [ "$name" != bf16-fp8cache ]; then
        checkpoint=$work/kjv-$name
        mla-quantize "$model" --weights "$name" -o "$checkpoint" >/dev/null 2>&1
      fi
      for kind in host gpu; do
        [ -e "$plan/$kind/plan.json" ] || continue
        mla-run perplexity "$plan/$kind" --checkpoint "$checkpoint" \
          --file "$model/heldout.txt" --max-tokens 1500 --json \
          >"$work/json/kjv-$name-$kind.json" 2>"$work/err"
        verdict "perplexity $name $kind" $?
        echo "kjv-tiny $name $kind: $(tr -d '\n' <"$work/json/kjv-$name-$kind.json")"
      done
    done
    MLA_RUN_OPTIONS="--checkpoint $model" MLA_TOLERANCE=5e-2 MLA_MARGIN=0.1 \
      python3 "$here/check.py" kjv "$plans/kjv/bf16/gpu" \
      "$root/test/data/goldens/kjv-tiny" >"$out/kjv.txt" 2>"$work/err"
    verdict "kjv-tiny, logits and greedy text" $?
    tail -4 "$out/kjv.txt"
    ;;
  ranks)
    # Virtual ranks: all on one GPU, or, with MLA_RANKS_GPU=each, a GPU each.
    mkdir -p "$work/models"
    for folder in "$plans"/ranks/*; do
      name=$(basename "$folder")
      model=$root/test/data/goldens/${name%.*}
      [ -e "$model/config.json" ] || model=$root/python-free-examples/models/${name%.*}
      if [ "$name" = kjv-tiny.bf16 ]; then
        ln -sfn "$model" "$work/models/$name"
      else
        mla-quantize "$model" --weights "${name##*.}" -o "$work/models/$name" >/dev/null 2>&1
      fi
    done
    # shellcheck disable=SC2086
    python3 "$here/gpu-ranks.py" run "$plans/ranks" "$work/models" "$out/ranks.json" \
      --gpu "${MLA_RANKS_GPU:-0}" --jobs 4 ${MLA_RANKS_OPTIONS:-} 2>"$work/err"
    verdict "ranks" $?
    ;;
  hf)
    python3 "$here/gpu-tables.py" hf "$root"/test/data/goldens/{v3_kimi_like,v2_lite_like,v3_yarn,glm4_moe_lite} \
      "$root/python-free-examples/models/kjv-tiny" \
      2>"$work/err" || head -3 "$work/err"
    ;;
  collectives)
    # On all GPUs that there are; more ranks than that share them. MLA_COLLECTIVES_RANKS
    # are those that are measured (default: 2,4,8), MLA_COLLECTIVES_FILTER picks tests.
    # Processes on one GPU take turns of milliseconds: fewer tests.
    filter='*'
    [ "$(nvidia-smi -L | wc -l)" -gt 1 ] ||
      filter='*Threads*:*Processes:*EverySize*:*Killed*-*Rounds*Processes:*Replays*Processes:*Gathers*Processes:*Merges*Processes'
    GpuCollectivesTests --gtest_filter="${MLA_COLLECTIVES_FILTER:-$filter}" >"$out/collectives-tests.txt" 2>&1
    status=$?
    grep -E '^\[  (FAILED|PASSED)|^skipped|^by ' "$out/collectives-tests.txt" | sort -u
    : >"$work/err"
    verdict "collectives between GPUs" $status
    gpu_collectives ${MLA_COLLECTIVES_RANKS:+--ranks $MLA_COLLECTIVES_RANKS} \
      --json "$out/collectives.json" >"$out/collectives.txt" 2>"$work/err"
    verdict "bench of collectives" $?
    grep -E ' GPUs, | (fused|one_shot.add.norm|nccl.*|copy) +1 x ' "$out/collectives.txt"
    ;;
  sanitizer)
    if command -v compute-sanitizer >/dev/null; then
      for case in attention_q_lora moe_nvfp4_nvfp4_shared mlp_int4_g32; do
        [ -e "$plans/cases/$case/gpu" ] || continue
        compute-sanitizer --report-api-errors no --error-exitcode 9 mla-run logits "$plans/cases/$case/gpu" \
          --ids 1,2,3 -o "$work/l.safetensors" >"$out/sanitizer-$case.txt" 2>&1
        verdict "compute-sanitizer $case" $?
        tail -1 "$out/sanitizer-$case.txt"
      done
    fi
    ;;
  bench)
    for plan in "$plans"/bench/*; do
      [ -e "$plan/gpu/plan.json" ] || continue
      name=$(basename "$plan")
      case $name in
      attention_8_* | attention_16_*) settings="1:1024 1:32768 1:131000 32:32768" ;;
      attention_*) settings="1:1024 32:32768" ;;
      kimi_*) settings="1:1024 1:32768" ;;
      *) settings="1:64" ;;
      esac
      [ "$name" = kimi_layers ] && settings=1:1024
      for setting in $settings; do
        batch=${setting%:*} context=${setting#*:}
        json=$out/${name}_b${batch}_c${context}.json
        mla-run bench "$plan/gpu" --batch "$batch" --context "$context" \
          --cache-tokens $((batch * (context + 64))) --json-file "$json" \
          >/dev/null 2>"$work/err"
        verdict "bench $name batch $batch context $context" $?
        [ -e "$json" ] && python3 "$here/gpu-tables.py" step "$json" >>"$out/bench.txt"
      done
    done
    ;;
  prefill)
    # Each launch by itself, and what cuBLAS reaches in the same minute.
    python3 "$here/gpu-tables.py" cublas "$out/cublas.json" 2>"$work/err" || head -3 "$work/err"
    mla-run bench "$plans/bench/kimi_layers/gpu" --prompt-tokens 4096 --decode-tokens 2 \
      --cache-tokens 8192 --repeat 3 --profile >"$out/prefill_kimi_layers.txt" 2>"$work/err"
    verdict "prefill" $?
    python3 "$here/gpu-tables.py" prefill "$out"
    ;;
  esac
  echo "$part: $(($(date +%s) - start)) s"
done
[ -e "$out/bench.txt" ] && grep -v "^  " "$out/bench.txt"
tar -C "$work/json" -czf "$out/compare.tar.gz" .
python3 "$here/gpu-tables.py" compare "$work"/json/*.[0-9]*.json >"$out/compare.txt" 2>/dev/null
sort -t' ' -k3 "$out/compare.txt" | awk '{print}' | sort -k3,3gr | head -30
# In these an expert was chosen otherwise, by a tie: what followed was compared with
# the first plan's choice. A choice that is no tie is a failure.
ties=$(grep -c 'ties of experts' "$out/compare.txt")
echo "$passed passed ($ties comparisons with ties of experts), $failed failed"
[ "$failed" -eq 0 ]
