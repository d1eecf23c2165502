#!/usr/bin/env bash
# From nothing to generated digits in a few minutes: installs, builds, trains the copy task, then a small image model.
# Data: MNIST from $RUNNEL_DATA, ./data, ../shared/data or the network; without any of them, drawn digits.
set -euo pipefail
case ${RUNNEL_DATA:-} in '' | /*) ;; *) RUNNEL_DATA=$PWD/$RUNNEL_DATA ;; esac  # as seen from where it was called
cd "$(dirname "$0")"
start=$SECONDS
say() { printf '\n== %s (%d:%02d)\n' "$1" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)); }
out=quickstart

say "packages"
./setup.sh

say "build"
cmake --preset native >/dev/null
cmake --build --preset native --target runnel
runnel=build-native/runnel
rm -rf "$out"
mkdir -p "$out"

say "the copy task: repeat a random sequence"
$runnel copy train --preset tiny --out "$out/copy"
$runnel copy evaluate --model "$out/copy"

data=
for folder in "${RUNNEL_DATA:-}" data ../shared/data; do
  if [ -n "$folder" ] && { compgen -G "$folder/train-images*" || compgen -G "$folder/mnist/train-images*"; } >/dev/null; then data=$folder; break; fi
done
if [ -z "$data" ]; then
  say "fetching MNIST"
  if datasets/download.sh mnist; then data=data; else data=synthetic; fi
fi

say "a small model of digits, 14 x 14, on $data"
$runnel mnist train --preset tiny --data "$data" --out "$out/mnist"
$runnel mnist evaluate --model "$out/mnist" --limit 1000 --out "$out/bits.png"
$runnel mnist sample --model "$out/mnist" --count 64 --out "$out/samples.png"
$runnel mnist complete --model "$out/mnist" --out "$out/completions.png"

say "done"
cat <<TEXT
Look at
  $PWD/$out/samples.png       digits that the model drew
  $PWD/$out/completions.png   each row: what it was given, three ways it went on, the original
  $PWD/$out/bits.png          where the bits are spent
  $PWD/$out/mnist/loss.png    the loss
TEXT
