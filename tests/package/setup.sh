#!/usr/bin/env bash
# setup.sh, with a package manager that only says what it was asked for.
set -euo pipefail
setup=$(cd "$(dirname "$0")/../.." && pwd)/setup.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tool in bash cat dirname env grep id sh uname; do ln -s "$(command -v $tool)" "$work/$tool"; done
fake() { rm -f "$work/$1"; printf '#!%s\n%s\n' "$work/sh" "$2" >"$work/$1"; chmod +x "$work/$1"; }
fake apt-get "echo apt-get \"\$@\" >>$work/log"
fake sudo '"$@"'
touch "$work/log"
run() { status=0; out=$(env -u RUNNEL_NO_INSTALL PATH="$work" "$@" 2>&1) || status=$?; }
expect() { [[ $1 == $2 ]] || { printf 'setup.sh: expected %s\nbut got %s\n' "$2" "$1" >&2; exit 1; }; }

fake dpkg-query 'echo installed'
run "$setup"
expect "$status $out $(<"$work/log")" '0 setup.sh: nothing is missing '

fake dpkg-query 'case "$*" in *libomp-dev) exit 1 ;; *) echo installed ;; esac'
run "$setup" --sanitizers
expect "$(tail -n 1 "$work/log")" 'apt-get install * libomp-dev'
: >"$work/log"
fake dpkg-query 'case "$*" in *chromium) exit 1 ;; *) echo installed ;; esac'
run "$setup" --web
expect "$(tail -n 1 "$work/log")" 'apt-get install * chromium'
: >"$work/log"

# Two packages are missing, and a program that comes from elsewhere: it is not installed again.
fake dpkg-query 'case "$*" in *zlib1g-dev|*libfmt-dev|*cmake) exit 1 ;; *) echo installed ;; esac'
fake cmake ''
run "$setup" --no-install
expect "$status $out $(<"$work/log")" '1 setup.sh: missing: libfmt-dev zlib1g-dev '
run env RUNNEL_NO_INSTALL=1 "$setup"
expect "$status $out $(<"$work/log")" '1 setup.sh: missing: libfmt-dev zlib1g-dev '
run "$setup"
expect "$status $out" '0 setup.sh: *apt-get install * libfmt-dev zlib1g-dev*'
expect "$(<"$work/log")" $'apt-get update*\napt-get install * libfmt-dev zlib1g-dev'

# Without root: by sudo; without that, a sentence.
fake id 'echo 1000'
: >"$work/log"
run "$setup"
expect "$status $out" '0 setup.sh: sudo sh -c *apt-get install * libfmt-dev zlib1g-dev*'
expect "$(tail -n 1 "$work/log")" 'apt-get install * libfmt-dev zlib1g-dev'
mv "$work/sudo" "$work/no-sudo"
run "$setup"
expect "$status $out" '1 setup.sh: there is no sudo; as root, run: *apt-get install -y libfmt-dev zlib1g-dev (*'
mv "$work/no-sudo" "$work/sudo"

run "$setup" --no-instal
expect "$status $out" '2 setup.sh: unknown flag --no-instal; ./setup.sh --help'
run "$setup" --sanitizers --help
expect "$status $out" '0 usage: *--sanitizers*--no-install*'
run "$setup" --sanitizers --no-install
expect "$status $out" '1 setup.sh: missing: libfmt-dev zlib1g-dev'

fake apt-get 'exit 100'
run "$setup"
expect "$status" 100

rm "$work/apt-get"
run "$setup"
expect "$status $out" '1 *please install: g++ 11*'

# macOS: what Homebrew lacks is named, not installed.
mkdir -p "$work/homebrew/include/stb"
fake uname 'echo Darwin'
fake brew "case \"\$*\" in --prefix) echo $work/homebrew ;; *fmt|*fftw) exit 1 ;; esac"
run "$setup"
expect "$status $out" "1 setup.sh: please run: brew install fmt fftw"$'\n'"setup.sh: please run: git clone * '$work/homebrew/include/stb'"
run "$setup" --web
expect "$status $out" '2 setup.sh: --sanitizers, --libc++, --web and --arm are for Debian and Ubuntu'
touch "$work/homebrew/include/stb/stb_image.h"
fake brew "case \"\$*\" in --prefix) echo $work/homebrew ;; esac"
run "$setup"
expect "$status $out" '0 setup.sh: nothing is missing *'
