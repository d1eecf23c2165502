#!/usr/bin/env bash
# make-cli.sh PROGRAM: prints docs/cli.md, made from --help of each of the program's commands. A test compares them.
set -euo pipefail
program=$1
fence='```'

help_of() { "$program" "$@" --help | sed "s|^Usage: $program|Usage: runnel|"; }

# This command's section, then those of its subcommands.
walk() {
  local text command
  text=$(help_of "$@")
  printf '\n## runnel%s\n\n%s\n%s\n%s\n' "${*:+ $*}" "${fence}text" "$text" "$fence"
  for command in $(awk 'tolower($0) ~ /^subcommands:/ { on = 1; next } on && /^  [a-z]/ { print $1 }' <<<"$text"); do
    walk "$@" "$command"
  done
}

cat <<'TEXT'
# Command line

Every command with its flags, as `--help` prints them: each flag's type, what its value may be, and after `=` its default. Below the flags of `train` stand the values that differ between the presets. A flag given twice counts
the last time; exit status is 0 (done), 1 (failed, or its output could not be written), 2 (impossible command line) or 130 (interrupted and saved).

Made by `docs/make-cli.sh build/runnel > docs/cli.md`; a test checks that it is up to date.
TEXT
walk
