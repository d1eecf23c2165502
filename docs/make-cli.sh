#!/usr/bin/env bash
# make-cli.sh PROGRAM: prints docs/cli.md, made from --help of each of the program's commands. A test compares them.
set -euo pipefail
program=$1

help_of() { "$program" "$@" --help | sed "s|^Usage: $program|Usage: runnel|"; }

# The help of this command behind a line with its name, with the flags of all topics, then that of its subcommands.
walk() {
  local text command topic
  text=$(help_of "$@")
  printf '## runnel%s\n' "${*:+ $*}"
  sed '/^Presets:/,$d; /^More flags:/d' <<<"$text"
  for topic in $(sed -n 's/^More flags: //; T; s/--help//g; s/,//g; p' <<<"$text"); do
    printf 'Options:\n'
    "$program" "$@" --help "$topic" | sed '1,/^Options:/d'
  done
  sed -n '/^Presets:/,$p' <<<"$text" | sed '/^More flags:/d'
  for command in $(awk 'tolower($0) ~ /^subcommands:/ { on = 1; next } on && /^  [a-z]/ { print $1 }' <<<"$text"); do
    walk "$@" "$command"
  done
}

cat <<'TEXT'
# Command line

*For those who use the program.*

Every command with its flags, as `--help` and, for what is less often needed, `--help TOPIC` print them: each flag's type, what its value may be, and after `=` its default. Below the flags of `train` stand its presets: each is a command line. A flag given twice counts
the last time; exit status is 0 (done), 1 (failed, or its output could not be written), 2 (impossible command line) or 130 (interrupted and saved).

Made by `docs/make-cli.sh build/runnel > docs/cli.md`; a test checks that it is up to date.

## Common flags

Flags of four commands or more; each command names those that it has, with its defaults.

TEXT
# A flag is its line and the lines of its description below, which begins in column 31 of the line itself if there is room.
# Those that are the same in four commands, but for their defaults, are printed once.
walk | awk '
  function end_flag(    spec, rest, default_value, at) {
    if (flag == "") return
    spec = flag
    rest = ""
    if (description == "" && length(flag) > 30) {
      rest = substr(flag, 30)
      spec = substr(flag, 1, 29)
    }
    sub(/ *$/, "", spec)
    default_value = ""
    if (match(spec, /=[^=]*$/)) {
      default_value = substr(spec, RSTART)
      spec = substr(spec, 1, RSTART - 1)
    }
    at = ++items[commands]
    name[commands, at] = spec
    sub(/^ *(-h,)?/, "", name[commands, at])
    sub(/ .*/, "", name[commands, at])
    value[commands, at] = default_value
    text[commands, at] = flag "\n" description
    key[commands, at] = spec SUBSEP rest SUBSEP description
    if (!(key[commands, at] in count)) {
      order[++different] = key[commands, at]
      plain[key[commands, at]] = rest == "" ? spec "\n" description : sprintf("%-29s%s\n", spec, rest)
    }
    ++count[key[commands, at]]
    flag = description = ""
  }
  /^## / { end_flag(); options = 0; title[++commands] = $0; next }
  /^Options:$/ { options = 1; next }
  options && /^  -/ { end_flag(); flag = $0; next }
  options && /^   / { description = description $0 "\n"; next }
  options { end_flag(); options = 0 }
  { text[commands, ++items[commands]] = $0 "\n" }
  END {
    end_flag()
    print "```text"
    for (i = 1; i <= different; ++i) if (count[order[i]] >= 4) printf "%s", plain[order[i]]
    print "```"
    for (c = 1; c <= commands; ++c) {
      shared = ""
      printf "\n%s\n\n```text\n", title[c]
      for (i = 1; i <= items[c]; ++i)
        if (count[key[c, i]] < 4) printf "%s", text[c, i]
        else if (name[c, i] != "--help") shared = shared " `" name[c, i] value[c, i] "`"
      print "```"
      if (shared != "") printf "\nCommon flags:%s\n", shared
    }
  }'
