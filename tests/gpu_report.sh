#!/usr/bin/env bash
# cuda/gpu-report.sh with fakes in the place of the GPU, of the bundle's programs and of NVIDIA's: tests/gpu_report.sh SCRIPT
set -euo pipefail
script=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir bin bare
cp "$script" gpu-report.sh
report=report/report.md

fake() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
fake bin/nvidia-smi 'echo "Fake GPU, 580.1"'
fake bin/python3 'exit 1'
fake bin/ldd 'true'
fake bin/ncu 'echo "ncu $*"; while [ "$1" != --export ]; do shift; done; touch "$2"'
fake bin/compute-sanitizer 'shift 4; "$@"; echo "========= ERROR SUMMARY: 0 errors"'
fake runnel 'case "$*" in
  *"$FAKE_FAILS"*) echo first; echo "runnel: it broke" >&2; exit 3 ;;
  "bench --help") echo "  ladder   fake" ;;
  *training*) echo "training: a | b"; sleep "${FAKE_SLEEP:-0}"; echo "profile of $*" >&2 ;;
  *) echo "result of $*" ;;
esac'
fake runnel_tests 'case "$*" in
  *"$FAKE_MISSING"*) found=0 ;;
  *) found=32 ;;
esac
case "$*" in
  *--list-test-cases*) echo "[doctest] unskipped test cases passing the current filters: $found" ;;
  *"--first=$FAKE_FAILING_TEST "*) echo "x.cpp:7: ERROR: CHECK( a ) is NOT correct!"; echo "[doctest] test cases: 1 | 0 passed | 1 failed"; exit 1 ;;
  *) printf "[doctest] test cases: %d | %d passed | 0 failed\\n[doctest] Status: SUCCESS!\\n" 1 1 ;;
esac'
export PATH=$folder/bin:$PATH FAKE_FAILS=nothing FAKE_MISSING=nothing FAKE_FAILING_TEST=nothing

fail() { echo "tests/gpu_report.sh: $1"; cat "$report" output 2>/dev/null; exit 1; }
run() {  # run STATUS [PART...]: what it prints is then in the file output
  local status=0
  ./gpu-report.sh "${@:2}" >output 2>&1 || status=$?
  [ "$status" -eq "$1" ] || fail "gpu-report.sh ${*:2}: exit status $status, not $1"
}
has() { grep -qF -- "$1" "$report" || fail "no row with: $1"; }
says() { [ "$(wc -l <output)" -eq 1 ] && grep -qF -- "$1" output || fail "not one sentence with: $1"; }

# Bad cases: one sentence, and no report.
run 2 smoke sing
says "there is no part 'sing'; give some of smoke speed tests sanitize profile"
for tool in env bash dirname; do ln -s "$(command -v $tool)" bare; done
PATH=$folder/bare run 1
says "nvidia-smi is not installed"
mv bin/nvidia-smi working && fake bin/nvidia-smi 'exit 9'
run 1
says "nvidia-smi finds no GPU"
mv working bin/nvidia-smi
mv runnel elsewhere
run 1
says "runnel is not beside this script"
mv elsewhere runnel
[ ! -e report ] || fail "there is a report without a GPU"

# All parts, in order.
run 0
has '| GPU, driver | Fake GPU, 580.1 |'
has '| training, tf32 | training: a \| b |'
has '| forms of linear attention | result of check --device cuda --precision f32 |'
has '| ladder | result of bench ladder --device cuda'
has '| beside PyTorch | PyTorch is not installed |'
has '| compute-sanitizer racecheck | ERROR SUMMARY: 0 errors |'
has '| profile, training | profile of bench training --device cuda --runs 3 |'
has '| ncu | ncu-attention.ncu-rep |'
has '| ncu | ncu-step.ncu-rep |'
grep -qF -- '--section SourceCounters --clock-control none' report/ncu-step.log || fail "ncu without its sections"
[ "$(grep -o '| part [a-z]*' $report | tr -d '\n')" = '| part smoke| part speed| part tests| part sanitize| part profile' ] ||
  fail "the parts are not in order"

# What fails is a row, and what came before stays.
before=$(wc -l <$report)
FAKE_FAILS=attention run 1 speed smoke
has '| attention | **failed**: exit status 3: runnel: it broke |'
has '| generation | result of bench generation --device cuda'
[ "$(head -n "$before" $report | grep -c '| part ')" -eq 5 ] || fail "the first report is gone"
FAKE_MISSING=RAdam run 1 smoke
has '| smoke | **failed**: no test case is called RAdam: twelve* |'
fake bin/compute-sanitizer 'echo "========= ERROR SUMMARY: 2 errors"; exit 9'
run 1 sanitize
has '| compute-sanitizer memcheck | ERROR SUMMARY: 2 errors |'
has '| compute-sanitizer memcheck | **failed**: exit status 9'
fake bin/ncu 'echo "==ERROR== ERR_NVGPUCTRPERM"'
run 1 profile
has '| ncu-attention | **failed**: ==ERROR== ERR_NVGPUCTRPERM |'

FAKE_FAILING_TEST=3 run 1 tests
has '| tests | 32 cases, 31 passed, 1 failed |'
has '| tests 3 to 3 | **failed**: exit status 1: x.cpp:7: ERROR: CHECK( a ) is NOT correct! |'

# A kill loses no row.
rm -r report
FAKE_SLEEP=5 setsid ./gpu-report.sh speed >output 2>&1 &
killed=$!
disown
for ((i = 0; i < 200; ++i)); do
  grep -qF 'training: a' $report 2>/dev/null && break
  sleep 0.05
done
kill -KILL -- -$killed
has '| training, tf32 | training: a \| b |'

# cuBLAS in a Python package.
fake bin/ldd 'echo "libcublasLt.so.13 => not found"'
run 1 tests
has '| cuBLAS | **failed**: libcublasLt.so.13 is not found |'
mkdir -p site/nvidia/cu13/lib && touch site/nvidia/cu13/lib/libcublasLt.so.13
fake bin/python3 "echo $folder/site"
run 0 tests
has "| cuBLAS | $folder/site/nvidia/cu13/lib |"
echo "gpu-report.sh: passed"
