#!/bin/bash
# bench/cuda/resources.sh CUOBJDUMP FILE...: registers, stack and spill bytes of every kernel in object files or archives; no GPU needed.
# Fails if a hot kernel uses any local memory: those run once or more per layer of a 27B step.
set -eu
cuobjdump=$1
shift
hot='q4_few_kernel|q4_portable_[a-z]*_kernel|q4_wide_kernel<|gdn_[a-z_]*kernel|tiles_kernel|narrow_kernel|chunk_kernel<[123], |merge_kernel|prepare_kernel|norm_kernel|swiglu_kernel|draft_[a-z]+_kernel|top_k_|walk_kernel'
for file in "$@"; do "$cuobjdump" -res-usage "$file"; done 2>/dev/null |
  awk '/^arch = / {arch = $3} /Function/ {name = $2; sub(/:$/, "", name)} /REG:/ {print name, arch, $0}' |
  sed -E 's/^([^ ]+) ([^ ]+) .*REG:([0-9]+) STACK:([0-9]+) .*LOCAL:([0-9]+).*/\3 \4 \5 \2 \1/' | c++filt | sort -u -k4 |
  awk -v hot="$hot" 'BEGIN {printf "%9s %6s %6s %-6s kernel\n", "registers", "stack", "local", "code"}
    {name = $5; for (i = 6; i <= NF; ++i) name = name " " $i; gsub(/splash::ops::|\(anonymous namespace\)::|void /, "", name); sub(/\(.*/, "", name)
     printf "%9d %6d %6d %-6s %s\n", $1, $2, $3, $4, name
     if (name ~ hot && ($2 > 0 || $3 > 0)) bad = bad "\n  " $4 " " name}
    END {if (bad) {print "hot kernels that spill:" bad; exit 1}}'
