#!/usr/bin/env bash
# without.sh <runnel without packages>: its commands and kinds of attention are the core's, it trains and samples, and
# needs no library that only packages use.
set -euo pipefail
runnel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "without.sh: $1"; exit 1; }
commands=$("$runnel" --help | sed -n '/^Subcommands:/,$p' | sed -n 's/^  \([a-z0-9]\+\) .*/\1/p' | tr '\n' ' ')
[ "$commands" = "copy mnist cifar10 images text recall check bench runs compare export completion " ] || fail "other commands: $commands"
"$runnel" copy train --help | grep -q -- '--attention TEXT:linear, softmax, lsh, retention, gla, deltanet, gated-deltanet, kda=linear' || fail "other kinds of attention"
! ldd "$runnel" | grep -E 'fftw|sndfile|libmpi' || fail "it is linked with these"
! "$runnel" lra listops train 2>said || fail "it knows listops"
grep -q 'after "runnel" comes one of: copy' said || fail "it says: $(cat said)"
"$runnel" copy train --preset tiny --steps 3 --quiet >/dev/null
"$runnel" copy evaluate --model runs/copy >/dev/null
"$runnel" mnist train --preset tiny --data synthetic --side 7 --steps 2 --quiet >/dev/null
"$runnel" mnist sample --model runs/mnist --count 4 --out samples.png >/dev/null
[ -s samples.png ] || fail "no picture"
