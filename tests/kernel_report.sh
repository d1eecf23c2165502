#!/usr/bin/env bash
# cuda/kernel-report.sh with fake objects and a fake cuobjdump: tests/kernel_report.sh SCRIPT
set -euo pipefail
script=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir -p bin bare site/nvidia/cu13/bin cuda/attention docs empty
objects=build/CMakeFiles/runnel_cuda.dir/cuda
mkdir -p $objects/attention
cp "$script" cuda/kernel-report.sh
export PATH=$folder/bin:$PATH CUDA_HOME=$folder/none

fake() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
fake bin/cuobjdump 'for object; do :; done
case "$1" in
  -elf) printf "\tTool Name: ptxas\n\tTool Version: Cuda compilation tools, release 13.0, V%s\n" "$(cat version)" ;;
  *) cat "$object" ;;
esac'
fake bin/nvdisasm 'true'
fake bin/python3 'exit 1'
echo 13.0.1 >version

cat >cuda/attention/linear_attention.cu <<'END'
enum class LinearResult { y, dq };
template <class Tile>
class Other {
};
template <class Tile, LinearResult result, bool narrow>
__global__ void __launch_bounds__(128, 4)
    causal_linear_attention_kernel(Scan scan) {
}
template <int width>
__global__ void linear_attention_step_kernel(float* y) {
}
__global__ void attention_products_kernel(float* y) {
}
END

# kernel SYMBOL REGISTERS STACK SHARED INSTRUCTIONS REGIONS: what cuobjdump prints of it
kernel() {
  printf ' Function %s:\n  REG:%d STACK:%d SHARED:%d LOCAL:0 CONSTANT[0]:552 TEXTURE:0\n' "${@:1:4}"
  printf '\n\t\tFunction : %s\n\t.headerflags\t@"EF_CUDA_SM90"\n' "$1"
  local i
  for ((i = 0; i < $5; ++i)); do
    printf '        /*%04x*/    %s ;    /* 0x000000a00ff017b82 */\n    /* 0x000fe20000000800 */\n' $((16 * i)) \
      "$([ $i -lt "$6" ] && echo 'BSSY B0, 0x1b10' || echo '@!P0 BRA 0x160')"
  done
}
in_namespace=_ZN6runnel4cuda12_GLOBAL__N_1
scan=${in_namespace}30causal_linear_attention_kernelINS0_
of_scan=EEvNS0_4ScanE
step=${in_namespace}28linear_attention_step_kernelILi4EEEvPf
products=_ZN6runnel4cudaL25attention_products_kernelEPf
causal() {
  kernel "${scan}7Float32ELNS0_12LinearResultE1ELb1E$of_scan" 155 0 1024 12 2
  kernel "${scan}4Tf32ELNS0_12LinearResultE1ELb1E$of_scan" 115 0 1024 1010 "$1"
  kernel "${scan}4Tf32ELNS0_12LinearResultE0ELb0E$of_scan" 128 0 1024 9 1
  kernel $products 32 0 0 8 7
}
causal 52 >$objects/attention/causal.cu.o
{ kernel "$step" 60 0 2048 5 1; kernel $products 32 0 1024 8 7; } >$objects/attention/step.cu.o
{ kernel ${in_namespace}25layer_norm_forward_kernelEPfS2_ 62 0 1024 20 4; kernel ${in_namespace}10add_kernelEPf 8 16 0 3 0; } \
  >$objects/layer_norm.cu.o
cat >docs/cuda.md <<'END'
# Before

<!-- kernels: cuda/kernel-report.sh --write writes what follows -->
old
<!-- end of kernels -->

After.
END

fail() { echo "tests/kernel_report.sh: $1"; cat output; exit 1; }
run() {  # run STATUS [ARGUMENT...]: what it prints is then in the file output
  local status=0
  cuda/kernel-report.sh "${@:2}" >output 2>&1 || status=$?
  [ "$status" -eq "$1" ] || fail "kernel-report.sh ${*:2}: exit status $status, not $1"
}
says() { grep -qF -- "$1" output || fail "does not say: $1"; }
is() { diff - "$1" || fail "$1 is not as expected"; }

# Bad cases.
for arguments in "" "--check" "--chekc build" "build build" "none"; do
  run 1 $arguments
  says "kernel-report.sh: give a build folder, after --check, --write or nothing"
done
run 1 empty
says "kernel-report.sh: empty has no CUDA objects"
for tool in env bash sh dirname realpath cat c++filt awk sort rm; do ln -s "$(command -v $tool)" bare; done
PATH=$folder/bare run 2 --check build
says "kernel-report.sh: no cuobjdump and nvdisasm"
mkdir -p empty/CMakeFiles/runnel_cuda.dir/cuda
echo >empty/CMakeFiles/runnel_cuda.dir/cuda/cublas.cu.o
run 1 empty
says "kernel-report.sh: empty has no kernels for sm_90"

# All kernels, with tools that are a Python package's.
mv bin/cuobjdump bin/nvdisasm site/nvidia/cu13/bin
fake bare/python3 "echo $folder/elsewhere $folder/site"
PATH=$folder/bare run 0 build
is output <<'END'
    8 instructions,   7 divergent regions,  32 registers, 0 bytes local, 0 shared: attention_products
   12 instructions,   2 divergent regions, 155 registers, 0 bytes local, 0 shared: causal_linear_attention, dq, narrow, Float32
 1010 instructions,  52 divergent regions, 115 registers, 0 bytes local, 0 shared: causal_linear_attention, dq, narrow, Tf32
    9 instructions,   1 divergent regions, 128 registers, 0 bytes local, 0 shared: causal_linear_attention, y, Tf32
    5 instructions,   1 divergent regions,  60 registers, 0 bytes local, 1024 shared: linear_attention_step, width 4
    3 instructions,   0 divergent regions,   8 registers, 16 bytes local, 0 shared: add
   20 instructions,   4 divergent regions,  62 registers, 0 bytes local, 0 shared: layer_norm_forward
END
mv site/nvidia/cu13/bin/* bin

# The table: another compiler's is not compared, this one's is stale until it is written.
run 0 --check build
says "docs/cuda.md is not compared: these objects are by nvcc 13.0.1"
run 0 --write build
is docs/cuda.md <<'END'
# Before

<!-- kernels: cuda/kernel-report.sh --write writes what follows -->
nvcc 13.0.1, sm_90; float32 / TF32 where there are two forms:

| kernel | instructions | divergent regions | registers |
| --- | ---: | ---: | ---: |
| attention_products | 8 | 7 | 32 |
| causal_linear_attention, dq, narrow | 12 / 1,010 | 2 / 52 | 155 / 115 |
| causal_linear_attention, y | 9 | 1 | 128 |
| linear_attention_step, width 4 | 5 | 1 | 60 |
| layer_norm_forward | 20 | 4 | 62 |
<!-- end of kernels -->

After.
END
run 0 --check build
says "kernel-report.sh: 7 kernels, passed"
sed -i 's/155/156/' docs/cuda.md
run 1 --check build
says "< | causal_linear_attention, dq, narrow | 12 / 1,010 | 2 / 52 | 156 / 115 |"
says "docs/cuda.md is stale; cuda/kernel-report.sh --write build writes its table anew"
echo >version
run 0 --check build
says "these objects are by nvcc of unknown version"
echo 13.1.0 >version
cp docs/cuda.md page
sed -i '/end of kernels/d' docs/cuda.md
for mode in --check --write; do
  run 1 $mode build
  says "docs/cuda.md has no lines <!-- kernels: cuda/kernel-report.sh --write writes what follows --> and <!-- end of kernels -->"
done
mv page docs/cuda.md

# Kernels that exceed limits.
causal 61 >$objects/attention/causal.cu.o
run 1 --check build
says "causal_linear_attention, dq, narrow, Tf32: 61 divergent regions, at most 60"
says "kernel-report.sh: 7 kernels, failed"
causal 60 >$objects/attention/causal.cu.o
run 0 --check build
kernel "$step" 60 8 0 5 1 >$objects/attention/step.cu.o
run 1 --check build
says "linear_attention_step, width 4: 8 bytes of local memory"
kernel ${in_namespace}20new_attention_kernelEPf 60 0 0 5 1 >$objects/attention/step.cu.o
run 1 --check build
says "new_attention: has no limit in cuda/kernel-report.sh"
! grep -q "^add" output || fail "a kernel that is not attention's has no limit"

# What cuobjdump cannot read.
fake bin/cuobjdump 'echo "cuobjdump fatal: bad file" >&2; exit 255'
run 255 --check build
says "cuobjdump fatal: bad file"
echo "kernel-report.sh: passed"
