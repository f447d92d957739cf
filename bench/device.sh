#!/bin/bash
# What is run on the GPU machine, in under ten minutes: conformance of every kernel, compute-sanitizer on small shapes, then the
# benchmark table. Builds nothing: bench/device.sh FOLDER, where FOLDER holds cuda_conformance and device_bench (built with
# -DSPLASH_CUDA=ON and stripped) and may hold device_golden with the fixtures dense and dense-mlx4, ops_conformance_test to be tried
# on that machine's processor, and shared libraries these need. Results go to $OUT as they come, so a
# run that is cut off keeps what it had: conformance.txt, golden.txt, sanitizer.txt, kernels.jsonl, bench.txt, machine.txt.
#   SECTIONS  of device_bench (default: roof steps variants kernels prefill rows)
#   SANITIZE  gtest filter for compute-sanitizer; empty leaves it out
#   COMMIT    written into the records
set -u
bin=${1:?usage: bench/device.sh FOLDER}
out=${OUT:-bench/records/last}
mkdir -p "$out"
sections=${SECTIONS-roof steps variants kernels prefill rows}
sanitize=${SANITIZE-EmbedCuda*:DraftCuda.BlockConv:GdnCuda.TwoValueHeadsPerKeyHead:AttentionCuda.GroupOf2:LinearCuda.SharedInput}
chmod +x "$bin"/*
export LD_LIBRARY_PATH=$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}  # libraries carried along (fmt)

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n1; }
{ nvidia-smi; lscpu | grep -E 'Model name|^CPU\(s\)'; } > "$out/machine.txt" 2>&1
export SPLASH_BENCH_MACHINE="\"driver\":\"$(query driver_version)\",\"sm_mhz_max\":\"$(query clocks.max.sm)\",\"memory_mhz\":\"$(query clocks.max.memory)\",\"commit\":\"${COMMIT:-unknown}\""

if [ -x "$bin/ops_conformance_test" ]; then
  (timeout 200 "$bin/ops_conformance_test" > "$out/cpu_conformance.txt" 2>&1; echo "exit $?" >> "$out/cpu_conformance.txt") &
fi

# Every suite is a process of its own: a kernel that hangs or faults spoils no other suite.
failed=""
: > "$out/conformance.txt"
for suite in 'EmbedCuda*' 'Shapes/LinearCuda*:LinearCuda*' 'GdnCuda*' 'AttentionCuda*' 'DraftCuda*'; do
  timeout "${SUITE_SECONDS:-60}" "$bin/cuda_conformance" --gtest_filter="$suite" --gtest_brief=1 > "$out/suite.txt" 2>&1
  code=$?
  { echo "== $suite: exit $code"; cat "$out/suite.txt"; } >> "$out/conformance.txt"
  [ $code -ne 0 ] && failed="$failed $suite"
done
rm -f "$out/suite.txt"
echo "failed suites:${failed:- none}"
grep -E '^== |FAILED|Failure|CUDA failed' "$out/conformance.txt" | head -n 60

if [ -x "$bin/device_golden" ]; then
  timeout "${SUITE_SECONDS:-60}" "$bin/device_golden" "$bin"/dense "$bin"/dense-mlx4 > "$out/golden.txt" 2>&1
  echo "golden: exit $?"
  cat "$out/golden.txt"
fi

if [ -n "$sections" ]; then
  # shellcheck disable=SC2086  # a list
  timeout "${BENCH_SECONDS:-240}" "$bin/device_bench" "$out/kernels.jsonl" $sections > "$out/bench.txt" 2>&1
  echo "bench: exit $?, clocks after it: SM $(query clocks.sm) MHz, memory $(query clocks.mem) MHz, $(query temperature.gpu) C, $(query power.draw) W" | tee -a "$out/bench.txt"
fi

if [ -n "$sanitize" ] && command -v compute-sanitizer > /dev/null; then
  for tool in memcheck racecheck; do
    timeout "${SANITIZE_SECONDS:-60}" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/cuda_conformance" --gtest_filter="$sanitize" --gtest_brief=1 \
      > "$out/sanitizer.part" 2>&1
    echo "compute-sanitizer $tool: exit $?; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/sanitizer.part" | tail -n1)"
    cat "$out/sanitizer.part" >> "$out/sanitizer.txt"
    rm "$out/sanitizer.part"
  done
fi
wait
[ -f "$out/cpu_conformance.txt" ] && { echo "cpu kernels:"; tail -n 4 "$out/cpu_conformance.txt"; }
cat "$out/bench.txt" 2>/dev/null
[ -z "$failed" ]
