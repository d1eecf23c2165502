#!/usr/bin/env bash
# distributions.sh FOLDER [distribution...]: builds the last commit with the compilers and libraries of other distributions
# and runs the tests, but those of packages and faults. Each distribution is installed by debootstrap in
# FOLDER/<distribution>, with what setup.sh installs there. Prints rows of the table in docs/platforms.md; logs are
# FOLDER/<distribution>-<compiler>.log. By hand, as root: 15 minutes each on two cores.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
sources=$(realpath "$(dirname "$0")/..")
shift
[ $# -gt 0 ] || set -- bookworm trixie jammy noble
keyring=ubuntu-keyring_2021.03.26_all.deb  # with which jammy and noble are signed

for name in "$@"; do
  root=$folder/$name
  case $name in
    jammy | noble)
      mirror=http://archive.ubuntu.com/ubuntu
      curl -sSf -o "$folder/$keyring" $mirror/pool/main/u/ubuntu-keyring/$keyring
      echo "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f  $folder/$keyring" | sha256sum --check --quiet
      dpkg -x "$folder/$keyring" "$folder/keyring"
      from=(--components=main,universe --keyring="$folder/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg")
      script=/usr/share/debootstrap/scripts/jammy ;;
    *) mirror=http://deb.debian.org/debian from=() script=/usr/share/debootstrap/scripts/sid ;;
  esac
  if [ ! -e "$root/installed" ]; then
    debootstrap --variant=minbase "${from[@]}" "$name" "$root" $mirror $script >"$folder/$name.log" 2>&1
    touch "$root/installed"
  fi
  rm -rf "$root/runnel"
  mkdir "$root/runnel"
  git -C "$sources" archive HEAD | tar -x -C "$root/runnel"
  mounts=("$root/proc" "$root/sys" "$root/dev")
  trap 'umount -l "${mounts[@]}" 2>/dev/null' EXIT
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount --rbind /dev "$root/dev"
  mount --make-rslave "$root/dev"
  inside() { env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot "$root" sh -ec "cd /runnel; $*"; }

  row="$(. "$root/etc/os-release" && echo "$NAME $VERSION_ID" | sed 's, GNU/Linux,,')"
  inside ./setup.sh >>"$folder/$name.log" 2>&1
  inside apt-get install -y -qq --no-install-recommends clang libomp-dev >>"$folder/$name.log" 2>&1
  for package in cmake libdnnl-dev libopenmpi-dev; do
    row+=" | $(inside "dpkg-query --show --showformat='\${Version}' $package" | grep -oP '^(\d+:)?\K\d+(\.\d+)+')"
  done
  for compiler in g++ clang++; do
    log=$folder/$name-$compiler.log build=build-$compiler
    version=$(inside $compiler -dumpfullversion -dumpversion)
    if inside "cmake --preset native -B $build -DCMAKE_CXX_COMPILER=$compiler && cmake --build $build -- -k 0" >"$log" 2>&1; then
      inside "ctest --test-dir $build --parallel $(($(nproc) + 1)) --output-on-failure -LE 'package|faults'" >>"$log" 2>&1 || true
      said=$(grep -oP 'tests passed, \K\d+ tests failed out of \d+' "$log" | sed 's/ tests failed out//')
      said+=" failed, $(grep -c '\*\*\*Skipped' "$log") skipped"
    else
      said="does not build"
    fi
    row+=" | $version: $said"
  done
  echo "| $row |"
  umount -l "${mounts[@]}"
  trap - EXIT
done
