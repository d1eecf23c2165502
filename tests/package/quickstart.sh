#!/usr/bin/env bash
# quickstart.sh, with a setup, a build and a program that only say what they were asked for: data from where it was called.
set -euo pipefail
sources=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/runnel/build-native" "$work/runnel/datasets" "$work/elsewhere/digits"
touch "$work/elsewhere/digits/train-images-idx3-ubyte.gz"
for program in tools/cmake runnel/setup.sh runnel/build-native/runnel runnel/datasets/download.sh; do
  printf '#!/bin/sh\necho "%s $*"\n' "${program##*/}" >"$work/$program"
  chmod +x "$work/$program"
done
cp "$sources/quickstart.sh" "$work/runnel"
trained_on() {  # quickstart.sh's path, and RUNNEL_DATA
  local said
  said=$(cd "$work/elsewhere" && PATH="$work/tools:$PATH" RUNNEL_DATA=$2 "$1" | grep '^runnel mnist train')
  [[ $said == *" --data $3 "* ]] || { echo "quickstart.sh, RUNNEL_DATA=$2: $said" >&2; exit 1; }
}
trained_on ../runnel/quickstart.sh digits "$work/elsewhere/digits"
trained_on "$work/runnel/quickstart.sh" "$work/elsewhere/digits" "$work/elsewhere/digits"
trained_on ../runnel/quickstart.sh '' data
