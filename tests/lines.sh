#!/usr/bin/env bash
# lines.sh: lines of C++ and CUDA, without tests and examples, by folder and by package.
set -euo pipefail
cd "$(dirname "$0")/.."
find engine ops cuda models datasets apps -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort | xargs wc -l | awk '
  $2 == "total" { next }
  {
    folder = $2
    sub(/\/.*/, "", folder)
    package = "core"
    for (i = split("lra speech processes", names, " "); i > 0; --i)
      if ($2 ~ "/" names[i] "[/.]") package = names[i]
    lines[folder] += $1
    lines[package] += $1
    all += $1
  }
  END {
    for (i = 1; i <= split("engine ops cuda models datasets apps | core lra speech processes", names, " "); ++i)
      if (names[i] == "|") print ""; else printf "%-10s %6d\n", names[i], lines[names[i]]
    printf "\n%-10s %6d\n", "all", all
  }'
