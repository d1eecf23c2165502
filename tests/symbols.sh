#!/usr/bin/env bash
# What the object files of kernels for one instruction set may not contain:
#   * functions that the linker may share with other files: it would keep one version, perhaps the one that a processor
#     without these instructions then runs. Everything but the kernels has internal linkage.
#   * calls of scalar elementary functions: a loop with such a call is not vectorised.
# symbols.sh OBJECT...
set -euo pipefail
status=0
for object in "$@"; do
  [[ $object == *.gch ]] && continue  # of a precompiled header
  shared=$(nm --demangle --defined-only "$object" | grep -E ' [WVu] ' | grep -v ' DW\.ref\.' || true)
  scalar=$(nm --undefined-only "$object" | awk '{print $2}' |
    grep -Ex '(exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|erf|erfc|tanh|sin|cos|fma|round|lround|rint|nearbyint|floor|ceil|fmin|fmax)f?' || true)
  [ -z "$shared$scalar" ] && continue
  printf '%s:\n%s\n%s\n' "$object" "${shared:+shared with other files: $shared}" "${scalar:+scalar functions: $scalar}"
  status=1
done
exit $status
