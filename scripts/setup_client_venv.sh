#!/usr/bin/env bash
# setup_client_venv.sh DIR: a Python environment with the official client libraries that the end-to-end tests use.
# Immediate when it is there already.
set -euo pipefail
venv=${1:?usage: setup_client_venv.sh DIR}
wanted="$(dirname "$0")/../tests/e2e/requirements.txt"
if cmp -s "$wanted" "$venv/requirements.txt" && [ -x "$venv/bin/python" ]; then exit 0; fi
rm -rf "$venv"
mkdir -p "$(dirname "$venv")"
if ! python3 -m venv "$venv" 2>/dev/null; then
  echo "setup: Python's venv module is missing:  apt-get install -y python3-venv" >&2
  exit 1
fi
if ! "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"; then
  echo "setup: the Python clients could not be fetched from PyPI; they are needed by the end-to-end tests only" >&2
  exit 1
fi
cp "$wanted" "$venv/requirements.txt"
