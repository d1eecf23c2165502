#!/usr/bin/env bash
# Installs what Runnel is built with, as far as it is missing: ./setup.sh
# With --sanitizers, clang and what its sanitizers and fuzz targets need, too.
# With --no-install, or RUNNEL_NO_INSTALL=1 in the environment, it only says what is missing; exit status 1 if anything is.
set -euo pipefail

packages=(g++ cmake ninja-build curl ca-certificates libdnnl-dev libcli11-dev nlohmann-json3-dev libfmt-dev zlib1g-dev libstb-dev
          libfftw3-dev libsndfile1-dev libopenmpi-dev openmpi-bin doctest-dev libbenchmark-dev gnuplot-nox)
[ "${1:-}" != --sanitizers ] || packages+=(clang libclang-rt-dev libomp-dev)
declare -A program=([g++]=g++ [cmake]=cmake [ninja-build]=ninja [curl]=curl [gnuplot-nox]=gnuplot [clang]=clang++)  # from wherever it came

if ! command -v apt-get >/dev/null; then
  cat >&2 <<'TEXT'
setup.sh installs packages on Debian and Ubuntu only. Elsewhere, please install: g++ 11 or clang 14 (or later) with OpenMP,
CMake 3.22, Ninja, oneDNN, CLI11, nlohmann-json, {fmt}, zlib, stb, FFTW, libsndfile, doctest, and, if you like, MPI (training in several
processes; on GPUs also NCCL), Google Benchmark (bench kernels) and gnuplot (plots).
TEXT
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  command -v "${program[$package]:-}" >/dev/null ||
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: nothing is missing"
  exit 0
fi
if [ "${1:-}" = --no-install ] || [ "${RUNNEL_NO_INSTALL:-0}" != 0 ]; then
  echo "setup.sh: missing: ${missing[*]}" >&2
  exit 1
fi

command="apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${missing[*]}"
[ "$(id -u)" -eq 0 ] || command="sudo sh -c '$command'"
echo "setup.sh: $command"
sh -c "$command" >/dev/null
