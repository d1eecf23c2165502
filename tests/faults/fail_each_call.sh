#!/usr/bin/env bash
# Makes single system calls and allocations of a training run fail: fail_each_call.sh RUNNEL LIBRARY [STRIDE]
# For each of write, fsync and rename, every call; of the allocations, every STRIDE-th (1 by default), which are many.
# CALLS="write fsync" in the environment: only these.
# Each time the run goes on, or ends with one sentence and status 1; what stands in its folder can be read; and
# the resumed run ends in the same bytes as one in which nothing failed.
set -euo pipefail
runnel=$(realpath "$1") library=$(realpath "$2") stride=${3:-1}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir empty
unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME  # the program starts itself anew, as it does for its users
train="$runnel copy train --threads 1 --length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2 --steps 6
       --log-every 2 --evaluate-every 3 --save-every 2"
quietly() { PATH=$folder/empty "$@"; }  # without gnuplot
bad() { echo "$call number $n: $1"; cat errors; exit 1; }

quietly $train --out whole >/dev/null 2>&1
LD_PRELOAD=$library FAIL=flock FAIL_AT=1 quietly $train --out unlocked >/dev/null 2>errors
[ "$(grep -c "has no locks" errors)" = 1 ] && cmp whole/last.safetensors unlocked/last.safetensors || { cat errors; exit 1; }
for call in ${CALLS:-write fsync rename allocate}; do
  LD_PRELOAD=$library FAIL=$call FAIL_COUNT=$folder/count quietly $train --out counted >/dev/null 2>&1
  total=$(cat count) step=1 tried=0 failed=0
  rm -rf counted
  [ "$call" != allocate ] || step=$stride
  for ((n = 1; n <= total; n += step)); do
    rm -rf run
    status=0
    LD_PRELOAD=$library FAIL=$call FAIL_AT=$n quietly $train --out run >/dev/null 2>errors || status=$?
    tried=$((tried + 1))
    case $status in
      0) ;;
      1) failed=$((failed + 1))
         [ "$(grep -c '^runnel: ' errors)" -ge 1 ] || bad "status 1 without a sentence" ;;
      *) bad "status $status" ;;
    esac
    [ -e run/config.json ] || continue  # nothing was written yet
    flags=--overwrite
    if [ -e run/last.safetensors ]; then
      flags=--resume
      quietly "$runnel" copy evaluate --model run --sequences 1 --threads 1 >/dev/null 2>errors || bad "last.safetensors is damaged"
    fi
    quietly $train $flags --out run >/dev/null 2>errors || bad "the run cannot be resumed with $flags"
    for file in last.safetensors config.json; do
      cmp -s "whole/$file" "run/$file" || bad "$file differs after $flags"
    done
  done
  echo "$call: $tried of $total calls failed, one at a time; $failed runs ended with a sentence, the others went on"
done
