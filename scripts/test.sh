#!/usr/bin/env bash
# All tests: release build with unit, golden, simulator and end-to-end tests, then the unit tests again under
# AddressSanitizer and UndefinedBehaviorSanitizer. Ends with one line that counts them.
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
export SPLASH_TEST_ASSETS="$PWD/build/test-assets"
started=$SECONDS
say() { echo "== $* ($((SECONDS - started)) s)"; }

say "test assets"
scripts/fetch_test_assets.sh "$SPLASH_TEST_ASSETS" || exit 1
scripts/setup_client_venv.sh build/client-venv || exit 1

say "build"
ninja -C build -j"$jobs" --quiet || exit 1
# Not grep -q: it would leave at the first match, and with pipefail a ninja that still writes counts as a failure.
if [ -x build/kit/bin/cuobjdump ] && ninja -C build -t targets all | grep '^src/ops/libsplash_ops_cuda.a:' > /dev/null; then
  say "registers of the CUDA kernels (a test fails where a hot one spills)"
  bench/cuda/resources.sh build/kit/bin/cuobjdump build/src/ops/libsplash_ops_cuda.a | tee build/cuda-registers.txt
else
  say "no CUDA compiler, so the CUDA backend is not in this build"
fi
[ -d ../shared/fixtures ] || say "no golden fixtures in ../shared/fixtures: the tests that read them skip themselves and are counted so"
say "release tests"
ctest --test-dir build -j"$jobs" --output-on-failure --no-tests=error 2>&1 | tee build/ctest.log | grep -v '^ *Start '
release=${PIPESTATUS[0]}

say "sanitizer build"
cmake --preset asan >/dev/null || exit 1
ninja -C build-asan -j"$jobs" --quiet sanitized_tests || exit 1
say "sanitizer tests"
ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
  ctest --test-dir build-asan -j"$jobs" -L sanitized --output-on-failure --no-tests=error 2>&1 | tee build/ctest-asan.log | grep -v '^ *Start '
sanitized=${PIPESTATUS[0]}

say "done"
python3 scripts/count_tests.py build build-asan
[ "$release" = 0 ] && [ "$sanitized" = 0 ]
