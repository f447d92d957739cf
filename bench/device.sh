#!/bin/bash
# What is run on the GPU machine, in under ten minutes: conformance of every kernel, the fixtures and the built-in model through the
# backend, compute-sanitizer on small shapes, the server with the draft against without, then the benchmark tables. Builds nothing:
#   bench/device_kit.sh BUILD KIT.tar.xz     where a build with CUDA is: packs programs, libraries and fixtures
#   tar -xJf KIT.tar.xz -C FOLDER            there, beside a checkout of the same commit
#   bench/device.sh FOLDER                   what is missing in FOLDER is left out
# Results go to $OUT as they come, so a run that is cut off keeps what it had.
#   STEPS     what to run, in this order (default: proof sanitize serve draft bench). proof is conformance, golden, steps, builtin and
#             soak side by side, each of them a step of its own too; racecheck: that part of sanitize; turns: the conversation of
#             serve on SYNTH; cpu: the CPU kernels' conformance; second: a server on the second GPU of a machine that has several
#   SOAK      seconds of random requests at eight lanes (default 12). Beside a soak of minutes (SOAK=300) the other proofs get its time
#             as well; STEPS=soak SOAK=300 is the soak alone
#   SECTIONS  of device_bench (default: roof steps long widths kernels prefill rows; parts: what a step is made of)
#   SANITIZE  gtest filter for memcheck (default: all of the conformance, 40 s)
#   RACECHECK cases for racecheck, a hundred times slower, each a process of its own side by side. Unstated not those of gdn,
#             attention and most linears, which hand shared memory on by mbarriers in inline PTX: the tool seems not to follow
#             them (it reports the bulk copies themselves, of linears the input norm's scales), so what it says is to be read:
#             STEPS=racecheck RACECHECK="GdnCuda.TwoValueHeadsPerKeyHead AttentionCuda.GroupOf2" RACECHECK_SECONDS=300
#   TIMED     evaluation prompts of each category in the step draft (default 8)
#   SYNTH     a geometry of splash synth: its steps are measured through the model as well, and the first token of every turn of a
#             conversation that begins with a prompt of 32K tokens through the server, e.g. 27b
#   COMMIT    written into the records
# Each step has a limit of its own, STEPNAME_SECONDS.
# The portable kernels (decision 0015): a kit of a build with -DSPLASH_CUDA_PROVE_PORTABLE=ON and PROGRAMS without splash and
# device_bench, then SPLASH_CUDA_PATH=portable STEPS=proof (under a minute).
set -u
bin=$(cd "${1:?usage: bench/device.sh FOLDER}" && pwd)
out=${OUT:-bench/records/last}
mkdir -p "$out"
steps=${STEPS-proof sanitize serve draft bench}
chmod +x "$bin"/* 2> /dev/null
export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SPLASH_SHARED=$bin SPLASH_SOURCE=$PWD
failed=""
begun=$SECONDS
soak=${SOAK-12}

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n1; }
{ nvidia-smi; lscpu | grep -E 'Model name|^CPU\(s\)'; } > "$out/machine.txt" 2>&1
machine="\"gpu\":\"$(query name)\",\"driver\":\"$(query driver_version)\",\"sm_mhz_max\":\"$(query clocks.max.sm)\",\"memory_mhz\":\"$(query clocks.max.memory)\",\"commit\":\"${COMMIT:-unknown}\""

# try LOG SECONDS NAME PROGRAM ARGUMENTS...: runs a program if it is there; its output goes to LOG, its end to the summary.
try() {
  local log=$1 limit=$2 name=$3 from=$SECONDS
  shift 3
  [ -x "$1" ] || return 0
  timeout "$limit" "$@" > "$out/part" 2>&1
  local code=$?
  { echo "== $name: exit $code, $((SECONDS - from)) s"; cat "$out/part"; } >> "$out/$log"
  rm -f "$out/part"
  echo "$name: exit $code, $((SECONDS - from)) s"
  [ $code -eq 0 ] || failed="$failed $name"
}

ready() { for _ in $(seq 100); do curl -sf "http://127.0.0.1:$1/ready" > /dev/null && break; sleep 0.1; done; }
tiny=$PWD/models/tiny

# Begins the cases of racecheck, side by side; their end.
racing=
begin_racecheck() {
  racing=
  for one in ${RACECHECK-EmbedCuda.SameBits WalkCuda.WalksAsTheHost DraftCuda.BlockConv DraftCuda.AttentionFixtureShape LinearCuda.SharedInput}; do
    timeout "${RACECHECK_SECONDS:-60}" compute-sanitizer --tool racecheck --error-exitcode 9 "$bin/cuda_conformance" \
      --gtest_brief=1 --gtest_filter="$one" > "$out/racecheck-$(echo "$one" | tr -dc 'A-Za-z0-9').part" 2>&1 & racing="$racing $one:$!"
  done
}
end_racecheck() {
  local one code
  for one in $racing; do
    wait "${one##*:}"; code=$?
    echo "racecheck ${one%:*}: exit $code"
    [ $code -eq 0 ] || failed="$failed racecheck-${one%:*}"
  done
  cat "$out"/racecheck-*.part >> "$out/sanitizer.txt"; rm -f "$out"/racecheck-*.part
}

make_synth() {
  [ -e "/tmp/synth-$SYNTH/manifest.json" ] || try bench.txt 150 "synth $SYNTH" "$bin/splash" synth --geometry "$SYNTH" --tokenizer "$tiny/tokenizer" "/tmp/synth-$SYNTH"
}
# With the built-in model's tokenizer, for which a word of the bench is one token. Twelve turns take 32 snapshots.
first_tokens() {
  try bench.txt "${SERVE_SECONDS:-90}" "$SYNTH, first tokens" "$bin/splash" bench serve "/tmp/synth-$SYNTH" --backend cuda --lanes 1 --context 40K --clients 1 --turns "${TURNS:-12}" --prompt-words "${WORDS-32000}" --tokens "${TOKENS:-4}" --json
}

for step in $steps; do
  case $step in
    proof)
      pids=
      for part in conformance golden steps builtin soak; do
        mkdir -p "$out/$part"
        OUT=$out/$part STEPS=$part "$0" "$bin" > "$out/$part/said.txt" 2>&1 & pids="$pids $part:$!"
      done
      for one in $pids; do
        wait "${one#*:}" || failed="$failed ${one%:*}"
        part=${one%:*}
        echo "== $part"; cat "$out/$part/said.txt"
        mv "$out/$part"/*.txt "$out/" 2> /dev/null; rm -rf "${out:?}/$part"
      done
      ;;
    conformance)  # a process per suite: a kernel that hangs or faults spoils no other suite
      for suite in 'EmbedCuda*' '*LawCuda*:WalkCuda*' 'Shapes/LinearCuda*:LinearCuda*' 'GdnCuda*' 'AttentionCuda*' 'DraftCuda*'; do
        try conformance.txt "${CONFORMANCE_SECONDS:-60}" "$suite" "$bin/cuda_conformance" --gtest_filter="$suite" --gtest_brief=1
      done
      try conformance.txt "${CONFORMANCE_SECONDS:-60}" repeat "$bin/repeat_cuda_test" --gtest_brief=1
      grep -hE 'FAILED|Failure|CUDA failed|lanes as the host' "$out/conformance.txt" | head -n 40
      ;;
    golden)
      try model.txt "${GOLDEN_SECONDS:-$((60 + soak))}" golden "$bin/golden_cuda_test" --gtest_brief=1 --gtest_filter="GoldenCuda*"
      grep -hE '^cuda |^device|FAILED|Failure|CHECK|CUDA failed|could not' "$out/model.txt" | head -n 40
      ;;
    steps)
      SPLASH_TEST_BACKEND=cuda try model.txt "${STEPS_SECONDS:-$((90 + soak))}" steps "$bin/step_test" --gtest_brief=1 --gtest_filter="Step*"
      grep -hE '^greedy|^chi|^tokens per|FAILED|Failure|CHECK|CUDA failed' "$out/model.txt" | head -n 60
      ;;
    builtin)
      try builtin.txt "${BUILTIN_SECONDS:-$((90 + soak))}" builtin "$bin/builtin_cuda_test" --gtest_brief=1 --gtest_filter="BuiltinCuda*:-*Soak"
      grep -v '^== ' "$out/builtin.txt" | tail -n 40
      ;;
    soak)  # what the process holds of both memories, twice a second second: it may not grow once every shape has been met
      SPLASH_SOAK_SECONDS=$soak timeout $((soak + 60)) "$bin/builtin_cuda_test" --gtest_brief=1 --gtest_filter="*Soak" >> "$out/soak.txt" 2>&1 &
      soaking=$!
      while sleep 2; kill -0 $soaking 2> /dev/null; do
        program=$(pgrep -P $soaking | head -n1)
        echo "memory at $((SECONDS - begun)) s: host $(awk '/VmRSS/ {print $2, $3}' "/proc/${program:-$soaking}/status" 2> /dev/null), device $(nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv,noheader 2> /dev/null | grep "^${program:-$soaking}," | cut -d, -f2)" >> "$out/soak.txt"
      done
      wait $soaking || failed="$failed soak"
      grep -E '^soak|FAILED|Failure' "$out/soak.txt"
      grep '^memory' "$out/soak.txt" | awk '{line[NR] = $0} END {print line[1]; print line[int((NR + 1) / 2)]; print line[NR]}'
      ;;
    sanitize)
      command -v compute-sanitizer > /dev/null || continue
      begin_racecheck
      try sanitizer.txt "${SANITIZE_SECONDS:-90}" memcheck "$(command -v compute-sanitizer)" --tool memcheck --error-exitcode 9 \
        "$bin/cuda_conformance" --gtest_brief=1 \
        --gtest_filter="${SANITIZE-*}"
      end_racecheck
      try sanitizer.txt "${SANITIZE_SECONDS:-60}" 'memcheck of a model' "$(command -v compute-sanitizer)" --tool memcheck --error-exitcode 9 \
        "$bin/golden_cuda_test" --gtest_brief=1 --gtest_filter='*DraftBlock:*GreedyContinuation'
      grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/sanitizer.txt"
      ;;
    racecheck)
      command -v compute-sanitizer > /dev/null || continue
      begin_racecheck
      end_racecheck
      grep -hE 'ERROR SUMMARY|RACECHECK SUMMARY|Error: |hazard' "$out/sanitizer.txt" | sort | uniq -c | sort -rn | head -n 40
      ;;
    second)
      [ "$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null | wc -l)" -gt 1 ] || { echo "second: one GPU here"; continue; }
      timeout 60 "$bin/splash" serve "$tiny" --backend cuda --device 1 --port 18998 > "$out/part" 2>&1 & serving=$!
      ready 18998
      reply=$(curl -s --max-time 10 http://127.0.0.1:18998/v1/chat/completions -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "What is 2 plus 2?"}], "temperature": 0, "max_tokens": 40}')
      nvidia-smi --query-gpu=index,memory.used --format=csv,noheader > "$out/second.txt"
      kill $serving 2> /dev/null; wait $serving 2> /dev/null
      { cat "$out/part"; echo "$reply"; "$bin/splash" devices; "$bin/splash" bench step "$tiny" --backend cuda --device 1 --steps 20
        "$bin/splash" bench step "$tiny" --backend cuda --device 9 --steps 20; } >> "$out/second.txt" 2>&1
      case $reply in *'"content"'*) echo "second: answered";; *) echo "second: no answer"; failed="$failed second";; esac
      rm -f "$out/part"; cat "$out/second.txt"
      ;;
    serve)
      try bench.txt 20 devices "$bin/splash" devices
      for lanes in 1 4 8; do
        try bench.txt "${SERVE_SECONDS:-30}" "built-in, $lanes lanes" "$bin/splash" bench step "$tiny" --backend cuda --lanes $lanes --context 256 --steps 100 --json
      done
      if [ -x "$bin/splash" ]; then  # the server itself, from start to a reply
        timeout 30 "$bin/splash" serve "$tiny" --backend cuda --port 18999 > "$out/part" 2>&1 &
        ready 18999
        reply=$(curl -s --max-time 10 http://127.0.0.1:18999/v1/chat/completions -H 'Content-Type: application/json' \
          -d '{"messages": [{"role": "user", "content": "What is 2 plus 2?"}], "temperature": 0, "max_tokens": 40}')
        kill $! 2> /dev/null; wait $! 2> /dev/null
        { echo "== serve"; cat "$out/part"; echo "$reply"; } >> "$out/bench.txt"
        case $reply in *'"content"'*) echo "serve: answered";; *) echo "serve: no answer"; failed="$failed serve";; esac
        rm -f "$out/part"
      fi
      if [ -n "${SYNTH-}" ]; then
        make_synth
        for lanes in 1 4 8; do
          try bench.txt "${SERVE_SECONDS:-60}" "$SYNTH, $lanes lanes x 8" "$bin/splash" bench step "/tmp/synth-$SYNTH" --backend cuda --lanes $lanes --rows 8 --context 1024 --steps 40 --json
        done
        try bench.txt "${SERVE_SECONDS:-60}" "$SYNTH, 1 row" "$bin/splash" bench step "/tmp/synth-$SYNTH" --backend cuda --plain --context 1024 --steps 40 --json
        try bench.txt "${SERVE_SECONDS:-60}" "$SYNTH, 1 lane x 8 at 32K" "$bin/splash" bench step "/tmp/synth-$SYNTH" --backend cuda --rows 8 --context 32700 --steps 40 --json
        try bench.txt "${SERVE_SECONDS:-60}" "$SYNTH, prefill" "$bin/splash" bench prefill "/tmp/synth-$SYNTH" --backend cuda --lengths 512,4096,32768 --json
        first_tokens
      fi
      grep -h '^{' "$out/bench.txt" | sed "s/^{/{$machine,/" > "$out/model.jsonl"
      cat "$out/bench.txt"
      ;;
    turns)
      [ -n "${SYNTH-}" ] || continue
      make_synth
      first_tokens
      cat "$out/bench.txt"
      ;;
    draft)  # tokens per second with the draft against without, one lane each, every evaluation prompt A B B A
      [ -x "$bin/splash" ] || continue
      timeout 120 "$bin/splash" serve "$tiny" --served-model-name splash-tiny --backend cuda --lanes 1 --port 18080 > "$out/said" 2>&1 & drafting=$!
      timeout 120 "$bin/splash" serve "$tiny" --served-model-name splash-tiny --backend cuda --lanes 1 --plain --port 18081 > "$out/said2" 2>&1 & plain=$!
      ready 18080; ready 18081
      try draft.txt "${DRAFT_SECONDS:-100}" 'draft against none' "$(command -v python3)" train/eval/evaluate.py --url http://127.0.0.1:18080/v1 --plain-url http://127.0.0.1:18081/v1 \
        --times-only --timed "${TIMED-8}" --device 'one H200' --json "$out/times.json"
      kill $drafting $plain; wait $drafting $plain 2> /dev/null
      cat "$out/said" "$out/said2" >> "$out/draft.txt"; rm -f "$out/said" "$out/said2"
      grep -E '^\{|Error' "$out/draft.txt"
      ;;
    bench)
      export SPLASH_BENCH_MACHINE=${machine#*,}  # device_bench names the GPU itself
      # shellcheck disable=SC2086  # a list
      try bench.txt "${BENCH_SECONDS:-240}" bench "$bin/device_bench" "$out/kernels.jsonl" ${SECTIONS-roof steps long widths kernels prefill rows}
      echo "clocks now: SM $(query clocks.sm) MHz, memory $(query clocks.mem) MHz, $(query temperature.gpu) C, $(query power.draw) W" | tee -a "$out/bench.txt"
      tail -n 80 "$out/bench.txt"
      ;;
    cpu)
      try conformance.txt 200 'cpu kernels' "$bin/ops_conformance_test" --gtest_brief=1
      ;;
  esac
done
echo "all of it: $((SECONDS - begun)) s; failed:${failed:- nothing}"
[ -z "$failed" ]
