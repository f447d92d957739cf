#!/bin/bash
# bench/cuda/waits.sh CUOBJDUMP FILE: fails where a kernel touches the sums of a wgmma before it has waited for them (waits.awk); no GPU
# needed.
set -eu -o pipefail
PATH=$(dirname "$1"):$PATH  # cuobjdump calls nvdisasm
"$1" -sass "$2" | awk -f "$(dirname "$0")/waits.awk"
