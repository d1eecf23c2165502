#!/usr/bin/env bash
# The archive for other machines (docs/cuda.md), unpacked into an empty folder, in an empty environment: its programs take
# no library from elsewhere but glibc's and CUDA's, and pass tests. MPI's library, which the preset bundle leaves out, looks
# for its own in the system's folders alone. tests/package/gpu_archive.sh BUILD
set -euo pipefail
cmake --build "$1" --target gpu-archive >/dev/null
archive=$(realpath "$1/runnel-gpu.tar.gz")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
tar -xzf "$archive"
cd runnel-gpu
alone=(env -i "PATH=$PATH" "TMPDIR=$folder" "RUNNEL_SOURCE_DIR=$PWD" "RUNNEL_PROGRAM=$PWD/runnel")
fail() { echo "tests/package/gpu_archive.sh: $1"; exit 1; }

"${alone[@]}" ./runnel --version
for program in runnel runnel_tests; do
  elsewhere=$("${alone[@]}" ldd ./$program | awk '{ print $(NF - ($NF ~ /^\(/)) }' | grep -vF "$PWD/./lib/" |
    grep -vE -e '^linux-vdso' -e '/(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util))\.so' -e '/libcublas' -e '/lib(open-rte|open-pal|hwloc|event_[a-z]*)[-.]') || true
  [ -z "$elsewhere" ] || fail "$program takes from elsewhere: $elsewhere"
done
"${alone[@]}" ./runnel_tests -sf='*test_golden.cpp,*test_linear_attention.cpp,*test_file.cpp' >tests.log 2>&1 || fail "$(tail -n 40 tests.log)"
"${alone[@]}" ./runnel_tests -tc='copy train: what a run writes and prints' >tests.log 2>&1 || fail "$(tail -n 40 tests.log)"
for needed in gpu-report.sh gpu_peers.py; do [ -x $needed ] || fail "there is no $needed that can be run"; done
echo "$(stat -c %s "$archive") bytes"
