#!/bin/sh
# Brings the CUDA compiler into a folder: scripts/fetch_cuda.sh DEST, then DEST/bin/nvcc works.
# An installed toolkit >= 13.0 (CUDA_HOME, /usr/local/cuda or nvcc on the PATH) is linked instead of fetched.
# Fetched are NVIDIA's own wheels, pinned by hash in cuda_wheels.txt; their licence lets us use them at build time, so none
# is committed or shipped. Idempotent: a finished DEST is left alone. Quiet unless something fails.
set -eu
dest=${1:?usage: fetch_cuda.sh DEST}
wanted=13.0
# The compiler, and what `make test` reads its machine code with (cuobjdump calls nvdisasm).
complete() { [ -x "$1/bin/nvcc" ] && [ -x "$1/bin/cuobjdump" ] && [ -x "$1/bin/nvdisasm" ]; }
complete "$dest" && exit 0

recent_enough() {  # nvcc program -> true if its release is >= $wanted
  release=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ -n "$release" ] && [ "$(printf '%s\n%s\n' "$wanted" "$release" | sort -V | head -n1)" = "$wanted" ]
}
for home in "${CUDA_HOME:-}" /usr/local/cuda "$(dirname "$(dirname "$(command -v nvcc || echo /x/x/x)")")"; do
  if [ -n "$home" ] && complete "$home" && recent_enough "$home/bin/nvcc"; then
    mkdir -p "$(dirname "$dest")"
    ln -sfn "$home" "$dest"
    exit 0
  fi
done

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "fetch_cuda: no compiler is pinned for $(uname -sm): install a CUDA toolkit >= $wanted" >&2
  exit 1
fi
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
staging=$dest.staging
rm -rf "$staging"
mkdir -p "$staging"
# Debian's python3 may come without pip, but its venv brings one.
pip="$python -m pip"
$pip --version >/dev/null 2>&1 || { $python -m venv "$staging/venv" && pip="$staging/venv/bin/python -m pip"; }
if ! log=$($pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary=:all: --require-hashes \
           --retries 2 --timeout 20 --target "$staging/kit" --requirement "$here/cuda_wheels.txt" 2>&1); then
  echo "fetch_cuda: the CUDA compiler could not be fetched: $(printf '%s\n' "$log" | tail -n 1)" >&2
  rm -rf "$staging"
  exit 1
fi
kit=$staging/kit/nvidia/cu13
ln -sfn lib "$kit/lib64"
rm -rf "$dest"
mv "$kit" "$dest"
rm -rf "$staging"
