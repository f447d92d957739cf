#!/bin/sh
# Brings the CUDA compiler into a folder: scripts/fetch_cuda.sh DEST, then DEST/bin/nvcc works.
# An installed toolkit >= 13.0 (CUDA_HOME, /usr/local/cuda or nvcc on the PATH) is linked instead of fetched.
# Fetched are NVIDIA's own wheels at pinned versions; their licence lets us use them at build time, so none is
# committed or shipped. Idempotent: a finished DEST is left alone. Quiet unless something fails.
set -eu
dest=${1:?usage: fetch_cuda.sh DEST}
wanted=13.0
[ -x "$dest/bin/nvcc" ] && exit 0

recent_enough() {  # nvcc program -> true if its release is >= $wanted
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ -n "$release" ] && [ "$(printf '%s\n%s\n' "$wanted" "$release" | sort -V | head -n1)" = "$wanted" ]
}
for home in "${CUDA_HOME:-}" /usr/local/cuda "$(dirname "$(dirname "$(command -v nvcc || echo /x/x/x)")")"; do
  if [ -n "$home" ] && [ -x "$home/bin/nvcc" ] && recent_enough "$home/bin/nvcc"; then
    mkdir -p "$(dirname "$dest")"
    ln -sfn "$home" "$dest"
    exit 0
  fi
done

parts="nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86"
staging=$dest.staging
rm -rf "$staging"
# shellcheck disable=SC2086  # the list is meant to split
if ! log=$(python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
           --target "$staging" $parts 2>&1); then
  echo "$log" >&2
  echo "fetch_cuda: could not fetch the CUDA compiler; build with SPLASH_CUDA=OFF to leave the backend out" >&2
  exit 1
fi
kit=$staging/nvidia/cu13
ln -sfn lib "$kit/lib64"
rm -rf "$dest"
mv "$kit" "$dest"
rm -rf "$staging"
