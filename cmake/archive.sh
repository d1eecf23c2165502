#!/usr/bin/env bash
# archive.sh PROGRAM ARCHIVE.tar.gz: the program for any Linux on this kind of processor, whatever C library it has, in one
# archive: it brings its own, with all other libraries and their licences, and a script that starts it with them.
set -euo pipefail
program=$1 archive=$(realpath "$2") sources=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=$(basename "$archive" .tar.gz)
folder=$work/$name
mkdir -p "$folder/lib" "$folder/licences"

strip -o "$folder/lib/runnel" "$program"
libraries=$(ldd "$program")
[[ $libraries != *"not found"* ]] || { echo "archive.sh: a library is missing: $libraries" >&2; exit 1; }
for path in $(grep -o '/[^ ]*' <<<"$libraries"); do
  cp -L "$path" "$folder/lib"
  real=$(realpath "$path")
  package=$({ dpkg -S "$real" "${real#/usr}" 2>/dev/null || true; } | sed -n '1s/:.*//p')
  cp -L "/usr/share/doc/$package/copyright" "$folder/licences/$package" 2>/dev/null ||
    { echo "archive.sh: $path: its licence is not found; archives are made on Debian and Ubuntu" >&2; exit 1; }
done
cp -L /usr/share/common-licenses/* "$folder/licences"  # to which those refer
cp "$sources/README.md" "$sources/LICENSE" "$folder"
loader=$(basename "$folder"/lib/ld-linux-*)

# The loader stands for the program in /proc/self/exe, so that the program cannot start itself again to have OpenMP's
# threads spin shortly (apps/cli/waiting.h).
cat >"$folder/runnel" <<SCRIPT
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
[ -n "\$OMP_WAIT_POLICY\$GOMP_SPINCOUNT\$KMP_BLOCKTIME" ] || export GOMP_SPINCOUNT=2000 KMP_BLOCKTIME=0
exec "\$here/lib/$loader" --argv0 "\$0" --inhibit-cache --library-path "\$here/lib" "\$here/lib/runnel" "\$@"
SCRIPT
chmod +x "$folder/runnel"
tar -czf "$archive" -C "$work" --owner=0 --group=0 "$name"
