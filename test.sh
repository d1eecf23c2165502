#!/usr/bin/env bash
# Builds and runs all tests, with ctest:
#   format     the sources are as clang-format 14 writes them
#   release    as it is shipped, without CUDA; and the library as other projects find it; then the ops with each smaller
#              instruction set that the program has kernels for
#   sanitize   by clang, under AddressSanitizer and UndefinedBehaviorSanitizer, with the CUDA kernels on the emulator in
#              tests/simt: all of it once, and the fuzz targets, on their corpus and then on new inputs for 4 seconds
#              each; then the ops with two more orders of threads
#   thread     by g++, under ThreadSanitizer, the kernels on the emulator: the ops, in one order
#   web        the web page, in Chromium, where that and Emscripten are installed (./setup.sh --web)
#   arm        the core and its tests on emulated 64-bit ARM, where a cross compiler and qemu are installed (./setup.sh --arm)
#   cuda       compiled by nvcc, where attention kernels that spill registers are errors; linked, and run if there is a
#              GPU; divergent regions are compared with their limits, and docs/cuda.md with the object files
# On a machine without clang, g++ takes its place and there are no fuzz targets; without the CUDA toolkit, no kernels and
# not the last two.
# Closes with the line "N passed, N failed, N skipped". Exit status 0 means that none failed.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh

export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="halt_on_error=1 atexit_sleep_ms=0"  # or each test with emulated threads ends with a second of sleep
export OMP_WAIT_POLICY=passive  # waiting threads leave the core to others: on a busy machine this saves minutes
passed=0 failed=0 skipped=0
# Temporary files lie in memory if 4 GB are free there: the tests sync many small files, which takes long on some disks.
[ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null && export TMPDIR=/dev/shm
work=$(mktemp -d)
export TMPDIR=$work
trap 'rm -rf "$work"' EXIT

slow='memory|twelve|four-point|by differences|distribution of'  # and no kernel is in them alone
slow_cases="*${slow//|/*,*}*"  # the same as patterns of doctest

skip() {
  echo "skipped: 1 test, $1"
  skipped=$((skipped + 1))
}

configure() {  # configure <preset> [cmake's arguments]
  echo "== $1, after $((SECONDS / 60)) min"
  cmake --preset "$1" -DRUNNEL_WERROR=ON "${@:2}" >/dev/null
}

build() {  # build <preset> [targets]
  cmake --build --preset "$1" ${2:+--target "${@:2}"}
}

# run <preset's build folder> [ctest's arguments]: one test more at once than there are cores, since some wait; shows
# failures, and why tests were skipped; counts
run() {
  echo "-- ctest --test-dir $*"
  local report=$work/report.xml status=0 t f s
  rm -f "$report"
  ctest --test-dir "$1" --parallel "$(($(nproc) + 1))" --no-tests=error --output-on-failure --output-junit "$report" "${@:2}" ||
    status=$?
  grep -aoh 'MESSAGE: skipped: .*' "$1/Testing/Temporary/LastTest.log" | cut -d' ' -f2- | sort | uniq -c || true
  count() { grep -m 1 -oP "^\s+$1=\"\K\d+" "$report" 2>/dev/null || echo 0; }
  t=$(count tests) f=$(count failures) s=$(count skipped)
  passed=$((passed + t - f - s)) skipped=$((skipped + s))
  [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || f=1  # ctest itself failed
  failed=$((failed + f))
}

echo "== format"
status=0
./format.sh --check || status=$?
case $status in
  0) passed=$((passed + 1)) ;;
  2) skip "of the formatting" ;;
  *) failed=$((failed + 1)); echo "./format.sh formats them" ;;
esac

configure release -DRUNNEL_MERGE=ON
build release
./setup.sh --libc++ >/dev/null 2>&1 || true  # with which the core is built once more: without, that test is skipped
run build --parallel "$(($(nproc) + 2))"  # more of these wait
# This processor's instruction set has run: the ops once more with each smaller one.
for set in baseline avx2 avx512 avx512_bf16; do
  [[ $(build/runnel --version)$'\n' == *"used as $set"$'\n'* ]] && break
  RUNNEL_INSTRUCTION_SET=$set build/runnel --version >/dev/null 2>&1 || continue  # of another kind of processor
  RUNNEL_INSTRUCTION_SET=$set run build -L '^ops$' -E "$slow"
done

if command -v emcc >/dev/null && command -v chromium >/dev/null; then
  echo "== web, after $((SECONDS / 60)) min"
  emcmake cmake --preset web -DRUNNEL_WERROR=ON >/dev/null
  build web
  status=0
  node tests/web/check.mjs build-web/page build/runnel || status=$?
  if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
else
  skip "of the web page: it needs Emscripten and Chromium (./setup.sh --web)"
fi

if command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; then
  echo "== arm, after $((SECONDS / 60)) min"
  status=0
  tests/arm.sh core build-arm || status=$?
  if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
else
  skip "of the core on emulated ARM: it needs a cross compiler and qemu (./setup.sh --arm)"
fi

# The sanitized builds compile several files as one, which is faster; names in the unnamed namespaces of neighbouring files
# may not be the same, then. That each includes what it needs, CI sees in a build without precompiled headers.
merged=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16)
by=("${merged[@]}")
if ! ./setup.sh --sanitizers >/dev/null 2>&1 ||
  ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -fopenmp -x c++ - -o "$work/fuzzer" >/dev/null 2>&1; then
  by=(-DCMAKE_CXX_COMPILER=g++)
  skip "of the fuzz targets: they need clang with libFuzzer"
fi
# Not under AddressSanitizer: those that read sources and pages, and ten that compute much, with ops that are tested.
elsewhere='^docs: (links|source|files|README)|^structure|^check: the forms|foresees|^attention kinds: four-point|^bench (kernels: some|scaling|generation)|^--json: one|^processes: images|are the same from two processes'

if ! { command -v nvcc || ls /usr/local/cuda/bin/nvcc; } >/dev/null 2>&1; then
  skip "of the CUDA kernels: there is no nvcc (developer.nvidia.com/cuda-downloads)"
  configure sanitize -DRUNNEL_CUDA=OFF "${by[@]}"
  build sanitize
  run build-sanitize -E "$elsewhere"
else
  configure sanitize "${by[@]}"
  build sanitize
  all_launched='^structure: the tests have launched every CUDA kernel'
  SIMT_LAUNCHED=$work/launched run build-sanitize -E "$elsewhere"
  SIMT_LAUNCHED=$work/launched run build-sanitize -R "$all_launched"
  for seed in 1 2; do SIMT_SEED=$seed LEFT_OUT="$slow_cases,*gradients*" run build-sanitize/by_file; done

  configure thread "${merged[@]}"
  build thread simt_tests runnel_tests
  export OMP_NUM_THREADS=1 SIMT_SEED=3  # ThreadSanitizer does not know OpenMP's barriers
  LEFT_OUT=$slow_cases run build-thread/by_file
  run build-thread -L detector
  unset OMP_NUM_THREADS SIMT_SEED

  configure cuda
  if nvidia-smi >/dev/null 2>&1; then
    build cuda
    run build-cuda
  else
    build cuda runnel_cuda runnel_processes_cuda runnel_ladder_cuda  # compiled for all architectures; there is no GPU to run it on
    # Linked once with the CUDA libraries. What the objects call is in the release build's library, and in two files of
    # the program.
    status=0
    libraries=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/lib64
    echo 'int main() {}' |
      g++ -std=c++20 -I. -o "$work/linked" -x c++ - apps/training/communicator.cpp apps/processes/tree_sum.cpp \
        -x none $(find build-cuda/CMakeFiles/runnel_{cuda,processes_cuda}.dir -name '*.o') build/librunnel.a \
        -L"$libraries" -lcudart_static -lcublasLt -ldnnl -lz -lfftw3 -lsndfile -fopenmp -ldl -lrt -lpthread ||
      status=$?
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  fi
  status=0
  cuda/kernel-report.sh --check build-cuda || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    2) skip "of the compiled CUDA kernels and their table: it needs cuobjdump and nvdisasm" ;;
    *) failed=$((failed + 1)) ;;
  esac
fi

echo "in $((SECONDS / 60)) min $((SECONDS % 60)) s:"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
