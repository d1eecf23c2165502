#!/usr/bin/env bash
# without.sh <runnel without packages>: its commands and kinds of attention are the core's, it trains and samples, and
# needs no library that only packages use.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
runnel=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "without.sh: $1"; exit 1; }
for task in copy mnist cifar10 images; do "$runnel" $task train --help >/dev/null || fail "no command $task"; done
for package in "$here"/apps/*/package.cpp; do
  name=$(basename "$(dirname "$package")")
  ! "$runnel" --help | grep -q "^  $name " || fail "it has the command $name"
done
! "$runnel" bench --help | grep -qE '^  (lra|speech|scaling)' || fail "it has benchmarks of packages"
kinds=$("$runnel" copy train --help | sed -n 's/.*--attention TEXT:\(.*\)=linear.*/\1/p')
for kind in ${kinds//,/}; do [ -e "$here/models/attention/$kind.cpp" ] || fail "it has the kind $kind"; done
[ "${kinds:0:20}" = "linear, softmax, lsh" ] || fail "the kinds are: $kinds"
! ldd "$runnel" | grep -E 'fftw|sndfile|libmpi' || fail "it is linked with these"
! "$runnel" lra listops train 2>said || fail "it knows listops"
grep -q 'after "runnel" comes one of: copy' said || fail "it says: $(cat said)"
"$runnel" copy train --preset tiny --steps 3 --quiet >/dev/null
"$runnel" copy evaluate --model runs/copy >/dev/null
"$runnel" mnist train --preset tiny --data synthetic --side 7 --steps 2 --quiet >/dev/null
"$runnel" mnist sample --model runs/mnist --count 4 --out samples.png >/dev/null
[ -s samples.png ] || fail "no picture"
