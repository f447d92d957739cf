# cuobjdump -sass FILE | awk -f bench/cuda/waits.awk: whether a kernel touches the sums of a wgmma before it has waited for them. The
# compiler takes an asm's results for there when the asm stands, so a wait that does not name them (wgmma.cuh) lets it read them early:
# wrong sums now and then, at widths that no other test need meet. Reads the listing in its order, so what branches hide it does not see.
function registers(text, found,    part, first, i) {  # R<n> and what an operand's width adds behind it
  while (match(text, /[^A-Z]R[0-9]+/)) {
    found[substr(text, RSTART + 2, RLENGTH - 2) + 0] = 1
    text = substr(text, RSTART + RLENGTH)
  }
}
/Function :/ {kernel = $3; groups = 0; delete group_of}
/HGMMA/ {
  ++kernels[kernel]
  match($0, /HGMMA\.64x[0-9]+x/); split(substr($0, RSTART + 6, RLENGTH - 6), shape, "x")
  match($0, / R[0-9]+,/); first = substr($0, RSTART + 2, RLENGTH - 3) + 0
  for (i = 0; i < shape[2] / 2; ++i) group_of[first + i] = groups
  if (/gsb0/) ++groups
  next
}
/WARPGROUP.DEPBAR.LE gsb0/ {
  match($0, /0x[0-9a-f]+ ;/); left = substr($0, RSTART + 2, RLENGTH - 4) + 0
  for (r in group_of) if (group_of[r] < groups - left) delete group_of[r]
  next
}
/^[[:space:]]+\/\*[0-9a-f]+\*\// {
  if (length(group_of) == 0) next
  delete named
  registers($0, named)
  for (r in named) if (r in group_of) {
    sub(/^[[:space:]]+/, ""); sub(/;.*/, "")
    if (!(kernel in bad)) print kernel ": " $0
    bad[kernel] = 1
    ++touched
    delete group_of
    break
  }
}
/(EXIT|RET)/ {delete group_of}
END {
  count = 0
  for (k in kernels) ++count
  printf "%d kernels with wgmma, %d read sums before the wait\n", count, length(bad)
  if (count == 0 || length(bad) > 0) exit 1
}
