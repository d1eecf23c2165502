#!/usr/bin/env bash
# Ends a training run at random moments with SIGKILL and resumes it each time: tests/kill_and_resume.sh RUNNEL [KILLS]
# Every run must end in the same bytes as one that was never interrupted. 20 kills unless it says otherwise.
set -euo pipefail
runnel=$(realpath "$1") wanted=${2:-20}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
train="$runnel copy train --threads 1 --length 16 --layers 1 --width 16 --heads 2 --feed-forward 16 --batch 2 --dropout 0.1
       --steps 1500 --log-every 3 --evaluate-every 50 --save-every 10"
without_time() { cut -d, -f1-6 "$1/metrics.csv"; }
$train --out whole >/dev/null

kills=0 runs=0
while [ "$kills" -lt "$wanted" ]; do
  rm -rf killed*
  for ((status = 137; status == 137;)); do
    flags=--overwrite
    if [ -e killed/last.safetensors ]; then flags=--resume; fi
    $train $flags --out killed >/dev/null 2>errors &
    sleep "0.$(printf %03d $((RANDOM % 400)))"
    kill -KILL $! 2>/dev/null && kills=$((kills + 1))
    status=0
    wait $! 2>/dev/null || status=$?
  done
  [ "$status" -eq 0 ] || { echo "a resumed run ended with status $status: $(cat errors)"; exit 1; }
  for file in last.safetensors best.safetensors config.json; do
    cmp "whole/$file" "killed/$file" || { echo "$file differs after $kills kills"; exit 1; }
  done
  diff <(without_time whole) <(without_time killed) || { echo "metrics.csv differs after $kills kills"; exit 1; }
  runs=$((runs + 1))
done
echo "$kills kills in $runs runs: all ended in the same bytes"
