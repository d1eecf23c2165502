#!/usr/bin/env bash
# Installs what Runnel is built with, if it is missing. Debian and Ubuntu; elsewhere it says what is needed.
set -euo pipefail

packages=(g++ cmake ninja-build curl ca-certificates libdnnl-dev libcli11-dev nlohmann-json3-dev libfmt-dev zlib1g-dev libstb-dev
          doctest-dev libbenchmark-dev gnuplot-nox)

if ! command -v apt-get >/dev/null; then
  cat >&2 <<'TEXT'
setup.sh installs packages on Debian and Ubuntu only. Elsewhere, please install: g++ 12 or later with OpenMP, CMake 3.25,
Ninja, oneDNN, CLI11, nlohmann-json, {fmt}, zlib, stb, doctest, and, if you like, Google Benchmark (bench kernels) and
gnuplot (plots).
TEXT
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: everything is there"
  exit 0
fi

root=()
[ "$(id -u)" -eq 0 ] || root=(sudo)
echo "setup.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update -qq
"${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup.sh: done"
