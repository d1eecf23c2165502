#!/usr/bin/env bash
# Fetches a data set:  datasets/download.sh mnist [DIR]     (DIR: ./data; the files go to DIR/mnist)
# Tries several mirrors, checks the md5 of what is inside each file, and leaves what is there and right alone.
set -euo pipefail

die() { echo "download.sh: $1" >&2; exit "${2:-1}"; }

[[ $# -ge 1 && $# -le 2 && $1 == mnist ]] || die "usage: datasets/download.sh mnist [DIR]" 2
folder=${2:-data}/mnist

mirrors=(
  https://ossci-datasets.s3.amazonaws.com/mnist
  https://storage.googleapis.com/cvdf-datasets/mnist
  https://raw.githubusercontent.com/fgnt/mnist/master
)
files=(
  train-images-idx3-ubyte 6bbc9ace898e44ae57da46a324031adb
  train-labels-idx1-ubyte a25bea736e30d166cdddb491f175f624
  t10k-images-idx3-ubyte  2646ac647ad5339dbf082846283269ea
  t10k-labels-idx1-ubyte  27ae3e4e09519cfbb04c329615203637
)

if command -v curl >/dev/null; then
  fetch() { curl --fail --silent --location --connect-timeout 15 --max-time 300 --output "$2" "$1"; }
elif command -v wget >/dev/null; then
  fetch() { wget --quiet --timeout=15 --tries=1 --output-document="$2" "$1"; }
else
  die "needs curl or wget"
fi

# holds FILE MD5: whether the content of FILE, gzip'd or not, has that sum.
holds() {
  [[ -f $1 ]] && [[ $( { gzip -dc "$1" 2>/dev/null || cat "$1"; } | md5sum | cut -d' ' -f1) == "$2" ]]
}

mkdir -p "$folder" 2>/dev/null || die "cannot create $folder"
part=$(mktemp "$folder/.download-XXXXXX" 2>/dev/null) || die "cannot write in $folder"
trap 'rm -f "$part"' EXIT

for ((i = 0; i < ${#files[@]}; i += 2)); do
  file=${files[i]} sum=${files[i + 1]} damaged=()
  for there in "$folder"/{"$file","${file/-idx/.idx}"}{,.gz}; do
    if holds "$there" "$sum"; then
      echo "$there: already there"
      continue 2
    fi
    if [[ -f $there ]]; then damaged+=("$there"); fi
  done
  for mirror in "${mirrors[@]}"; do
    if fetch "$mirror/$file.gz" "$part" && holds "$part" "$sum"; then
      rm -f "${damaged[@]}"
      chmod 644 "$part"
      mv "$part" "$folder/$file.gz"
      echo "$folder/$file.gz: fetched from $mirror"
      continue 2
    fi
  done
  die "no mirror gave a good $file.gz (tried ${mirrors[*]}); without a network, train on drawn digits: --data synthetic"
done
