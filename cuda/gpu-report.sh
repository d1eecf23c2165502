#!/usr/bin/env bash
# In an installed bundle, on a machine with a GPU: runs the whole test program, compute-sanitizer on the small cases, and
# the benchmarks, and prints one table. Exit status 0 means that every test passed.
set -uo pipefail
cd "$(dirname "$0")"
export RUNNEL_SOURCE_DIR=$PWD RUNNEL_PROGRAM=$PWD/runnel
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
rows=() status=0
row() { rows+=("| $1 | $2 |"); }

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || { echo "gpu-report.sh: no GPU here: nvidia-smi finds none" >&2; exit 1; }
row "GPU, driver" "$gpu"

echo "== tests"
./runnel_tests 2>&1 | tee "$log/tests" || status=1
row "tests" "$(grep -a '^\[doctest\] test cases:' "$log/tests" | tail -n 1 | cut -d: -f2-)"

echo "== compute-sanitizer"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
small='causal_product equals*,linear_attention equals*,layer_norm: values,linear equals*,embedding: values*,sums_of*,gather*'
for tool in memcheck racecheck synccheck initcheck; do
  if [ -z "$sanitizer" ]; then row "compute-sanitizer $tool" "not installed"; continue; fi
  timeout 300 "$sanitizer" --tool $tool ./runnel_tests -tc="$small" >"$log/$tool" 2>&1 || status=1
  tail -n 3 "$log/$tool"
  row "compute-sanitizer $tool" "$(grep -a 'SUMMARY' "$log/$tool" | tail -n 1 | sed 's/=* *//')"
done

echo "== benchmarks"
for what in attention training generation kernels; do
  for precision in f32 tf32; do
    ./runnel bench $what --device cuda --precision $precision 2>&1 | tee "$log/$what" || status=1
    while IFS= read -r line; do row "$what, $precision" "$line"; done <"$log/$what"
  done
done
for length in 784 3072; do
  ./runnel bench attention --device cuda --batch 10 --shortest $length --longest $length >"$log/attention" || status=1
  while IFS= read -r line; do row "attention, B 10, H 8, L $length" "$line"; done \
    < <(grep -E '^(linear|softmax|lsh-.) ' "$log/attention")
done

printf '\n| what | result |\n| --- | --- |\n'
printf '%s\n' "${rows[@]}"
exit $status
