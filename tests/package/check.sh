#!/usr/bin/env bash
# check.sh <build folder> installed|subdirectory|core: builds the programs of docs/library.md and runs them:
#   installed     against the library that is installed from the build folder
#   subdirectory  with the sources as a subdirectory: configured with all of the library, built with its core, by g++
#   core          with the core alone, by clang and libc++: no OpenMP, no oneDNN, no files of checkpoints and data
# Exit status 77: there is no libc++.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

programs=1
core=(-DRUNNEL_SOURCE="$(cd "$here/../.." && pwd)" -DRUNNEL_CORE=ON -DRUNNEL_BUILD_EXAMPLES=ON
      # To compile fast:
      -DCMAKE_BUILD_TYPE=Unoptimized -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24)
case $2 in
  installed)
    programs="1 2"
    cmake --install "$1" --prefix "$work/prefix" --component library >/dev/null
    arguments=(-DCMAKE_PREFIX_PATH="$work/prefix") ;;
  subdirectory) arguments=("${core[@]}") ;;
  core)
    for version in -{19,18,17,16} ''; do
      compiler=clang++$version
      echo '#include <ranges>
            int main() {}' | "$compiler" -std=c++20 -stdlib=libc++ -x c++ - -o "$work/has" 2>/dev/null && break
    done
    [ -e "$work/has" ] || { echo "skipped: 1 test, there is no clang 16 with libc++ (libc++-16-dev)"; exit 77; }
    arguments=("${core[@]}" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS=-stdlib=libc++) ;;
esac
cp "$here/CMakeLists.txt" "$work"
awk -v to="$work/program" '/^```cpp$/ { on = ++n; next } /^```$/ { on = 0 } on { print > (to n ".cpp") }' "$here/../../docs/library.md"
[ "$2" != subdirectory ] || cmake -S "$work" -B "$work/whole" -DRUNNEL_SOURCE="$here/../.." -DPROGRAMS=1
cmake -S "$work" -B "$work/build" "${arguments[@]}" -DPROGRAMS="${programs// /;}"
targets=()
[ "$2" != subdirectory ] || targets=(--target program1 example_attention_from_ops example_custom_op)  # core builds all
cmake --build "$work/build" --parallel "$(nproc)" "${targets[@]}"
cd "$work"
for program in $programs; do "build/program$program" | tee "said$program"; done
grep -qx 'y = -2.000 x0 + 2.000 x1 + 1.000' said1
if [ "$2" != installed ]; then
  build/runnel/examples/example_attention_from_ops
  build/runnel/examples/example_custom_op
fi

# A library of clang's is refused by other compilers, with a sentence.
config=$(find prefix -name runnel-config.cmake 2>/dev/null || true)
if [ -n "$config" ] && sed -i 's/if("GNU" MATCHES Clang /if("Clang" MATCHES Clang /w changed' "$config" && [ -s changed ]; then
  rm -r build
  ! cmake -S . -B build "${arguments[@]}" >refused 2>&1
  tr -s ' \n' ' ' <refused | grep -o 'this Runnel was built by clang, whose OpenMP other compilers do not link'
fi
