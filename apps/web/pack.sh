# pack.sh OUT NAME=FILE...: makes OUT a script that says `const files = {NAME: "...", ...}`, with the files compressed by
# gzip, in base64.
set -eu
out=$1
shift
{
  printf 'const files = {'
  for file in "$@"; do
    printf '%s: "' "${file%%=*}"
    gzip -9nc "${file#*=}" | base64 | tr -d '\n'
    printf '",\n'
  done
  printf '};\n'
} >"$out.partial"
mv "$out.partial" "$out"
