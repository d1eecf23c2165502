#!/usr/bin/env bash
# What nvcc has made of the CUDA kernels for sm_90, from the object files of a build folder: instructions, divergent
# regions, in which some threads of a warp may wait for others (BSSY), registers of a thread, bytes of local memory, into
# which registers are spilled, and of static shared memory.
#   cuda/kernel-report.sh BUILD           prints them, a line for each kernel
#   cuda/kernel-report.sh --check BUILD   fails if a kernel exceeds its limit, if one of cuda/attention or cuda/lra has
#                                         none or uses local memory, or if the table of docs/cuda.md is not that of
#                                         these objects
#   cuda/kernel-report.sh --write BUILD   writes that table anew
# Needs cuobjdump and nvdisasm: from the CUDA toolkit, or from the Python packages nvidia-cuda-cuobjdump and
# nvidia-cuda-nvdisasm. Exit status 2: they are not there.
set -euo pipefail
shopt -s nullglob globstar
export LC_ALL=C

# The most divergent regions of each kernel; the first pattern that matches a whole name counts. Kernels of linear
# attention are bound by the number of their instructions: the feature map must not branch on the sign of a number. The
# other limits are what the kernels had when these were written. The table lists the kernels with a limit.
export limits='
  gated_linear_attention            68
  [a-z]*_?linear_attention[a-z_]*   60
  causal_product                    35
  softmax_attention                 71
  softmax_attention_step            17
  softmax_attention_bias            42
  lsh_attention                     47
  lsh_attention_[a-z]+              12
  lsh_sort                          28
  lsh_(hash|rotations)               5
  sinkhorn_[a-z]+                   31
  positive_random_features_[a-z]+    7
  random_projection                 18
  attention_products                 7
  clear_padding                     13
  layer_norm_[a-z]+                 27
'

fail() { echo "kernel-report.sh: $1" >&2; exit 1; }
mode=print
case "${1:-}" in
  --check | --write) mode=${1#--}; shift ;;
esac
[ $# -eq 1 ] && [ -d "$1" ] || fail "give a build folder, after --check, --write or nothing"
root=$(dirname "$(realpath "$0")")/.. page=docs/cuda.md
objects=("$1"/CMakeFiles/runnel_{cuda,processes_cuda}.dir/cuda/**/*.o) sources=("$root"/cuda/*.{h,cu} "$root"/cuda/{attention,lra,speech,processes}/*.{h,cu})
[ ${#objects[@]} -gt 0 ] || fail "$1 has no CUDA objects: cmake --build builds them"

export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
for folder in $(python3 -c 'import site; print(*site.getsitepackages())' 2>/dev/null); do PATH+=:$folder/nvidia/cu13/bin; done
command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null ||
  { echo "kernel-report.sh: no cuobjdump and nvdisasm"; exit 2; }

# A line for each kernel, fields separated by tabs: attention or other, name, form (Float32, Tf32 or nothing),
# instructions, divergent regions, registers, bytes of local and of static shared memory, limit or nothing. Helpers that
# several objects have alike are one line. The names of template arguments are those in the sources.
measured() {
  for object in "${objects[@]}"; do
    echo "object $object"
    cuobjdump -sass -res-usage -arch sm_90 "$object" || exit
  done | c++filt | awk '
    function report(  name, form, value, parameters, i, n) {
      name = kernel
      kernel = ""
      if (name == "") return
      gsub(/\(anonymous namespace\)::|runnel::(cuda::)?|^void /, "", name)
      if (!sub(/>\(.*/, "", name)) sub(/\(.*/, "", name)
      n = 0
      if (i = index(name, "<")) {
        n = split(substr(name, i + 1), value, ", ")
        name = substr(name, 1, i - 1)
        split(parameters_of[name], parameters, ", ")
      }
      sub(/_kernel$/, "", name)
      for (limit = 1; limit <= limits && name !~ "^(" pattern[limit] ")$"; ++limit) continue
      form = ""
      for (i = 1; i <= n; ++i) {
        sub(/.* /, "", parameters[i])
        if (value[i] ~ /^(Float32|Tf32)$/) form = value[i]
        else if (value[i] == "true") name = name ", " parameters[i]
        else if (value[i] in enumerator) name = name ", " enumerator[value[i]]
        else if (value[i] != "false") name = name ", " parameters[i] " " value[i]
      }
      printf "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", folder, name, form, instructions, regions, registers, memory, shared,
             most[limit]
    }
    BEGIN {
      limits = split(ENVIRON["limits"], words) / 2
      for (i = 1; i <= limits; ++i) {
        pattern[i] = words[2 * i - 1]
        most[i] = words[2 * i]
      }
    }
    !compiled {  # a source
      if (/^enum class /) {
        type = $3
        gsub(/.*\{ *| *\}.*/, "")
        for (n = split($0, words, /, */); n > 0; --n) enumerator["(" type ")" n - 1] = words[n]
      }
      if (/^template </) parameters = substr($0, 11, length($0) - 11)
      if (/__global__/) global = 1
      if (global && match($0, /[a-z0-9_]+_kernel\(/)) {
        parameters_of[substr($0, RSTART, RLENGTH - 1)] = parameters
        global = 0
      }
      next
    }
    /^object / { report(); folder = /\/(attention|lra)\// ? "attention" : "other" }
    /^[ \t]*Function / {
      report()
      sub(/^[ \t]*Function (: )?/, "")
      name = $0
      if (sub(/:$/, "", name)) next
      kernel = name
      instructions = regions = 0
      registers = usage[name, "REG"]
      memory = usage[name, "STACK"] + usage[name, "LOCAL"]
      shared = usage[name, "SHARED"]
      if (shared) shared -= 1024  # reserved by the system
    }
    /^ *REG:/ { for (i = 1; i <= NF; ++i) { split($i, words, ":"); usage[name, words[1]] = words[2] } }
    /^ *\/\*[0-9a-f]+\*\/ +[@A-Z]/ { ++instructions; if ($0 ~ / BSSY/) ++regions }
    END { report() }' "${sources[@]}" compiled=1 - | sort -u
}

# The table of docs/cuda.md, with the lines around it.
begin='<!-- kernels: cuda/kernel-report.sh --write writes what follows -->' end='<!-- end of kernels -->'
table() {
  printf '%s\nnvcc %s, sm_90; float32 / TF32 where there are two forms:\n\n' "$begin" "$compiler"
  printf '| kernel | instructions | divergent regions | registers |\n| --- | ---: | ---: | ---: |\n'
  awk -F '\t' '
    function cell(column,  text, i, n) {
      for (i = 1; i <= 3; ++i)
        if ((name, forms[i], column) in most) {
          n = most[name, forms[i], column]
          text = text (text == "" ? "" : " / ") (n < 1000 ? n : sprintf("%d,%03d", n / 1000, n % 1000))
        }
      return text
    }
    function row() { if (name != "") printf "| %s | %s | %s | %s |\n", name, cell(4), cell(5), cell(6) }
    BEGIN { split(" Float32 Tf32", forms, " "); forms[3] = "" }
    $9 == "" { next }
    $2 != name { row(); name = $2 }
    { for (i = 4; i <= 6; ++i) if ($i > most[name, $3, i] + 0) most[name, $3, i] = $i + 0 }
    END { row() }' <<<"$kernels"
  echo "$end"
}

kernels=$(measured)
[ -n "$kernels" ] || fail "$1 has no kernels for sm_90"
if [ $mode = print ]; then
  awk -F '\t' '{
    printf "%5d instructions, %3d divergent regions, %3d registers, %d bytes local, %d shared: %s%s\n",
           $4, $5, $6, $7, $8, $2, ($3 == "" ? "" : ", " $3) }' <<<"$kernels"
  exit
fi

compiler=$(cuobjdump -elf -arch sm_90 "${objects[0]}" | sed -n 's/.*Tool Version:.* V//p')
compiler=${compiler:-of unknown version}
cd "$root"
written=$(sed -n "\|^$begin\$|,\|^$end\$|p" $page)
[[ $written == *"$end" ]] || fail "$page has no lines $begin and $end"
if [ $mode = write ]; then
  page_now=$(TABLE=$(table) awk -v begin="$begin" -v end="$end" '
    $0 == begin { print ENVIRON["TABLE"]; inside = 1 }
    !inside
    $0 == end { inside = 0 }' $page)
  printf '%s\n' "$page_now" >$page
  exit
fi

status=0
awk -F '\t' '
  function wrong(what) { printf "%s%s: %s\n", $2, ($3 == "" ? "" : ", " $3), what; failed = 1 }
  $9 == "" && $1 == "attention" { wrong("has no limit in cuda/kernel-report.sh") }
  $9 != "" && $5 > $9 { wrong($5 " divergent regions, at most " $9) }
  $1 == "attention" && $7 > 0 { wrong($7 " bytes of local memory, where registers are spilled") }
  END { exit failed }' <<<"$kernels" || status=1
if [[ $written != *$'\n'"nvcc $compiler, "* ]]; then  # another compiler's numbers are others
  echo "$page is not compared: these objects are by nvcc $compiler"
elif ! diff <(echo "$written") <(table); then
  echo "$page is stale; cuda/kernel-report.sh --write $1 writes its table anew"
  status=1
fi
echo "kernel-report.sh: $(wc -l <<<"$kernels") kernels, $([ $status -eq 0 ] && echo passed || echo failed)"
exit $status
