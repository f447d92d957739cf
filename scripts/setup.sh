#!/usr/bin/env bash
# Brings what the build needs: Debian packages and a Rust tool chain. Quiet and immediate when all is there.
set -euo pipefail

packages=(g++ cmake ninja-build make mold ccache pkg-config python3 python3-venv curl ca-certificates
  libboost1.81-dev libboost-json1.81-dev libboost-url1.81-dev libboost-system1.81-dev libboost-context1.81-dev
  libfmt-dev libspdlog-dev libcli11-dev libssl-dev libexpected-dev prometheus-cpp-dev zlib1g-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev)

# cargo >= 1.87 is needed by the crate llguidance; Debian's plain cargo is older, cargo-web is new enough.
cargo_ok() {
  command -v cargo >/dev/null || return 1
  local minor
  minor=$(cargo --version | sed -E 's/cargo 1\.([0-9]+).*/\1/')
  [ "${minor:-0}" -ge 87 ]
}

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | awk '$2 == "installed" {print $1}' || true)

# A tool that came another way than apt is as good.
have() {
  case $1 in
    g++ | cmake | make | python3 | curl | mold | ccache) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *) return 1 ;;
  esac
}
wanted=()
for package in "${packages[@]}"; do
  grep -qx "$package" <<<"$installed" || have "$package" || wanted+=("$package")
done
cargo_ok || wanted+=(cargo-web rustc-web)

if [ ${#wanted[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: missing ${wanted[*]}; run as root:  apt-get install -y ${wanted[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  if ! command -v apt-get >/dev/null; then
    echo "setup: this script knows Debian 12 (apt); install the equivalents of: ${wanted[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${wanted[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${wanted[@]}" >/dev/null
fi
cargo_ok || { echo "setup: cargo 1.87 or newer is needed:  apt-get install -y cargo-web rustc-web" >&2; exit 1; }
