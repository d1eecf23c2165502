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
    arguments=(-DRUNNEL_SOURCE="$(cd "$here/../.." && pwd)"
               # To compile fast:
               -DCMAKE_BUILD_TYPE=Unoptimized -DRUNNEL_VARIANTS=OFF -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=6) ;;
esac
cp "$here/CMakeLists.txt" "$work"
awk -v to="$work/program" '/^```cpp$/ { on = ++n; next } /^```$/ { on = 0 } on { print > (to n ".cpp") }' "$here/../../docs/library.md"
cmake -S "$work" -B "$work/build" "${arguments[@]}"
cmake --build "$work/build" --parallel "$(nproc)"
cd "$work"
for program in 1 2; do "build/program$program"; done

# A library of clang's is refused by other compilers, with a sentence.
config=$(find prefix -name runnel-config.cmake 2>/dev/null || true)
if [ -n "$config" ] && sed -i 's/if("GNU" MATCHES Clang /if("Clang" MATCHES Clang /w changed' "$config" && [ -s changed ]; then
  rm -r build
  ! cmake -S . -B build "${arguments[@]}" >refused 2>&1
  tr -s ' \n' ' ' <refused | grep -o 'this Runnel was built by clang, whose OpenMP other compilers do not link'
fi
