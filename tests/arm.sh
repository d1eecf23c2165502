#!/usr/bin/env bash
# By hand: compiles the CPU kernels for ARM (NEON) and runs the tests of vectors under an emulator.
# Needs g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-std=c++20 -O2 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -Wpedantic -Wno-psabi -Werror -fopenmp -I.)
for file in ops/cpu/*.cpp ops/cpu/attention/*.cpp; do
  [ "$file" = ops/cpu/gemm.cpp ] && continue  # it has no kernels
  echo "$file"
  aarch64-linux-gnu-g++ "${flags[@]}" -DRUNNEL_CPU=cpu_baseline -c "$file" -o "$work/$(basename "$file").o"
done
bash tests/symbols.sh "$work"/*.o
aarch64-linux-gnu-g++ "${flags[@]}" -idirafter /usr/include tests/main.cpp tests/test_vector.cpp -o "$work/tests" -static
qemu-aarch64 "$work/tests"
