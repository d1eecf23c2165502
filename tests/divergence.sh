#!/usr/bin/env bash
# For each CUDA kernel of these object files, as compiled for sm_90: its instructions and its divergent regions, which
# are those where some threads of a warp may wait for others (BSSY). Kernels that compute linear attention are bound by
# the number of their instructions, so more than 60 regions in one of them is a failure: the feature map must not branch
# on the sign of a number.
#   tests/divergence.sh OBJECT...
# Needs cuobjdump and nvdisasm: from the CUDA toolkit, or from the Python packages nvidia-cuda-cuobjdump and
# nvidia-cuda-nvdisasm. Exit status 2: they are not there.
set -euo pipefail
export PATH=$PATH:/usr/local/cuda/bin
for folder in $(python3 -c 'import site; print(*site.getsitepackages())' 2>/dev/null); do PATH+=:$folder/nvidia/cu13/bin; done
command -v cuobjdump >/dev/null && command -v nvdisasm >/dev/null || { echo "divergence.sh: no cuobjdump and nvdisasm"; exit 2; }

for object in "$@"; do cuobjdump -sass -arch sm_90 "$object"; done | c++filt | awk '
  function report() {
    if (name == "") return
    gsub(/\(anonymous namespace\)::|runnel::cuda::|void /, "", name)
    gsub(/\(LinearResult\)/, "result ", name)
    sub(/\([^()]*\)$/, "", name)
    printf "%5d instructions, %3d divergent regions: %s\n", instructions, regions, name
    if (name ~ /linear_attention/ && regions > 60) failed = 1
  }
  /Function :/ { report(); name = $0; sub(/.*Function : /, "", name); instructions = regions = 0 }
  /^ *\/\*[0-9a-f]+\*\/ +[@A-Z]/ { ++instructions; if ($0 ~ / BSSY/) ++regions }
  END { report(); if (failed) print "divergence.sh: more than 60 divergent regions"; exit failed }'
