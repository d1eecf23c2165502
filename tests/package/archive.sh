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
alone=(chroot)
[ "$(id -u)" -eq 0 ] || alone=(unshare --map-root-user chroot)
"${alone[@]}" "$root" "/lib/$loader" --library-path /lib /lib/runnel "${train[@]}" /by-loader
ln -s "$root/runnel" "$root/link"
env -i "PATH=$PATH" "$root/link" "${train[@]}" "$root/by-script"
for how in by-loader by-script; do cmp "$root/$how/last.safetensors" "$root/expected/last.safetensors"; done

elsewhere=$("$root/lib/$loader" --inhibit-cache --library-path "$root/lib" --list "$root/lib/runnel" |
  grep -vE "=> $root/lib/|linux-vdso|^\s+$root/lib/$loader ") || true
[ -z "$elsewhere" ] || fail "libraries from elsewhere: $elsewhere"
[ -s "$root/licences/libc6" ] && [ -s "$root/README.md" ] || fail "there is no licence of the C library, or no README.md"
echo "$(stat -c %s "$archive") bytes"
