#!/usr/bin/env bash
# arm.sh [build folder]: compiles the core for 64-bit ARM (NEON), with OpenMP, and runs the tests of the engine, the ops
# and the kinds of attention under an emulator, but for those that take long there. By hand; 3 minutes on two cores. It
# needs g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-arm}
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" \
  -DCMAKE_CXX_FLAGS=-fopenmp -DRUNNEL_CORE=ON -DRUNNEL_BUILD_TESTS=ON -DRUNNEL_BUILD_EXAMPLES=OFF -DRUNNEL_WERROR=ON
cmake --build "$build" --target runnel_tests
find "$build"/CMakeFiles/runnel_baseline.dir/ops/cpu -name '*.o' -exec bash tests/symbols.sh {} +
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure -E '^structure|memory|twelve|four-point|by differences|distribution of'
