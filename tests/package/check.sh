#!/usr/bin/env bash
# check.sh <build folder> installed|subdirectory: builds the programs of docs/library.md against the library that is
# installed from the build folder, or with the sources as a subdirectory, and runs them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $2 in
  installed)
    cmake --install "$1" --prefix "$work/prefix" --component library >/dev/null
    arguments=(-DCMAKE_PREFIX_PATH="$work/prefix") ;;
  subdirectory)
    arguments=(-DRUNNEL_SOURCE="$(cd "$here/../.." && pwd)" -DCMAKE_BUILD_TYPE=Unoptimized -DRUNNEL_VARIANTS=OFF  # to compile fast
               -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON) ;;  # every file includes what it needs
esac
cp "$here/CMakeLists.txt" "$work"
awk -v to="$work/program" '/^```cpp$/ { on = ++n; next } /^```$/ { on = 0 } on { print > (to n ".cpp") }' "$here/../../docs/library.md"
cmake -S "$work" -B "$work/build" "${arguments[@]}"
cmake --build "$work/build" --parallel "$(nproc)"
cd "$work"
for program in 1 2; do "build/program$program"; done
