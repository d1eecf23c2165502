#!/usr/bin/env bash
# arm.sh core|all FOLDER [ctest's arguments]: builds for 64-bit ARM in FOLDER/build and runs tests under an emulator, qemu:
#   core  the core, with what the cross compiler brings; tests of the engine, the ops and the kinds of attention, but those
#         that take long there. Part of test.sh
#   all   all but the examples, with Debian's libraries for ARM, unpacked in FOLDER/root first (by debootstrap, as root);
#         the tests but those of packages, faults and sources. By hand
# Left out are tests that run out of memory, of which qemu knows no limit. Needs ./setup.sh --arm.
set -euo pipefail
[ $# -gt 1 ] && [[ $1 = core || $1 = all ]] || { echo "arm.sh: give core or all, and a folder" >&2; exit 2; }
kind=$1
mkdir -p "$2"
folder=$(realpath "$2") sources=$(realpath "$(dirname "$0")/..")
shift 2
root=$folder/root build=$folder/build
common=(-S "$sources" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRUNNEL_WERROR=ON -DRUNNEL_BUILD_EXAMPLES=OFF
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
if [ "$kind" = core ]; then
  cmake "${common[@]}" -DCMAKE_CXX_FLAGS=-fopenmp -DRUNNEL_CORE=ON -DRUNNEL_BUILD_TESTS=ON \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
  cmake --build "$build" --target runnel_tests
  exec ctest --test-dir "$build" --parallel "$(($(nproc) + 1))" --output-on-failure \
    -E '^structure|^docs|memory|twelve|four-point|by differences|distribution of' "$@"
fi
if [ ! -e "$root/unpacked" ]; then
  packages=libc6-dev,libstdc++-12-dev,libgomp1,libdnnl-dev,libcli11-dev,nlohmann-json3-dev,libfmt-dev,zlib1g-dev,libstb-dev
  debootstrap --arch=arm64 --foreign --variant=minbase --include=$packages,libfftw3-dev,libsndfile1-dev,doctest-dev bookworm \
    "$root" http://deb.debian.org/debian >"$folder/debootstrap.log"
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$root"; done
  touch "$root/unpacked"
fi
emulator=(qemu-aarch64 -L "$root")
IFS=';'
cmake "${common[@]}" -DCMAKE_SYSROOT="$root" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY "-DCMAKE_CROSSCOMPILING_EMULATOR=${emulator[*]}"
unset IFS
cmake --build "$build"
# The tests start the program by its name.
printf '#!/bin/sh\nexec %s "$@"\n' "${emulator[*]} $build/runnel" >"$build/run"
chmod +x "$build/run"
export RUNNEL_PROGRAM=$build/run
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure -LE 'package|faults' -E '^structure|^docs: (docs/cli|links|source|files|README)|running out of memory' "$@"
