#!/usr/bin/env bash
# Kills a process of several at random moments and resumes the run with another number: tests/processes/kill_rank.sh RUNNEL [KILLS]
# All must then end within 30 seconds and name the rank, and the run in the bytes of one that was never interrupted.
# So must those of which one runs another program.
# Exit status 77: there is no mpirun, or this build has no MPI.
set -euo pipefail
runnel=$(realpath "$1") wanted=${2:-20}
if ! command -v mpirun >/dev/null || "$runnel" --version | grep -q "^MPI *not"; then
  echo "skipped: 1 test, there is no MPI (libopenmpi-dev, openmpi-bin)"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
train="$runnel copy train --threads 1 --quiet --length 16 --layers 1 --width 16 --heads 2 --feed-forward 16 --batch 4
       --dropout 0.1 --log-every 3 --evaluate-every 500 --save-every 100 --steps 3000"
$train --out whole
timeout 60 mpirun --bind-to none -n 1 $train --out alone : -n 1 true >another 2>&1 &
another=$!

kills=0
for ((status = 1; status != 0;)); do
  count=$((1 << (1 + RANDOM % 2)))
  flags= victim=
  [ ! -e killed/last.safetensors ] || flags=--resume
  [ -n "$flags" ] || rm -rf killed
  mpirun --bind-to none -n $count $train $flags --out killed >out 2>&1 &
  launcher=$!
  if [ "$kills" -lt "$wanted" ]; then
    sleep "0.$(printf %03d $((200 + RANDOM % 500)))"
    victim=$(pgrep -P "$launcher" | shuf -n 1) || true
    [ -z "$victim" ] || kill -KILL "$victim" 2>/dev/null || true
    kills=$((kills + 1))
  fi
  began=$SECONDS status=0
  if [ -n "$victim" ]; then
    # Rarely, Open MPI 4.1's mpirun hangs in PMIx_server_finalize when all processes have ended.
    for ((tenth = 0; tenth < 200; ++tenth)); do kill -0 $launcher 2>/dev/null || break; sleep 0.1; done
    if kill -0 $launcher 2>/dev/null && ! pgrep -P $launcher -r R,S,D >/dev/null; then kill -KILL $launcher; fi
  fi
  wait $launcher || status=$?
  [ -z "$victim" ] || [ $((SECONDS - began)) -le 30 ] || { echo "all ended only after $((SECONDS - began)) s"; exit 1; }
  [ "$status" -eq 0 ] || grep -q "rank [0-9]* .*exited on signal 9\|Killed" out || { cat out; exit 1; }
done
cmp whole/last.safetensors killed/last.safetensors
cmp whole/best.safetensors killed/best.safetensors
echo "$kills kills: the run ended in the same bytes"
status=0
wait $another || status=$?
[ $status -eq 1 ] && grep -q "OMPI_COMM_WORLD_SIZE=2 says .* not all of them have come" another || { cat another; exit 1; }
