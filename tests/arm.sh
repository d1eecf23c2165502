#!/usr/bin/env bash
# arm.sh FOLDER [ctest's arguments]: builds all but the examples for 64-bit ARM and runs the tests under an emulator, qemu,
# but those of packages, faults, sources and running out of memory, of which qemu knows no limit. First, Debian's libraries
# for ARM are unpacked in FOLDER/root; the build is FOLDER/build. By hand, as root. It needs debootstrap,
# g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1") sources=$(realpath "$(dirname "$0")/..")
shift
root=$folder/root build=$folder/build
if [ ! -e "$root/unpacked" ]; then
  packages=libc6-dev,libstdc++-12-dev,libgomp1,libdnnl-dev,libcli11-dev,nlohmann-json3-dev,libfmt-dev,zlib1g-dev,libstb-dev
  debootstrap --arch=arm64 --foreign --variant=minbase --include=$packages,libfftw3-dev,libsndfile1-dev,doctest-dev bookworm \
    "$root" http://deb.debian.org/debian >"$folder/debootstrap.log"
  for package in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$root"; done
  touch "$root/unpacked"
fi
emulator=(qemu-aarch64 -L "$root")
IFS=';'
cmake -S "$sources" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRUNNEL_WERROR=ON -DRUNNEL_BUILD_EXAMPLES=OFF \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_SYSROOT="$root" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY "-DCMAKE_CROSSCOMPILING_EMULATOR=${emulator[*]}"
unset IFS
cmake --build "$build"
# The tests start the program by its name.
printf '#!/bin/sh\nexec %s "$@"\n' "${emulator[*]} $build/runnel" >"$build/run"
chmod +x "$build/run"
export RUNNEL_PROGRAM=$build/run
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure -LE 'package|faults' -E '^structure|^docs: (docs/cli|links|source|files|README)|running out of memory' "$@"
