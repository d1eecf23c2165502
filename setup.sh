#!/usr/bin/env bash
# Installs what Runnel is built with, as far as it is missing: --help.
set -euo pipefail

usage='usage: ./setup.sh [--sanitizers] [--libc++] [--web] [--arm] [--no-install]
Installs what Runnel is built with, as far as it is missing, on Debian and Ubuntu, as root or by sudo. On macOS, it says what
Homebrew lacks.
  --sanitizers  clang and what its sanitizers and fuzz targets need, too
  --libc++      clang 16 and its standard library, too, by which the tests also build the core
  --web         on Debian, Emscripten and Chromium, too, which build and test the web page
  --arm         a cross compiler for 64-bit ARM and an emulator, too
  --no-install  only say what is missing, as with RUNNEL_NO_INSTALL=1 in the environment; exit status 1 if anything is
Without root: docs/troubleshooting.md#without-root.'
sanitizers=0 libcxx=0 web=0 arm=0 install=1
[ "${RUNNEL_NO_INSTALL:-0}" = 0 ] || install=0
for flag in "$@"; do
  case $flag in
    --sanitizers) sanitizers=1 ;;
    --libc++) libcxx=1 ;;
    --web) web=1 ;;
    --arm) arm=1 ;;
    --no-install) install=0 ;;
    -h | --help) echo "$usage"; exit ;;
    *) echo "setup.sh: unknown flag $flag; ./setup.sh --help" >&2; exit 2 ;;
  esac
done

packages=(g++ cmake ninja-build curl ca-certificates libdnnl-dev libcli11-dev nlohmann-json3-dev libfmt-dev zlib1g-dev libstb-dev
          libfftw3-dev libsndfile1-dev libopenmpi-dev openmpi-bin doctest-dev libbenchmark-dev gnuplot-nox)
[ $sanitizers -eq 0 ] || packages+=(clang libclang-rt-dev libomp-dev)
[ $libcxx -eq 0 ] || packages+=(clang-16 libc++-16-dev libc++abi-16-dev)
[ $web -eq 0 ] || packages+=(emscripten chromium)
[ $arm -eq 0 ] || packages+=(g++-aarch64-linux-gnu qemu-user)

if [ "$(uname)" = Darwin ] && command -v brew >/dev/null; then
  [ $sanitizers$libcxx$web$arm = 0000 ] || { echo "setup.sh: --sanitizers, --libc++, --web and --arm are for Debian and Ubuntu" >&2; exit 2; }
  missing=()
  for formula in cmake ninja libomp onednn cli11 nlohmann-json fmt fftw libsndfile doctest; do
    brew list --formula "$formula" >/dev/null 2>&1 || missing+=("$formula")
  done
  stb=$(brew --prefix)/include/stb
  [ ${#missing[@]} -eq 0 ] || echo "setup.sh: please run: brew install ${missing[*]}" >&2
  [ -e "$stb/stb_image.h" ] || { missing+=(stb); echo "setup.sh: please run: git clone --depth 1 https://github.com/nothings/stb '$stb'" >&2; }
  [ ${#missing[@]} -eq 0 ] || exit 1
  echo "setup.sh: nothing is missing (if you like: brew install open-mpi google-benchmark gnuplot)"
  exit
fi
if ! command -v apt-get >/dev/null; then
  cat >&2 <<'TEXT'
setup.sh installs packages on Debian and Ubuntu only. Elsewhere, please install: g++ 11 or clang 14 (or later) with OpenMP,
CMake 3.22, Ninja, oneDNN, CLI11, nlohmann-json, {fmt}, zlib, stb, FFTW, libsndfile, doctest, and, if you like, MPI (training in several
processes; on GPUs also NCCL), Google Benchmark (bench kernels) and gnuplot (plots).
TEXT
  exit 1
fi

# Programs by which a package counts as installed, from wherever they came:
declare -A program=([g++]=g++ [cmake]=cmake [ninja-build]=ninja [curl]=curl [gnuplot-nox]=gnuplot [clang]=clang++ [clang-16]=clang++-16 [emscripten]=emcc [chromium]=chromium)
missing=()
for package in "${packages[@]}"; do
  command -v "${program[$package]:-}" >/dev/null ||
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: nothing is missing"
  exit 0
fi
if [ $install -eq 0 ]; then
  echo "setup.sh: missing: ${missing[*]}" >&2
  exit 1
fi

command="apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: there is no sudo; as root, run: apt-get update && apt-get install -y ${missing[*]}" \
      "(without root: docs/troubleshooting.md#without-root)" >&2
    exit 1
  fi
  command="sudo sh -c '$command'"
fi
echo "setup.sh: $command"
sh -c "$command" >/dev/null
