#!/usr/bin/env bash
# cuda/gpu_peers.py on the CPU: tests/gpu_peers.sh SCRIPT RUNNEL. Without PyTorch, only what it then says.
set -euo pipefail
script=$1 runnel=$2 python=${PYTHON:-python3}
fail() { echo "tests/gpu_peers.sh: $1; the output was: $output"; exit 1; }

if ! "$python" -c 'import torch' 2>/dev/null; then
  output=$("$python" "$script" attention 2>&1) && fail "exit status 0 without PyTorch"
  [ "$output" = "gpu_peers.py: PyTorch is not installed; pip install torch" ] || fail "not the sentence on PyTorch"
  exit 0
fi
small=(attention --device cpu --lengths 70 --batch 2 --heads 2 --head-dim 8 --runs 1 --runnel)
output=$("$python" "$script" "${small[@]}" "$runnel" 2>/dev/null) || fail "exit status $?"
for row in "linear attention, B 2, H 2, L 70, eager: " "softmax attention, B 2, H 2, L 70, float32, eager: " \
  "softmax attention, B 2, H 2, L 70: PyTorch's best takes "; do
  grep -qF "$row" <<<"$output" || fail "no row '$row'"
done
output=$("$python" "$script" "${small[@]}" missing 2>&1) && fail "exit status 0 without the program"
grep -qF "gpu_peers.py: --runnel missing cannot be run: " <<<"$output" || fail "not the sentence on --runnel"
output=$("$python" "$script" attention --device cpu --lengths 0 2>&1) && fail "exit status 0 with length 0"
grep -qF -- "--lengths must be 1 or more" <<<"$output" || fail "not the sentence on --lengths"
echo "gpu_peers.py: passed"
