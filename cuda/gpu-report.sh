#!/usr/bin/env bash
# In the unpacked archive (docs/cuda.md), on a machine with a GPU: which tests pass, and how fast every kernel is.
#   gpu-report.sh [--out DIR] [--seconds N] [PART...]
# Parts: smoke, speed, tests, sanitize, profile; by default all, in this order. N seconds, by default 540, are divided over
# them by weight; what a part leaves goes to the next. Each row is appended to DIR/report.md (by default report/report.md)
# as soon as it is known; all logs, CSV files and plots are in DIR/logs.tar.gz, made again after each row. The last row says
# what was not reached. Exit status: 0 if nothing failed and all was reached, 1 if not, 2 for a wrong argument, 130 if it
# was interrupted.
set -uo pipefail
begun_in=$PWD
cd "$(dirname "$0")" || exit 1
export RUNNEL_SOURCE_DIR=$PWD RUNNEL_PROGRAM=$PWD/runnel
declare -A weights=([smoke]=55 [speed]=230 [tests]=120 [sanitize]=85 [profile]=50)
all=(smoke speed tests sanitize profile) parts=() out=report seconds=540

stop() { echo "gpu-report.sh: $1" >&2; exit "${2:-1}"; }

while [ $# -gt 0 ]; do
  case $1 in
    --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${0##*/}"; exit ;;
    --out | --seconds) [ $# -gt 1 ] || stop "$1 needs a value" 2 ;;&
    --out) out=$2; shift ;;
    --seconds)
      seconds=$2; shift
      [[ $seconds =~ ^[1-9][0-9]{0,5}$ ]] || stop "--seconds $seconds is not a number from 1 to 999999" 2 ;;
    *) [ -n "${weights[$1]:-}" ] || stop "there is no part '$1'; give some of ${all[*]}, or nothing for all" 2
      parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
[[ $out = /* ]] || out=$begun_in/$out
for program in runnel runnel_tests; do
  [ -x ./$program ] || stop "$program is not beside this script; run it in the unpacked archive (docs/cuda.md says how to make one)"
done
command -v nvidia-smi >/dev/null || stop "nvidia-smi is not installed, so there is no NVIDIA driver; run this where there is a GPU"
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || stop "nvidia-smi finds no GPU; run this where there is one"
{ mkdir -p "$out" && touch "$out/report.md"; } 2>/dev/null || stop "$out/report.md cannot be written; give a folder that can with --out"
work=$(mktemp -d) || stop "no temporary folder can be made; set TMPDIR to a folder that can be written"
trap 'rm -rf "$work"' EXIT
[ ! -e "$out/logs.tar.gz" ] || tar -xzf "$out/logs.tar.gz" -C "$work"  # of an earlier report into the same folder
rm -f "$work/not-reached" "$work/failures" && touch "$work/not-reached" "$work/failures"

# --- Rows ---

pack() {  # all logs in one file
  tar -czf "$out/.logs-$BASHPID" -C "$work" . 2>/dev/null  # some of them are being written
  mv -f "$out/.logs-$BASHPID" "$out/logs.tar.gz"
}
line() { echo "| ${1//|/\\|} | ${2//|/\\|} |" | tee -a "$out/report.md"; }
row() { line "$1" "$2"; pack; }
failed() { echo "$1" >>"$work/failures"; row "$1" "**failed**: $2"; }
not_reached() { echo "$1" >>"$work/not-reached"; }

# within LIMIT COMMAND: runs it for so many seconds. Exit status 124 or 137: it took longer; 123: the part's time is over.
within() {
  local left=$((deadline - SECONDS)) limit=$1 code
  [ "$left" -gt 0 ] && [ "$limit" -gt 0 ] || return 123  # timeout takes 0 for no limit
  timeout --kill-after=5 "$((left < limit ? left : limit))" "${@:2}"
  code=$?
  [ "$left" -lt "$limit" ] && [[ $code = 124 || $code = 137 ]] && return 123
  return "$code"
}

# outcome NAME LIMIT STATUS LOG: nothing for success; a row for a failure, with the first failed check of its log or the last line.
outcome() {
  case $3 in
    0) ;;
    123) not_reached "$1" ;;
    124 | 137) failed "$1" "it took more than $2 s" ;;
    *) failed "$1" "exit status $3: $(grep -am 1 ' ERROR: ' "$4" || grep -av '^ *$' "$4" | tail -n 1)" ;;
  esac
}

# rows NAME LIMIT COMMAND: each line that it prints becomes a row. What it says on stderr is in its log.
rows() {
  local log=$work/${1//[^a-zA-Z0-9]/-}.log line
  within "$2" stdbuf -oL "${@:3}" 2>"$log" | while IFS= read -r line; do
    [ -z "$line" ] || line "$1" "$line"
    read -rt 0 || pack  # if the next line is not there yet
  done
  outcome "$1" "$2" "${PIPESTATUS[0]}" "$log"
}

# --- Test cases ---

# Of the log of a test program: how many cases passed and failed.
summary() { grep -a '^\[doctest\] test cases:' "$1" | tail -n 1 | sed 's/.*test cases: *//; s/ *| */, /g; s/, *[0-9]* skipped/;/'; }

# list OPTION...: the names of the test cases that these options choose.
list() { ./runnel_tests --list-test-cases "$@" | grep -av '^\[doctest\]\|^===='; }

# test_cases PART NUMBER LIMIT: those named on standard input, so many in a process, for at most so many seconds; eight
# processes at once, since a driver opens the GPU for one after another. Logs are kept of what failed.
test_cases() {
  local names=() number=0 results=$work/$1.results
  : >"$results"
  while mapfile -n "$2" -t names && [ ${#names[@]} -gt 0 ]; do
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
    number=$((number + 1))
    run_cases "$1" "$3" "${1// /-}-$number" "${names[@]}" &
  done
  wait
  row "$1" "$(awk -F'\t' '{ ++n[$1] } END { printf "%d cases: %d passed, %d failed, %d skipped, %d not reached",
    NR - n["skipped"], n["passed"] - n["skipped"], n["failed"], n["skipped"], n["late"] }' "$results")"
  row "$1, slowest" "$(grep ^passed "$results" | sort -t$'\t' -k2nr | head -n 5 | awk -F'\t' '{ printf "%s%s (%.1f s)", (NR > 1 ? ", " : ""), $3, $2 }')"
  ! grep -q ^late "$results" || not_reached "$(grep -c ^late "$results") test cases of $1"
}

# run_cases PART LIMIT LOG NAME...: in one process. If it fails or hangs, each case by itself: so the report names it, and a
# sticky CUDA error spoils no other.
run_cases() {
  local results=$work/$1.results log=$work/$3.log filter code i names=("${@:4}")
  printf -v filter '%s,' "${names[@]//,/\\,}"
  OMP_NUM_THREADS=2 within "$2" ./runnel_tests --skip-status=77 --duration=true --test-case="$filter" >"$log" 2>&1 </dev/null
  code=$?
  case $code in
    0 | 77)
      sed -n 's/^\([0-9.]*\) s: /passed\t\1\t/p' "$log" >>"$results"
      sed -n 's/.*MESSAGE: skipped: /skipped\t0\t/p' "$log" >>"$results"
      rm "$log" ;;
    123)
      printf 'late\t0\t%s\n' "${names[@]}" >>"$results"
      [ -s "$log" ] || rm "$log" ;;
    *)
      if [ ${#names[@]} -gt 1 ]; then
        for i in "${!names[@]}"; do run_cases "$1" "$2" "$3-$((i + 1))" "${names[i]}"; done
      else
        printf 'failed\t0\t%s\n' "${names[0]}" >>"$results"
        outcome "$1: ${names[0]}" "$2" $code "$log"
      fi ;;
  esac
}

# What is new to a GPU: tensor cores, shuffles, cuBLAS, memory pools, graphs.
ops=('causal_product equals*' 'linear_attention equals*' 'linear attention and its gradients equal*' 'on tensor cores*'
  'matmul on tensor cores*' 'linear_attention_step: position by position*' 'linear_attention: parts that carry*'
  'softmax_attention and its gradients equal*' 'softmax_attention position by position*' 'lsh_attention and its gradients equal*'
  'layer_norm: values' 'linear equals*' 'embedding: values*' 'RAdam, AdamW: twelve*' 'sums_of*' 'gather*')

# --- Parts ---

smoke() {
  rows "version" 30 ./runnel --version
  rows "forms of linear attention" 30 ./runnel check --device cuda --precision f32
  local pattern names
  for pattern in "${ops[@]}" 'decoder: every decoder*' 'mnist on CUDA*' 'copy train on CUDA*'; do
    names=$(list --test-case="${pattern//,/\\,}")
    if [ -n "$names" ]; then echo "$names"; else failed "smoke" "no test case is called $pattern" >&2; fi
  done | test_cases smoke 1 40
  # A job of one process, as torchrun starts it.
  [ -n "$nccl" ] || rows "NCCL, a job of one process" 30 env NCCL_DEBUG=VERSION RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29411 \
    ./runnel copy train --preset tiny --device cuda --micro-batch 8 --reduction fast --steps 20 --out "$work/nccl"
}

speed() {
  local precision bench=(./runnel bench)
  for precision in tf32 f32; do
    rows "training, $precision" 30 "${bench[@]}" training --device cuda --precision $precision
  done
  rows "attention, B 10" 40 "${bench[@]}" attention --device cuda --batch 10 --lengths 784,3072 --out "$work/batch"
  rows "generation" 60 "${bench[@]}" generation --device cuda --method linear,linear-bf16-state,stateful-softmax --runs 1 --limit 15 --out "$work/generation"
  within 60 python3 -c 'import torch' 2>"$work/import-torch.log"
  case $? in
    0)
      for precision in float32 bfloat16; do rows "beside PyTorch" 60 python3 ./gpu_peers.py training --only "linear, $precision"; done
      rows "beside PyTorch" 60 python3 ./gpu_peers.py attention --batch 10 --lengths 784 3072
      rows "beside PyTorch" 60 python3 ./gpu_peers.py attention --lengths 512 4096 65536 ;;
    123) not_reached "beside PyTorch" ;;
    *) row "beside PyTorch" "PyTorch cannot be imported within 60 s: $(tail -n 1 "$work/import-torch.log")" ;;
  esac
  rows "kernels, tf32" 40 "${bench[@]}" kernels --device cuda --seconds 0.05 --out "$work/tf32"
  rows "ladder" 20 "${bench[@]}" ladder --device cuda --out "$work/ladder"
  rows "attention" 40 "${bench[@]}" attention --device cuda --attention linear,softmax,lsh --limit 1 --out "$work/attention"
  rows "kernels, f32" 30 "${bench[@]}" kernels --device cuda --precision f32 --seconds 0.05 --out "$work/f32"
  rows "generation, other methods" 60 "${bench[@]}" generation --device cuda --method softmax,lsh-1,lsh-4 --runs 1 --limit 10 --out "$work/generation-others"
}

tests() {
  local programs='*apps.cpp,*command_line.cpp,*examples.cpp,*processes.cpp,*robustness.cpp'
  list --source-file-exclude="$programs" | test_cases tests 8 40
  list --source-file="$programs" | test_cases "tests of the program" 1 90  # which starts processes of its own
}

sanitize() {
  local sanitizer patterns log limit code i tools=(memcheck synccheck initcheck racecheck) needs=(3 2 2 5) all=12
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
    { row "compute-sanitizer" "not installed"; return; }
  patterns=$(printf '%s,' "${ops[@]//,/\\,}")
  for i in "${!tools[@]}"; do
    log=$work/${tools[i]}.log limit=$(((deadline - SECONDS) * needs[i] / all))
    all=$((all - needs[i]))
    within "$limit" "$sanitizer" --tool "${tools[i]}" --error-exitcode 9 ./runnel_tests "--test-case=$patterns" >"$log" 2>&1
    code=$?
    [[ $code != 124 && $code != 137 ]] || code=123  # its share of the time, not a hang
    outcome "compute-sanitizer ${tools[i]}" "$limit" $code "$log"
    # A program that is ended counts the case that it is at as failed, which says nothing.
    [ $code -eq 123 ] || row "compute-sanitizer ${tools[i]}" "$(summary "$log") $(grep -a SUMMARY "$log" | tail -n 1 | sed 's/=* *//')"
  done
}

# by_ncu NAME KERNELS COUNT COMMAND: of the first so many launches of kernels of this name.
by_ncu() {
  local log=$work/$1.log code
  rm -f "$work/$1.ncu-rep"
  within 20 "$ncu" --section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats --section SourceCounters \
    --clock-control none --kernel-name "regex:$2" --launch-count "$3" --export "$work/$1.ncu-rep" "${@:4}" >"$log" 2>&1
  code=$?
  if [ $code -eq 0 ] && [ ! -e "$work/$1.ncu-rep" ]; then failed "$1" "no kernel is called $2: $(grep -am 1 '==ERROR==\|==WARNING==' "$log")"; else outcome "$1" 20 $code "$log"; fi
  [ ! -e "$work/$1.ncu-rep" ] || { "$ncu" --import "$work/$1.ncu-rep" --page details >>"$log" 2>&1; row "ncu" "$1.ncu-rep, as text in $1.log"; }
}

profile() {
  local ncu attention=(./runnel bench attention --device cuda --attention linear --batch 10 --lengths 783 --out "$work/profile")
  export CUDA_MODULE_LOADING=EAGER  # otherwise each kernel is loaded by its first call
  RUNNEL_PROFILE=1 rows "profile, training" 20 sh -c './runnel bench training --device cuda --runs 3 2>&1 >/dev/null'
  RUNNEL_PROFILE=1 rows "profile, attention, B 10, L 783" 10 sh -c '"$@" 2>&1 >/dev/null' sh "${attention[@]}"
  ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null) || { row "ncu" "not installed"; return; }
  by_ncu ncu-attention attention 24 "${attention[@]}" --runs 1
  by_ncu ncu-step linear_attention_step 2 ./runnel bench kernels --device cuda --filter linear_attention_step --seconds 0.001 --out "$work/profile"
}

# --- The report ---

# find_library NAME: one that the loader does not find may lie in a Python package.
find_library() {
  local folder
  while IFS= read -r folder; do
    for folder in "$folder"/nvidia/*/lib; do
      [ -e "$folder/$1" ] || continue
      export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
      row "$1" "$folder"
      return
    done
  done < <(python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null)
  return 1
}

finish() {  # finish STATUS
  row "not reached" "$(paste -sd\; "$work/not-reached" | sed 's/;/; /g; s/^$/nothing/')"
  echo "$out/report.md"
  exit "$1"
}

descendants() { local child; for child in $(pgrep -P "$1"); do descendants "$child"; echo "$child"; done; }
interrupted() {
  trap '' INT TERM
  kill $(descendants $$) 2>/dev/null
  row "interrupted" "in the part ${parts[0]}"
  printf 'part %s\n' "${parts[@]}" >>"$work/not-reached"
  finish 130
}
trap interrupted INT TERM

{ echo; echo "## $(date -u '+%F %H:%M') UTC: ${parts[*]}"; echo; echo '| what | result |'; echo '| --- | --- |'; } >>"$out/report.md"
row "GPU, driver" "$gpu"
if ldd ./runnel | grep -q 'libcublasLt.*not found' && ! find_library libcublasLt.so.13; then
  failed "cuBLAS" "libcublasLt.so.13 is not found"
  stop "libcublasLt.so.13 is not found; install CUDA 13, or: pip install 'nvidia-cublas>=13,<14'"
fi
nccl=
PATH=$PATH:/sbin ldconfig -p | grep -q 'libnccl\.so\.2' || find_library libnccl.so.2 || { nccl="not installed"; row "libnccl.so.2" "$nccl"; }
while [ ${#parts[@]} -gt 0 ]; do
  weight=0
  for part in "${parts[@]}"; do weight=$((weight + weights[$part])); done
  part=${parts[0]} begun=$SECONDS
  deadline=$((SECONDS + (seconds - SECONDS) * weights[$part] / weight))
  $part &  # a trap waits for commands in the foreground, but not for this
  wait $!
  row "part $part" "$((SECONDS - begun)) s"
  parts=("${parts[@]:1}")
done
[ -s "$work/failures" ] || [ -s "$work/not-reached" ]
finish $((! $?))
