#!/usr/bin/env bash
# Builds and runs all tests: as they are shipped, then under AddressSanitizer and UndefinedBehaviorSanitizer.
# Closes with the line "N passed, N failed, N skipped". Exit status 0 means that none failed.
set -euo pipefail
cd "$(dirname "$0")"
./setup.sh

export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for preset in release sanitize; do
  echo "== $preset"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset"
  folder=build; [ "$preset" = release ] || folder=build-$preset
  status=0
  "$folder/runnel_tests" | tee "$log" || status=$?
  # [doctest] test cases: 20 | 20 passed | 0 failed | 0 skipped
  counts=$(grep -a '^\[doctest\] test cases:' "$log" | tail -n 1 | grep -oE '[0-9]+ (passed|failed)' | cut -d' ' -f1 || true)
  read -r p f <<<"$(echo $counts)" || true
  [ "$status" -eq 0 ] || [ "${f:-0}" -gt 0 ] || f=1  # it died
  passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0}))
  skipped=$((skipped + $(grep -ac 'skipped: 1 test' "$log" || true)))
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
