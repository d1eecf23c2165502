#!/usr/bin/env bash
# In an installed bundle, on a machine with a GPU: gpu-report.sh [PART...], of smoke, speed, tests, sanitize and profile,
# by default all in this order, in nine minutes at most. Appends a table to report/report.md, each row as soon as it is
# known, and leaves logs, CSV files and plots beside it. Exit status 0 means that nothing failed or ran out of time.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
export RUNNEL_SOURCE_DIR=$PWD RUNNEL_PROGRAM=$PWD/runnel
declare -A seconds=([smoke]=50 [speed]=265 [tests]=100 [sanitize]=80 [profile]=40)
all=(smoke speed tests sanitize profile) out=$PWD/report status=0

stop() { echo "gpu-report.sh: $1" >&2; exit "${2:-1}"; }
trap 'stop "interrupted; $out/report.md has what is known" 130' INT TERM

[ $# -gt 0 ] || set -- "${all[@]}"
for part in "$@"; do
  [ -n "${seconds[$part]:-}" ] || stop "there is no part '$part'; give some of ${all[*]}, or nothing for all" 2
done
for program in runnel runnel_tests; do
  [ -x ./$program ] || stop "$program is not beside this script; run it in a bundle (docs/cuda.md says how to make one)"
done
command -v nvidia-smi >/dev/null || stop "nvidia-smi is not installed, so there is no NVIDIA driver; run this where there is a GPU"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || stop "nvidia-smi finds no GPU; run this where there is one"
mkdir -p "$out" && touch "$out/report.md" || stop "$out/report.md cannot be written; make the folder writable"

row() { echo "| ${1//|/\\|} | ${2//|/\\|} |" | tee -a "$out/report.md"; }
failed() { status=1; row "$1" "**failed**: $2"; }

# within LIMIT COMMAND: runs it for so many seconds, or as many as the part has left.
within() {
  local left=$((deadline - SECONDS)) limit=$1
  [ "$left" -lt "$limit" ] && limit=$left
  [ "$limit" -gt 0 ] || return 124
  timeout --kill-after=5 "$limit" "${@:2}"
}

# Why a command failed: its exit status and, of its log, the first failed check, or else the last line.
why() {
  case $1 in
    124 | 137) echo "out of time" ;;
    *) echo "exit status $1: $(grep -am 1 ' ERROR: ' "$2" || grep -av '^ *$' "$2" | tail -n 1)" ;;
  esac
}

# rows NAME LIMIT COMMAND: each line that it prints becomes a row. What it says on stderr is in its log.
rows() {
  local name=$1 log=$out/${1//[^a-zA-Z0-9]/-}.log code line
  within "$2" stdbuf -oL "${@:3}" 2>"$log" | while IFS= read -r line; do [ -z "$line" ] || row "$name" "$line"; done
  code=${PIPESTATUS[0]}
  [ "$code" -eq 0 ] || failed "$name" "$(why "$code" "$log")"
}

# The libraries of cuBLAS: where the loader finds them, or in a Python package.
find_cublas() {
  ldd ./runnel | grep -q 'libcublas.*not found' || return 0
  local folder
  while IFS= read -r folder; do
    folder=$folder/nvidia/cu13/lib
    [ -e "$folder/libcublasLt.so.13" ] || continue
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    row "cuBLAS" "$folder"
    return
  done < <(python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null)
  failed "cuBLAS" "libcublasLt.so.13 is not found"
  stop "libcublasLt.so.13 is not found; install CUDA 13, or: pip install 'nvidia-cublas>=13,<14'"
}

# selection NAME...: the option for test cases of these names, or a sentence if there is none of one of them.
selection() {
  local name
  for name in "$@"; do
    ./runnel_tests --list-test-cases --test-case="$name" | grep -q 'test cases passing the current filters: [1-9]' ||
      { echo "no test case is called $name"; return 1; }
  done
  (IFS=,; echo "--test-case=$*")
}

# Of the logs of test programs: how many cases passed and failed.
summary() {
  grep -ah '^\[doctest\] test cases:' "$@" | awk '{ all += $4; passed += $6; failed += $9 } END { print all + 0 " cases, " passed + 0 " passed, " failed + 0 " failed" }'
}

# What is new to a GPU: tensor cores, shuffles, cuBLAS, memory pools, graphs.
ops=('causal_product equals*' 'linear_attention equals*' 'linear attention and its gradients equal*' 'on tensor cores*'
  'matmul on tensor cores*' 'linear_attention_step: position by position*' 'linear_attention: parts that carry*'
  'softmax_attention and its gradients equal*' 'softmax_attention position by position*' 'lsh_attention and its gradients equal*'
  'layer_norm: values' 'linear equals*' 'embedding: values*' 'RAdam: twelve*' 'sums_of*' 'gather*')

smoke() {
  local chosen log=$out/smoke.log code
  rows "version" 20 ./runnel --version
  rows "forms of linear attention" 20 ./runnel check --device cuda --precision f32
  chosen=$(selection "${ops[@]}" 'decoder: every decoder*' 'mnist on CUDA*' 'copy train on CUDA*') ||
    { failed "smoke" "$chosen"; return; }
  within 50 ./runnel_tests "$chosen" >"$log" 2>&1
  code=$?
  row "smoke" "$(summary "$log")"
  [ "$code" -eq 0 ] || failed "smoke" "$(why "$code" "$log")"
}

speed() {
  local precision length bench=(./runnel bench)
  for precision in tf32 f32; do
    rows "training, $precision" 40 "${bench[@]}" training --device cuda --precision $precision
    rows "kernels, $precision" 40 "${bench[@]}" kernels --device cuda --precision $precision --out "$out/$precision"
  done
  for length in 784 3072; do
    rows "attention, B 10, L $length" 20 "${bench[@]}" attention --device cuda --batch 10 --shortest $length --longest $length --out "$out/$length"
  done
  rows "attention" 40 "${bench[@]}" attention --device cuda --limit 2 --out "$out"
  ./runnel bench --help | grep -q '^ *ladder ' && rows "ladder" 30 "${bench[@]}" ladder --device cuda --out "$out"
  rows "generation" 90 "${bench[@]}" generation --device cuda --runs 1 --limit 15 --out "$out"
  if python3 -c 'import torch' 2>/dev/null; then
    rows "beside PyTorch" 50 python3 ./gpu_peers.py attention --batch 10 --lengths 784 3072
    rows "beside PyTorch" 60 python3 ./gpu_peers.py training
    rows "beside PyTorch" 60 python3 ./gpu_peers.py attention --lengths 512 4096 65536
  else
    row "beside PyTorch" "PyTorch is not installed"
  fi
}

# All test cases, in pieces, as many at once as half the cores.
tests() {
  local count pieces=32 jobs=$((($(nproc) + 1) / 2)) i
  count=$(./runnel_tests --list-test-cases | grep -a 'test cases passing' | grep -o '[0-9]*$')
  [ "${count:-0}" -gt 0 ] || { failed "tests" "runnel_tests lists no test case"; return; }
  rm -f "$out"/tests-*.log
  for ((i = 0; i < pieces; ++i)); do
    [ "$i" -lt "$jobs" ] || wait -n
    piece "$out/tests-$i.log" $((count * i / pieces + 1)) $((count * (i + 1) / pieces)) &
  done
  wait
  row "tests" "$(summary "$out"/tests-*.log)"
  [ "$(cat "$out"/tests-*.log | grep -c '^\[doctest\] Status: SUCCESS')" -eq "$pieces" ] || status=1
}

# piece LOG FIRST LAST: the test cases of these numbers.
piece() {
  local code
  within 100 ./runnel_tests --first="$2" --last="$3" >"$1" 2>&1
  code=$?
  [ "$code" -eq 0 ] || failed "tests $2 to $3" "$(why "$code" "$1")"
}

sanitize() {
  local sanitizer chosen tool log code
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
    { row "compute-sanitizer" "not installed"; return; }
  chosen=$(selection "${ops[@]}") || { failed "compute-sanitizer" "$chosen"; return; }
  for tool in memcheck synccheck initcheck racecheck; do
    log=$out/$tool.log
    within 40 "$sanitizer" --tool $tool --error-exitcode 9 ./runnel_tests "$chosen" >"$log" 2>&1
    code=$?
    row "compute-sanitizer $tool" "$(grep -a 'SUMMARY' "$log" | tail -n 1 | sed 's/=* *//')"
    [ "$code" -eq 0 ] || failed "compute-sanitizer $tool" "$(why "$code" "$log")"
  done
}

# by_ncu NAME KERNELS COUNT COMMAND: of the first so many launches of kernels of this name.
by_ncu() {
  local log=$out/$1.log file=$out/$1.ncu-rep code
  rm -f "$file"
  within 20 "$ncu" --section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats --section SourceCounters \
    --clock-control none --kernel-name "regex:$2" --launch-count "$3" --export "$file" "${@:4}" >"$log" 2>&1
  code=$?
  if [ "$code" -eq 0 ] && [ -e "$file" ]; then row "ncu" "$1.ncu-rep"; else failed "$1" "$(grep -am 1 '==ERROR==' "$log" || why $code "$log")"; fi
}

profile() {
  # An odd length, before which no shorter ones are measured.
  local ncu attention=(./runnel bench attention --device cuda --attention linear --batch 10 --shortest 783 --longest 783 --out "$out/profile")
  export RUNNEL_PROFILE=1
  rows "profile, training" 20 sh -c './runnel bench training --device cuda --runs 3 2>&1 >/dev/null'
  rows "profile, attention, B 10, L 783" 10 sh -c '"$@" 2>&1 >/dev/null' sh "${attention[@]}"
  unset RUNNEL_PROFILE
  ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null) || { row "ncu" "not installed"; return; }
  by_ncu ncu-attention attention 24 "${attention[@]}" --runs 1
  by_ncu ncu-step linear_attention_step 2 ./runnel bench kernels --device cuda --filter linear_attention_step --out "$out/profile"
}

{ echo; echo "## $(date -u '+%F %H:%M') UTC: $*"; echo; echo '| what | result |'; echo '| --- | --- |'; } >>"$out/report.md"
row "GPU, driver" "$gpu"
find_cublas
for part in "$@"; do
  deadline=$((SECONDS + seconds[$part])) begun=$SECONDS
  $part
  row "part $part" "$((SECONDS - begun)) s"
done
echo "$out/report.md"
exit $status
