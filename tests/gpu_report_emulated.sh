#!/usr/bin/env bash
# cuda/gpu-report.sh with the emulator's programs in the place of the GPU's: what it asks of them exists, each part writes
# its rows, and a test case that fails and one that hangs are named. tests/gpu_report_emulated.sh SCRIPT RUNNEL RUNNEL_TESTS
set -euo pipefail
script=$(realpath "$1") runnel=$(realpath "$2") tests=$(realpath "$3")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir bin
cp "$script" gpu-report.sh
fake() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1" && chmod +x "$1"; }
fake bin/nvidia-smi 'echo "Emulated GPU, none"'
fake bin/python3 'exit 1'
fake bin/ldconfig 'echo "libnccl.so.2 (libc6,x86-64) => /lib/libnccl.so.2"'
fake bin/compute-sanitizer 'shift 4; "$@"; echo "========= ERROR SUMMARY: 0 errors"'
fake bin/ncu '[ "$1" = --import ] && exit; while [ "$1" != --export ]; do shift; done; touch "$2"; shift 2; "$@"'

# Benchmarks run with kernels that do nothing, which the emulator is too slow for, and smaller sizes.
fake runnel 'words=$*
case $words in
  check*) '"$runnel"' check --help >/dev/null && echo "forms agree"; exit ;;
  copy*) words=${words/--preset tiny/--length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2}; words=${words/--micro-batch 8/--micro-batch 1}; words=${words/--steps 20/--steps 2} ;;
  *) export SIMT_FAULT=idle ;;
esac
case $words in
  *" attention "*--lengths*) words=${words/--lengths 784,3072/--lengths 64,128} ;;
  *" attention "*) words="$words --lengths 64,128" ;;
  *" ladder "*) words="$words --length 64" ;;
  *" training "*) words="${words/ --runs 3} --runs 1" ;;
  *" generation "*) words="${words/--limit 1[05]/--limit 1} --positions 1"; words=${words/softmax,lsh-1,lsh-4/lsh-4} ;;
esac
exec '"$runnel"' $words'

# Of the test cases, the first of each pattern is listed, and few are run. Two are planted.
cat >runnel_tests <<TESTS
#!/usr/bin/env bash
list() { $tests --list-test-cases "\$@" | grep -v '^\[doctest\]\|^===='; }
case \$* in
  --list*exclude=*) list "\$2" >all && [ "\$(wc -l <all)" -gt 300 ] && printf 'planted: a failure\nplanted: a hang\n' && list --test-case='gather,*,sums_of*' ;;
  --list*--source-file=*) list "\$2" >all && [ "\$(wc -l <all)" -gt 50 ] && echo 'the command line: help and version' ;;
  --list*) list "\$2" | head -n 1 ;;
  *'planted: a failure'*) echo 'x.cpp:7: ERROR: CHECK( a ) is NOT correct!'; exit 1 ;;
  *'planted: a hang'*) exec sleep 600 ;;
  *'causal_product equals*,linear'*) exec $tests --test-case='sums_of*' ;;  # under compute-sanitizer
  *gather,* | *sums_of* | *'help and version'*) exec $tests "\$@" ;;
  *) echo "0 s: \${*: -1}"; echo '[doctest] test cases: 1 | 1 passed | 0 failed' ;;
esac
TESTS
chmod +x runnel_tests
# Time limits are ten times as long, for sanitizers and busy machines, but for what hangs.
sed -i 's/limit=$1 code$/limit=$(($1 * 10)) code/; s/test_cases tests 8 40/test_cases tests 8 1/' gpu-report.sh

status=0
PATH=$folder/bin:$PATH OMP_NUM_THREADS=1 ./gpu-report.sh --seconds 3000 >output 2>&1 || status=$?
fail() { echo "tests/gpu_report_emulated.sh: $1"; cat output; tar -xzOf report/logs.tar.gz --wildcards '*.log' | tail -n 50; exit 1; }
[ $status -eq 1 ] || fail "exit status $status, not 1"
has() { grep -qE -- "$1" report/report.md || fail "no row like: $1"; }
[ "$(grep -cF '**failed**' report/report.md)" -eq 2 ] || fail "other failures than those planted"
has '\| tests: planted: a failure \| \*\*failed\*\*: exit status 1: x.cpp:7: ERROR'
has '\| tests: planted: a hang \| \*\*failed\*\*: it took more than 1 s \|'
has '\| not reached \| nothing \|'
has '\| version \| CUDA .*emulated'
has '\| NCCL, a job of one process \| .*step 2 of 2'
has '\| smoke \| 19 cases: 19 passed, 0 failed, 0 skipped, 0 not reached \|'
for precision in tf32 f32; do
  has "\| training, $precision \| MNIST, batch 10 x 783"
  has "\| kernels, $precision \| radam_step "
done
has '\| attention, B 10 \| linear  *128 '
has '\| generation \| linear-bf16-state '
has '\| generation, other methods \| lsh-4\* '
has '\| ladder \| 7_split '
has '\| attention \| softmax  *128 '
has '\| tests \| [0-9]* cases: [0-9]* passed, 2 failed, 0 skipped, 0 not reached \|'
has '\| tests of the program \| 1 cases: 1 passed,'
has '\| compute-sanitizer racecheck \| .*[1-9][0-9]* passed, 0 failed.*; ERROR SUMMARY: 0 errors \|'
has '\| profile, training \| causal_linear_attention '
has '\| ncu \| ncu-step.ncu-rep, as text'
grep -o '| part [a-z]* | [0-9]* s' report/report.md
