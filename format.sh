#!/usr/bin/env bash
# Formats all sources with clang-format 14, of which other versions differ: ./format.sh
# With --check, it only names the lines that are not formatted; exit status 1 if there are any, 2 without clang-format 14.
set -euo pipefail
cd "$(dirname "$0")"
for program in clang-format-14 clang-format; do
  "$program" --version 2>/dev/null | grep -q 'version 14\.' && break
  program=
done
[ -n "$program" ] || { echo "format.sh: there is no clang-format 14 (Debian, Ubuntu: apt-get install clang-format-14)" >&2; exit 2; }
case "${1:-}" in
  "") arguments=(-i) ;;
  --check) arguments=(--dry-run -Werror) ;;
  *) echo "format.sh: unknown argument $1; give --check or nothing" >&2; exit 1 ;;
esac
git ls-files -z --cached --others --exclude-standard --deduplicate '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 "$program" "${arguments[@]}" || exit 1
