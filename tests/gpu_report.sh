#!/usr/bin/env bash
# cuda/gpu-report.sh with fakes in the place of the GPU, of the archive's programs and of NVIDIA's: tests/gpu_report.sh SCRIPT
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
fake bin/ldconfig 'echo "libnccl.so.2 (libc6,x86-64) => /lib/libnccl.so.2"'
fake bin/nproc 'echo 4'
fake bin/ncu 'echo "ncu $*"; [ "$1" = --import ] && exit; while [ "$1" != --export ]; do shift; done; touch "$2"'
fake bin/compute-sanitizer 'shift 4; "$@"; echo "========= ERROR SUMMARY: 0 errors"'
fake runnel 'case "$*" in
  *"$FAKE_FAILS"*) echo first; echo "runnel: it broke" >&2; exit 3 ;;
  *training*) echo "training: a | b"; sleep "${FAKE_SLEEP:-0}"; echo "profile of $*" >&2 ;;
  *) echo "result of $*" ;;
esac'
# Test cases: those of the patterns of `smoke`; three of ops and three of the program, of which one can fail and one hang.
cat >runnel_tests <<'TESTS'
#!/usr/bin/env bash
case $* in
  --list*"$FAKE_MISSING"*) ;;
  --list*exclude*) printf '[doctest] listing all test case names\n====\na, b: *\nc\nhangs\n====\n[doctest] unskipped test cases: 3\n' ;;
  --list*--source-file=*) printf 'fails\nskipped\nd\n' ;;
  --list*) pattern=${2#--test-case=}; pattern=${pattern//\\/}; echo "${pattern//\*/x}" ;;
esac
[[ $* != *--list* ]] || exit 0
names=${*: -1} names=${names#--test-case=} status=0 failed=0
while IFS= read -r name; do
  [ "$name" != hangs ] || sleep "${FAKE_TEST_HANGS:-0}"
  echo "0.5 s: $name"
  [ "$name" != skipped ] || { echo "x.cpp:3: MESSAGE: skipped: 1 test, no cake"; status=77; }
  [ "$name" != fails ] || [ -z "$FAKE_TEST_FAILS" ] || { echo "x.cpp:7: ERROR: CHECK( a ) is NOT correct!"; status=1 failed=1; }
done < <(sed 's/\\,/\x01/g; s/,/\n/g' <<<"${names%,}" | tr '\001' ,)
echo "[doctest] test cases: 1 | $((1 - failed)) passed | $failed failed | 0 skipped"
exit $status
TESTS
chmod +x runnel_tests
export PATH=$folder/bin:$PATH FAKE_FAILS=nothing FAKE_MISSING=nothing FAKE_TEST_FAILS=

fail() { echo "tests/gpu_report.sh: $1"; cat "$report" output 2>/dev/null; exit 1; }
run() {  # run STATUS [ARGUMENT...]: what it prints is then in the file output
  local status=0
  ./gpu-report.sh "${@:2}" >output 2>&1 || status=$?
  [ "$status" -eq "$1" ] || fail "gpu-report.sh ${*:2}: exit status $status, not $1"
}
has() { grep -qF -- "$1" "$report" || fail "no row with: $1"; }
# Not grep -q: it ends at the first match, and tar, which still writes, would fail.
has_log() { tar -tzf "$(dirname "$report")/logs.tar.gz" | grep -xF "./$1" >/dev/null || fail "$1 is not among the logs"; }
says() { [ "$(wc -l <output)" -eq 1 ] && grep -qF -- "$1" output || fail "not one sentence with: $1"; }

# Bad cases: one sentence, and no report.
run 2 smoke sing
says "there is no part 'sing'; give some of smoke speed tests sanitize profile"
run 2 --out
says "--out needs a value"
for bad in 0 -3 4x 1234567; do
  run 2 --seconds $bad
  says "--seconds $bad is not a number from 1 to 999999"
done
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
run 1 --out gpu-report.sh/x
says "gpu-report.sh/x/report.md cannot be written; give a folder that can with --out"
[ ! -e report ] || fail "there is a report without a GPU"

run 0 --help
grep -qF 'gpu-report.sh [--out DIR] [--seconds N] [PART...]' output || fail "--help does not help"

# All parts, in order; two files.
run 0
has '| GPU, driver | Fake GPU, 580.1 |'
has '| training, tf32 | training: a \| b |'
has '| forms of linear attention | result of check --device cuda --precision f32 |'
has '| NCCL, a job of one process | result of copy train'
has '| smoke | 19 cases: 19 passed, 0 failed, 0 skipped, 0 not reached |'
has '| ladder | result of bench ladder --device cuda'
has '| beside PyTorch | PyTorch cannot be imported'
has '| tests | 3 cases: 3 passed, 0 failed, 0 skipped, 0 not reached |'
has '| tests of the program | 3 cases: 2 passed, 0 failed, 1 skipped, 0 not reached |'
has '| compute-sanitizer racecheck | 1, 1 passed, 0 failed; ERROR SUMMARY: 0 errors |'
has '| profile, training | profile of bench training --device cuda --runs 3 |'
has '| ncu | ncu-attention.ncu-rep, as text in ncu-attention.log |'
has '| ncu | ncu-step.ncu-rep, as text in ncu-step.log |'
has '| not reached | nothing |'
[ "$(grep -o '| part [a-z]*' $report | tr -d '\n')" = '| part smoke| part speed| part tests| part sanitize| part profile' ] ||
  fail "the parts are not in order"
[ "$(ls -A report | tr '\n' ' ')" = 'logs.tar.gz report.md ' ] || fail "not two files: $(ls -A report)"
has_log ncu-step.ncu-rep
tar -xzOf report/logs.tar.gz ./ncu-step.log | grep -F -- '--section SourceCounters --clock-control none' >/dev/null || fail "ncu without its sections"

# What fails is a row, and what came before stays.
before=$(wc -l <$report)
FAKE_FAILS='attention --device' run 1 speed smoke
has '| attention | **failed**: exit status 3: runnel: it broke |'
has '| generation | result of bench generation --device cuda'
[ "$(head -n "$before" $report | grep -c '| part ')" -eq 5 ] || fail "the first report is gone"
has_log ncu-step.ncu-rep
FAKE_MISSING=RAdam run 1 smoke
has '| smoke | **failed**: no test case is called RAdam, AdamW: twelve* |'
fake bin/compute-sanitizer 'echo "========= ERROR SUMMARY: 2 errors"; exit 9'
run 1 sanitize
has 'ERROR SUMMARY: 2 errors |'
has '| compute-sanitizer memcheck | **failed**: exit status 9'
fake bin/compute-sanitizer 'shift 4; "$@"; exec sleep 60'
run 1 --seconds 4 --out third sanitize
report=third/report.md
has '| not reached | compute-sanitizer memcheck; compute-sanitizer synccheck; compute-sanitizer initcheck; compute-sanitizer racecheck |'
! grep -q '| compute-sanitizer memcheck |' $report || fail "a row for a tool that was ended"
report=report/report.md
fake bin/ncu 'echo "==ERROR== ERR_NVGPUCTRPERM"; exit 1'
run 1 profile
has '| ncu-attention | **failed**: exit status 1: ==ERROR== ERR_NVGPUCTRPERM |'
fake bin/ncu 'echo "==WARNING== No kernels were profiled."'
run 1 profile
has '| ncu-step | **failed**: no kernel is called linear_attention_step: ==WARNING== No kernels were profiled. |'
rm bin/ncu bin/compute-sanitizer

# A test case that fails, and one that hangs, which is named if its part has time for that.
rm -r report
sed -i 's/test_cases tests 8 40/test_cases tests 8 5/' gpu-report.sh
FAKE_TEST_FAILS=1 FAKE_TEST_HANGS=60 run 1 --seconds 60 --out other tests
report=other/report.md
has '| tests | 3 cases: 2 passed, 1 failed, 0 skipped, 0 not reached |'
has '| tests: hangs | **failed**: it took more than 5 s |'
has_log tests-1-3.log
has '| tests of the program | 3 cases: 1 passed, 1 failed, 1 skipped, 0 not reached |'
has '| tests of the program: fails | **failed**: exit status 1: x.cpp:7: ERROR: CHECK( a ) is NOT correct! |'
has_log tests-of-the-program-1.log
FAKE_TEST_HANGS=60 run 1 --seconds 3 --out other tests
has '| not reached | 3 test cases of tests; 3 test cases of tests of the program |'
# No time for the second part.
FAKE_SLEEP=60 run 1 --seconds 3 --out other speed
has '| not reached | training, tf32; training, f32; attention, B 10; generation; beside PyTorch; kernels, tf32;'

# A kill loses no row, and an interruption says where it was.
report=report/report.md
for signal in KILL TERM; do
  rm -rf report
  FAKE_SLEEP=5 setsid ./gpu-report.sh speed tests >output 2>&1 &
  killed=$!
  disown
  for ((i = 0; i < 200; ++i)); do
    tar -tzf report/logs.tar.gz 2>/dev/null | grep training--tf32.log >/dev/null && break
    sleep 0.05
  done
  [ $signal = KILL ] && kill -KILL -- -$killed || kill -TERM $killed
  has '| training, tf32 | training: a \| b |'
  has_log training--tf32.log
done
for ((i = 0; i < 600; ++i)); do
  ! kill -0 $killed 2>/dev/null && break
  sleep 0.05
done
has '| interrupted | in the part speed |'
has '| not reached | part speed; part tests |'

# Libraries in a Python package.
fake bin/ldd 'echo "libcublasLt.so.13 => not found"'
fake bin/ldconfig 'true'
run 1 tests
has '| cuBLAS | **failed**: libcublasLt.so.13 is not found |'
mkdir -p site/nvidia/cu13/lib site/nvidia/nccl/lib && touch site/nvidia/cu13/lib/libcublasLt.so.13
fake bin/python3 "echo $folder/site"
run 0 smoke
has "| libcublasLt.so.13 | $folder/site/nvidia/cu13/lib |"
has "| libnccl.so.2 | not installed |"
touch site/nvidia/nccl/lib/libnccl.so.2
run 0 smoke
has "| libnccl.so.2 | $folder/site/nvidia/nccl/lib |"
echo "gpu-report.sh: passed"
