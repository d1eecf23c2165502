#!/usr/bin/env bash
# tutorial.sh <build folder>: does what docs/tutorial.md says in a copy of the sources, with its solutions, and runs the
# new op's tests on the CPU and those that look for forgotten places.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd) build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$root" && cp -r CMakeLists.txt README.md engine ops cuda models datasets apps tests examples docs "$work")
cd "$work"

awk '/^```cpp$/ { on = ++n; next } /^```$/ { on = 0 } on { print > ("block" n) }' docs/tutorial.md
[ -e block6 ] && [ ! -e block7 ]
into_namespace() {  # <block> <header>: before the end of namespace runnel
  { sed '/^}  \/\/ namespace runnel$/,$d' "$2"; cat "$1"; printf '\n}  // namespace runnel\n'; } >changed
  mv changed "$2"
}
op=fused_rms_norm
mv block1 tests/test_$op.cpp
into_namespace block2 ops/kernels/layers.h
into_namespace block3 ops/layers.h
mv block4 ops/cpu/$op.cpp
mv block5 ops/$op.cpp
mv block6 cuda/$op.cu
sed -i 's/^set(OPS /set(OPS fused_rms_norm /' CMakeLists.txt
line=$(grep -m 1 "^    {\"$op\"" docs/tutorial.md)
sed -i "/^      {\"layer_norm\", /a $line" tests/test_gradients.cpp
grep -q "$op" tests/test_gradients.cpp

format=$(command -v clang-format-14 clang-format | head -n 1 || true)
"${format:-false}" --version 2>/dev/null | grep -q 'version 14\.' &&
  "$format" --style="file:$root/.clang-format" --dry-run --Werror {tests/test_,ops/cpu/,ops/}$op.cpp cuda/$op.cu
compilers=()
for file in tests/test_$op tests/test_gradients ops/cpu/$op ops/$op; do
  "${CXX:-g++}" -std=c++20 -O0 -fopenmp -I. -DRUNNEL_CPU=cpu_baseline -DRUNNEL_SOURCE_DIR="\"$work\"" -DRUNNEL_PROGRAM='""' \
    -DRUNNEL_PACKAGES='""' -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS -c $file.cpp -o "${file//\//_}.o" &
  compilers+=($!)
done
for compiler in "${compilers[@]}"; do wait "$compiler"; done
g++ -fopenmp -o tests_of_op ./*.o "$build"/CMakeFiles/runnel_tests.dir/tests/{main,check}.cpp.o "$build"/librunnel.a \
  -ldnnl -lz -lfftw3 -lsndfile
./tests_of_op
RUNNEL_SOURCE_DIR=$work "$build/runnel_tests" --test-case='structure*'
