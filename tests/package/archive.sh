#!/usr/bin/env bash
# archive.sh BUILD: the archive for any Linux (docs/platforms.md), unpacked in an empty root, where there is no other file: its
# program trains there to the bytes of the program in BUILD. By its script, it takes no library from elsewhere.
set -euo pipefail
build=$(realpath "$1")
cmake --build "$build" --target archive >/dev/null
archive=$(realpath "$build"/runnel-linux-*.tar.gz)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tar -xzf "$archive" -C "$root" --strip-components=1
loader=$(basename "$root"/lib/ld-linux-*)
fail() { echo "tests/package/archive.sh: $1"; exit 1; }

train=(copy train --preset tiny --steps 3 --seed 5 --threads 1 --quiet --out)
"$build/runnel" "${train[@]}" "$root/expected"
ln -s "$root/runnel" "$root/link"
env -i "PATH=$PATH" "$root/link" "${train[@]}" "$root/by-script"
cmp "$root/by-script/last.safetensors" "$root/expected/last.safetensors"

elsewhere=$("$root/lib/$loader" --inhibit-cache --library-path "$root/lib" --list "$root/lib/runnel" |
  grep -vE "=> $root/lib/|linux-vdso|^\s+$root/lib/$loader ") || true
[ -z "$elsewhere" ] || fail "libraries from elsewhere: $elsewhere"
for file in README.md licences/libc6 licences/GPL-3; do [ -s "$root/$file" ] || fail "there is no $file"; done
echo "$(stat -c %s "$archive") bytes"

alone=(chroot)
[ "$(id -u)" -eq 0 ] || alone=(unshare --map-root-user chroot)
if [ "${alone[0]}" = unshare ] && ! unshare --map-root-user true 2>/dev/null; then
  echo "skipped: 1 test, here only root may change the root folder"
  exit 77
fi
"${alone[@]}" "$root" "/lib/$loader" --library-path /lib /lib/runnel "${train[@]}" /by-loader
cmp "$root/by-loader/last.safetensors" "$root/expected/last.safetensors"
