#!/bin/bash
# Packs what bench/device.sh runs into one compressed folder for a GPU machine that builds nothing:
#   bench/device_kit.sh BUILD KIT.tar.xz     BUILD: build-cuda, after cmake --preset cuda
# Builds the programs that are not up to date, strips them (line tables go, symbols that compute-sanitizer prints stay out too),
# adds the shared libraries that a plain Linux lacks, and the golden fixtures. There:
#   mkdir /tmp/kit && tar -xJf KIT.tar.xz -C /tmp/kit && bench/device.sh /tmp/kit
# One archive with a large window: the programs share most of their code, which is then stored once.
set -eu
build=$(cd "${1:?usage: bench/device_kit.sh BUILD KIT.tar.xz}" && pwd)
kit=${2:?usage: bench/device_kit.sh BUILD KIT.tar.xz}
here=$(cd "$(dirname "$0")/.." && pwd)
shared=${SPLASH_SHARED:-$here/../shared}
jobs=${JOBS:-$(nproc)}
programs=${PROGRAMS-splash cuda_conformance repeat_cuda_test golden_cuda_test step_test builtin_cuda_test device_bench}

# shellcheck disable=SC2086  # a list
ninja -C "$build" -j"$jobs" --quiet $programs
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/lib" "$stage/fixtures"
for program in $programs; do
  found=$(find "$build" -name "$program" -type f -perm -u+x | head -n1)
  strip -o "$stage/$program" "$found"
  ldd "$found"
done | awk '/=> \// {print $3}' | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so' |
  while read -r library; do cp -L "$library" "$stage/lib/"; done
strip "$stage"/lib/* 2> /dev/null || true
for fixture in dense dense-mlx4 dense-draft; do
  [ ! -d "$shared/fixtures/$fixture" ] || cp -r --no-preserve=mode "$shared/fixtures/$fixture" "$stage/fixtures/"
done
mkdir -p "$(dirname "$kit")"
tar -C "$stage" -cf - . | xz -T1 --lzma2=preset=2,dict=128MiB > "$kit"
du -h "$kit"
