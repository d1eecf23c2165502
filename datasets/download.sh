#!/usr/bin/env bash
# Fetches a data set:  datasets/download.sh mnist|cifar10|shakespeare|enwik8|fsdd [DIR]
# DIR: ./data; the files go to DIR/mnist (gzip'd), DIR/cifar-10-batches-bin, DIR/text or DIR/recordings. Tries several mirrors,
# checks the md5 of each file, of all recordings together, and does not fetch again what is there and intact.
set -euo pipefail

die() { echo "download.sh: $1" >&2; exit "${2:-1}"; }

usage="usage: datasets/download.sh mnist|cifar10|shakespeare|enwik8|fsdd [DIR]"
[[ $# -ge 1 && $# -le 2 ]] || die "$usage" 2
otherwise= remote=
case $1 in
  mnist)
    folder=${2:-data}/mnist
    mirrors=(
      https://ossci-datasets.s3.amazonaws.com/mnist
      https://storage.googleapis.com/cvdf-datasets/mnist
      https://raw.githubusercontent.com/fgnt/mnist/master
    )
    files=(  # each with the md5 of what is inside
      train-images-idx3-ubyte 6bbc9ace898e44ae57da46a324031adb
      train-labels-idx1-ubyte a25bea736e30d166cdddb491f175f624
      t10k-images-idx3-ubyte  2646ac647ad5339dbf082846283269ea
      t10k-labels-idx1-ubyte  27ae3e4e09519cfbb04c329615203637
    )
    otherwise="; without a network, train on drawn digits: --data synthetic"
    ;;
  cifar10)
    folder=${2:-data}/cifar-10-batches-bin
    mirrors=(
      https://www.cs.toronto.edu/~kriz
      https://cave.cs.toronto.edu/kriz
    )
    archive=cifar-10-binary.tar.gz archive_sum=c32a1d4ab5d03f1284b67883e8d87530
    files=(
      data_batch_1.bin 5dd7e06a14cb22eb9f671a540d1b7c25
      data_batch_2.bin 5ea93a67294ea407fff1d09f752e9692
      data_batch_3.bin 942cd6a4bcdd0dd3c604fbe906cb4421
      data_batch_4.bin ae636b3ba5c66a11e91e8cb52e771fcb
      data_batch_5.bin 53f37980c15c3d472c316c40844f3f0d
      test_batch.bin   803d5f7f4d78ea53de84dbe85f74fb6d
    )
    ;;
  shakespeare)  # all plays in one file, 1.1 MB: "tinyshakespeare"
    folder=${2:-data}/text
    mirrors=(https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare)
    files=(shakespeare.txt 6fb458f1232090904fb40fe944165e91)
    remote=input.txt
    ;;
  enwik8)  # the first 10^8 bytes of a dump of Wikipedia
    folder=${2:-data}/text
    mirrors=(https://mattmahoney.net/dc)
    files=(enwik8 a1fa5ffddb56f4953e226637dabbb36a)
    remote=enwik8.zip
    ;;
  fsdd)
    folder=${2:-data}
    mirrors=(https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads)
    files=()
    recordings_sum=2c93442f2c808e24d4d913f6be24d32c  # of all recordings, one after another in the order of their names
    ;;
  *) die "$usage" 2 ;;
esac

if command -v curl >/dev/null; then
  fetch() {  # gives up when stalled for a minute
    curl --fail --silent --location --connect-timeout 15 --speed-limit 1000 --speed-time 60 --output "$2" "$1"
  }
elif command -v wget >/dev/null; then
  fetch() { wget --quiet --timeout=60 --tries=1 --output-document="$2" "$1"; }
else
  die "needs curl or wget"
fi

command -v md5sum >/dev/null || md5sum() { md5 -q; }  # of macOS
# FILE MD5: whether the file has that checksum; whether its content has, gzip'd or not.
is() { [[ -f $1 && $(md5sum <"$1" | cut -d' ' -f1) == "$2" ]]; }
holds() { [[ -f $1 && $( { gzip -dc "$1" 2>/dev/null || cat "$1"; } | md5sum | cut -d' ' -f1) == "$2" ]]; }

# FILE MD5: whether an intact copy is in the folder; prints its name, or puts damaged copies into `damaged`.
is_there() {
  damaged=()
  for there in "$folder"/{"$1","${1/-idx/.idx}"}{,.gz}; do
    if holds "$there" "$2"; then
      echo "$there: already there"
      return
    fi
    if [[ -f $there ]]; then damaged+=("$there"); fi
  done
  return 1
}

# NAME CHECK MD5: puts it into $part/NAME from the first mirror whose copy passes the check, and sets `mirror`.
fetch_any() {
  if [[ -z $part ]]; then
    mkdir -p "$folder" 2>/dev/null || die "cannot create $folder"
    part=$folder/.download-$HOSTNAME-$$
    mkdir "$part" 2>/dev/null || die "cannot write in $folder"
  fi
  for mirror in "${mirrors[@]}"; do
    if fetch "$mirror/$1" "$part/$1" && "$2" "$part/$1" "$3"; then return; fi
  done
  die "no mirror gave a good $1 (tried ${mirrors[*]})$otherwise"
}

part=
trap 'rm -rf "$part"' EXIT
for left in "$folder/.download-$HOSTNAME-"*; do  # by a process that was killed
  [[ -d /proc/${left##*-} ]] || kill -0 "${left##*-}" 2>/dev/null || rm -rf "$left"
done

for ((i = 0; i < ${#files[@]}; i += 2)); do
  file=${files[i]} sum=${files[i + 1]}
  if is_there "$file" "$sum"; then continue; fi
  if [[ $1 == mnist ]]; then
    file=$file.gz
    fetch_any "$file" holds "$sum"
  elif [[ -n $remote ]]; then
    fetch_any "$remote" holds "$sum"
    if gzip -dc "$part/$remote" >"$part/$file" 2>/dev/null; then rm "$part/$remote"; else mv "$part/$remote" "$part/$file"; fi
  elif [[ ! -f $part/$archive ]]; then
    fetch_any "$archive" is "$archive_sum"
    tar -xzf "$part/$archive" -C "$part" --strip-components=1 --no-same-owner 2>/dev/null ||
      die "cannot unpack $archive in $folder"
  fi
  rm -f "${damaged[@]}"
  mv "$part/$file" "$folder/$file"
  echo "$folder/$file: fetched from $mirror"
done

# FOLDER: the md5 of its recordings. FILE MD5: whether the recordings in the archive have it; unpacks them.
sum_of() { (cd "$1" 2>/dev/null && export LC_ALL=C && cat -- *.wav 2>/dev/null | md5sum | cut -d' ' -f1) || true; }
has_recordings() {
  rm -rf "$part/fsdd" && mkdir "$part/fsdd" &&
    tar -xzf "$1" -C "$part/fsdd" --strip-components=1 --no-same-owner 2>/dev/null &&
    [[ $(sum_of "$part/fsdd/recordings") == "$2" ]]
}
if [[ $1 == fsdd ]]; then
  if [[ $(sum_of "$folder/recordings") == "$recordings_sum" ]]; then
    echo "$folder/recordings: already there"
    exit
  fi
  fetch_any master.tar.gz has_recordings "$recordings_sum"
  if [[ -d $folder/recordings ]]; then
    mv "$part"/fsdd/recordings/*.wav "$folder/recordings"
  else
    mv "$part/fsdd/recordings" "$folder"
  fi
  echo "$folder/recordings: fetched from $mirror"
fi
