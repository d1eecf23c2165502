#!/usr/bin/env bash
# Builds and runs all tests:
#   release    as it is shipped, without CUDA
#   sanitize   under AddressSanitizer and UndefinedBehaviorSanitizer, with the CUDA kernels run by tests/simt: everything
#              once, then the ops with three more orders of threads
#   thread     the same under ThreadSanitizer: the ops, in one order
#   cuda       compiled by nvcc, and run if there is a GPU
# On a machine without the CUDA toolkit, the first two, without the kernels.
# Closes with the line "N passed, N failed, N skipped". Exit status 0 means that none failed.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh

export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
export OMP_WAIT_POLICY=passive  # who waits leaves the core to others: on a busy machine this saves minutes
passed=0 failed=0 skipped=0
logs=$(mktemp -d)
set -m  # each job is a process group of its own, so that none outlives an interrupt
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done; rm -rf "$logs"' EXIT

build() {  # build <preset> [targets]
  echo "== $1"
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1" ${2:+--target "${@:2}"}
}

# start [VARIABLE=value] <test program> [its arguments]: runs it beside others, one for each core
started=0
start() {
  while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
  started=$((started + 1))
  { echo "-- $*"; env "$@" && echo "status 0" || echo "status $?"; } >"$logs/$(printf %03d "$started")" 2>&1 &
}

finish() {  # waits for all, shows and counts what they said
  wait
  local log p f
  for log in "$logs"/*; do
    cat "$log"
    # [doctest] test cases: 20 | 20 passed | 0 failed | 0 skipped
    read -r p f <<<"$(grep -a '^\[doctest\] test cases:' "$log" | tail -n 1 | grep -oE '[0-9]+ (passed|failed)' | cut -d' ' -f1 | xargs)" || true
    grep -qa '^status 0$' "$log" || [ "${f:-0}" -gt 0 ] || f=1  # it died
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0}))
    skipped=$((skipped + $(grep -ac 'skipped: 1 test' "$log" || true)))
    rm "$log"
  done
}

ops=$(sed -n '/^set(OPS/,/)/p' CMakeLists.txt | tr -d ')' | cut -d'(' -f2 | tr -s ' \n' ' ' | sed 's/^OPS //')
on_devices=$(for op in $ops; do printf '*test_%s.cpp,' "${op##*/}"; done)

slow='*memory*,RAdam: twelve*,*four-point*,*by differences*,*distribution of*'  # and no new kernel in them

# All tests of a program, in parts that take about as long.
start_all() {
  start "$1" -sf='*test_apps.cpp' "${@:2}"
  start "$1" -sf='*test_image_apps.cpp' "${@:2}"
  start "$1" -sfe='*test_apps.cpp,*test_image_apps.cpp' "${@:2}"
}

build release
start_all build/runnel_tests
finish

if ! { command -v nvcc || ls /usr/local/cuda/bin/nvcc; } >/dev/null 2>&1; then
  echo "skipped: 1 test, of the CUDA kernels: there is no nvcc (developer.nvidia.com/cuda-downloads)"
  skipped=$((skipped + 1))
  cmake --preset sanitize -DRUNNEL_CUDA=OFF >/dev/null
  cmake --build --preset sanitize
  start_all build-sanitize/runnel_tests
  finish
else
  build sanitize
  start_all build-sanitize/runnel_tests -tce='nvcc*'  # which says the same in every build
  start build-sanitize/tests/simt/simt_tests
  for seed in 1 2 3; do
    start SIMT_SEED=$seed build-sanitize/runnel_tests -sf="${on_devices%,}" -tce="$slow,*gradients*"
  done
  finish

  build thread simt_tests runnel_tests  # one thread of OpenMP: of those ThreadSanitizer does not know the barriers
  start SIMT_SEED=3 build-thread/tests/simt/simt_tests
  start OMP_NUM_THREADS=1 SIMT_SEED=3 build-thread/runnel_tests -sf="${on_devices%,}" -tce="$slow,the number of threads*"
  finish

  if nvidia-smi >/dev/null 2>&1; then
    build cuda
    start build-cuda/runnel_tests
    finish
  else
    build cuda runnel_cuda  # compiled for all architectures; there is no GPU to run it on
  fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
