#!/usr/bin/env bash
# Measures a GPU with binaries that were built elsewhere, and leaves JSON. It builds nothing.
# perf/gpu.sh pack FILE packs the release binaries into a .tar.xz to be carried, at most 64 MiB
# perf/gpu.sh run BIN OUT runs everything from the folder of the binaries BIN, in less than eight
# minutes; results go to OUT
# perf/gpu.sh reduced BIN OUT the same steps and networks, few executions of one and two rows, for a
# driver that computes on the host: each step takes what it takes
# perf/gpu.sh quick BIN OUT the steps on small networks, in a minute or two
# Exit codes: 0 done; 1 a criterion failed (OUT/summary.json says which); 2 bad usage; 3 no GPU.
set -euo pipefail

# What the steps of `run` share, seconds; one that is killed and the summary take 25 more at most.
time_limit=${SYMPHONY_GPU_TIME_LIMIT:-450}

binaries=(symphony loadgen simulate profile predictability gpu scale)

usage() {
  sed -n '2,9s/^# \?//p' "$0" >&2
  exit 2
}

pack() {
  local root size
  root=$(cd "$(dirname "$0")/.." && pwd)
  part=$(mktemp -d)
  trap 'rm -rf "$part"' EXIT
  for name in "${binaries[@]}"; do
    strip -o "$part/$name" "${CARGO_TARGET_DIR:-$root/target}/release/$name"
  done
  cp "$root/perf/gpu.sh" "$root/perf/gpu_summary.py" "$root/perf/gpu_pytorch.py" "$part"
  tar -C "$part" -cJf "$1" .
  size=$(stat -c %s "$1")
  echo "$1: $size bytes"
  [ "$size" -le $((64 << 20)) ] || { echo "$1 is larger than 64 MiB" >&2; exit 1; }
}

# Runs a step: its output goes to OUT/NAME.json, what it says to OUT/NAME.log, its exit code to
# `code`. A step that fails is noted and the others go on; one that leaves no output has the last
# line that it said in its place. One that does not end at its limit is killed 5 s later, and one
# for which no time is left counts as such a step, without being run.
step() {
  local name=$1 began=$SECONDS left=$((deadline - SECONDS))
  shift
  code=0
  if [ "$left" -ge 1 ]; then
    timeout -k 5 "$((left < patience ? left : patience))" "$@" \
      > "$out/$name.json" 2> "$out/$name.log" || code=$?
  else
    code=124
    echo '{"nothing": "no time was left for it"}' > "$out/$name.json"
  fi
  [ -s "$out/$name.json" ] || [ "$code" = 0 ] ||
    python3 -c 'import json, sys; print(json.dumps({"nothing": sys.argv[1]}))' \
      "exit code $code: $(tail -n 1 "$out/$name.log")" > "$out/$name.json"
  printf '%s\t%d\t%d\n' "$name" "$code" $((SECONDS - began)) >> "$out/steps.tsv"
  printf '%s: exit code %d after %d s\n' "$name" "$code" $((SECONDS - began))
}

main() {
  local mode=$1 bin out here
  bin=$(realpath "$2")
  mkdir -p "$3"
  out=$(realpath "$3")
  here=$(cd "$(dirname "$0")" && pwd)
  for name in "${binaries[@]}"; do
    [ -x "$bin/$name" ] || { echo "there is no $bin/$name; build or unpack it first" >&2; exit 2; }
  done
  : > "$out/steps.tsv"
  networks=$(mktemp -d)
  trap 'rm -rf "$networks"' EXIT
  local models=(resnet50 densenet121 mobilenet_v2 vgg16 bert_base)
  local batches=1-8,10,12,14,16,20,24,28,32,40,48,56,64
  local small=() runs=200 executions=100000 seconds=10 profiled=2 warm_up=1 rows=2 times=10 code=0 compared=8 beside=1
  local scale=(--sweep-model-threads 1,2,4,8,12 --seconds 0.5 --attempts 1 --svg "$out/scale.svg")
  patience=300 deadline=$((SECONDS + time_limit))
  case "$mode" in
    reduced)
      runs=1 executions=3 seconds=120 profiled=120 warm_up=0 batches=1,2 rows=1 times=3 patience=7200 compared=1
      deadline=$((SECONDS + 86400))
      scale=(--sweep-model-threads 1 --seconds 0.5 --svg "$out/scale.svg")
      ;;
    quick)
      small=(--small) runs=3 executions=100 seconds=2 profiled=2 warm_up=0 batches=1-4 compared=2 beside=0.05
      # A sweep finds no rate on a machine that other tests keep busy.
      scale=(--rate 1e4 --seconds 1)
      ;;
  esac
  printf '{"mode": "%s", "executions": %d, "runs": %d}\n' "$mode" "$executions" "$runs" > "$out/mode.json"

  step networks "$bin/gpu" networks "$networks" "${small[@]}"
  # What the driver shows; where it shows nothing, nothing else can be measured.
  step agreement-mobilenet_v2 "$bin/gpu" agreement --precision fp16 --tolerance 0.01 --rows "$rows" \
    "$networks/mobilenet_v2.onnx"
  if [ "$code" = 3 ]; then
    cat "$out/agreement-mobilenet_v2.log" >&2
    exit 3
  fi
  # The interpreter takes one core of the host's for each.
  for model in "${models[@]}"; do
    [ "$model" = mobilenet_v2 ] || step "agreement-$model" "$bin/gpu" agreement --precision fp16 \
      --tolerance 0.01 --rows "$rows" "$networks/$model.onnx" &
  done
  wait
  for model in "${models[@]}"; do
    step "profile-$model" "$bin/profile" --model "$networks/$model.onnx" --device cuda:0 --precision fp16 \
      --batches "$batches" --runs "$runs" --seconds "$profiled" --csv "$networks/$model.csv" --json
    [ ! -e "$networks/$model.csv" ] || cp "$networks/$model.csv" "$out"
  done
  step isolation "$bin/predictability" isolation --model "$networks/resnet50.onnx" --device cuda:0 --precision fp16 \
    --executions "$executions" --warm-up "$warm_up" --json "$out/isolation-result.json" \
    --svg "$out/isolation.svg"
  step bandwidth "$bin/gpu" bandwidth --precision fp16 --times "$times" "$networks/vgg16.onnx"
  step pytorch python3 "$here/gpu_pytorch.py" --batches 1,8,32 --runs "$runs" --isolation $((executions / 4))
  serve_three
  compare_with_provider
  step scale "$bin/scale" "${scale[@]}" --json
  # It takes a moment, and is made of whatever there is.
  deadline=$((SECONDS + 15))
  step summary python3 "$here/gpu_summary.py" "$out"
  cat "$out/summary.json"
  exit "$code"
}

# Measures two networks by ONNX Runtime's CUDA provider and by plans, both in FP32. Without the
# provider its steps say so, and there are no others.
compare_with_provider() {
  local model common
  for model in resnet50 bert_base; do
    common=(--model "$networks/$model.onnx" --max-batch "$compared" --runs "$runs" --seconds "$beside" --json)
    step "provider-$model" "$bin/profile" "${common[@]}" --device onnxruntime-cuda:0
    [ "$code" != 0 ] || step "plans-fp32-$model" "$bin/profile" "${common[@]}" --device cuda:0 --precision fp32
  done
}

# Serves three models at 80 % of the rate at which the simulator finds 1 % bad requests: of tokens,
# since 13,000 images a second are 8 GB/s, more than clients and sockets of one machine carry.
serve_three() {
  local goodput rate slo model
  slo=$(slo_of "$networks/bert_base.csv")
  {
    printf '[[executors]]\nkind = "cuda"\n'
    for model in first second third; do
      printf '[[models]]\nname = "%s"\nfile = "bert_base.onnx"\nprecision = "fp16"\n' "$model"
      printf 'profile = "bert_base.csv"\nslo_ms = %s\nmax_batch = 32\n' "$slo"
    done
  } > "$networks/symphony.toml"
  {
    printf 'gpus = 1\nrate_rps = 100\nwarmup_s = 1\nduration_s = %d\n' "$seconds"
    for model in first second third; do
      printf '[[models]]\nname = "%s"\nprofile = "bert_base.csv"\nslo_ms = %s\n' "$model" "$slo"
    done
  } > "$networks/three.toml"
  cp "$networks/symphony.toml" "$networks/three.toml" "$out"
  step capacity "$bin/simulate" "$networks/three.toml" --goodput --json
  goodput=$(sed -n 's/.*"goodput_rps": *\([0-9.]*\).*/\1/p' "$out/capacity.json" | head -1)
  rate=$(awk -v goodput="${goodput:-0}" 'BEGIN { printf "%.3f", goodput * 0.8 }')
  step served "$bin/predictability" served --config "$networks/symphony.toml" \
    --workload "$networks/three.toml" --rate "$rate" --json "$out/served-result.json" \
    --svg "$out/served.svg"
}

# Prints an SLO for a profile: four times the time of the smallest batch, and 10 ms. Without the
# profile it prints one all the same: the steps that need that say that it is not there.
slo_of() {
  if [ -e "$1" ]; then awk -F, '/^[0-9]/ { printf "%.3f", 4 * $3 + 10; exit }' "$1"; else echo 10; fi
}

case "${1-}" in
  pack) [ $# = 2 ] || usage; pack "$2" ;;
  run | reduced | quick) [ $# = 3 ] || usage; main "$@" ;;
  *) usage ;;
esac
