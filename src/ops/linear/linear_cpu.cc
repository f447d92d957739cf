#include <algorithm>
#include <vector>

#include "backend/cpu/dispatch.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_kernels.h"

namespace splash::ops {

namespace {

constexpr int block_rows = 64;  // rows that share one read of the weights

// Below this many values one thread quantises faster than two can be told to.
constexpr std::int64_t parallel_values = 16'384;

QuantisedBlock quantise_block(cpu::Stream& stream, const LinearKernels& kernels, Arena& scratch,
                              MatrixView<const float> x, int planes) {
  SPLASH_CHECK(x.cols % pack::tile_cols == 0, "q4 needs whole groups, not {} inputs", x.cols);
  QuantisedBlock block;
  block.rows = x.rows;
  block.groups = x.cols / pack::tile_cols;
  block.planes = planes;
  const std::size_t cells = static_cast<std::size_t>(block.rows) * block.groups;
  block.codes = scratch.allocate<std::int8_t>(cells * planes * pack::tile_cols);
  block.steps = scratch.allocate<float>(cells);
  block.sums = scratch.allocate<float>(cells);
  const auto part = [&](int first, int last) { kernels.quantise(x.data, x.stride, first, last, block); };
  if (static_cast<std::int64_t>(cells) * pack::tile_cols < parallel_values) {
    part(0, block.groups);
  } else {
    stream.pool().split(block.groups, 1, part);
  }
  return block;
}

// One region of work: some rows of x times all targets.
struct Block {
  MatrixView<const float> x;
  int first_row = 0;
  QuantisedBlock quantised;
};

void run_strip(const LinearKernels& kernels, const Block& block, const LinearTarget& target, int strip) {
  const pack::Weight& weight = target.weight;
  const int column = strip * pack::strip_rows;
  const StripOutput out{target.out.row(block.first_row) + column, target.out.stride,
                        std::min(pack::strip_rows, weight.rows - column), target.accumulate};
  const auto* data = reinterpret_cast<const unsigned char*>(weight.data + strip * weight.strip_bytes());
  switch (weight.format) {
    case pack::Format::q4: return kernels.q4_strip(data, block.quantised, out);
    case pack::Format::bf16:
      return kernels.bf16_strip(data, block.x.data, block.x.stride, block.x.rows, block.x.cols, out);
    case pack::Format::f32:
      return kernels.f32_strip(data, block.x.data, block.x.stride, block.x.rows, block.x.cols, out);
  }
}

// Thread `thread` takes the strips that begin inside its share of the call's bytes: whole strips, the same ones at every
// call with the same matrices, and no thread waits for another between two matrices.
void run_share(const LinearKernels& kernels, const Block& block, std::span<const LinearTarget> targets, int thread,
               int threads) {
  std::int64_t total = 0;
  for (const LinearTarget& target : targets) total += target.weight.bytes();
  const std::int64_t begin = total * thread / threads, end = total * (thread + 1) / threads;
  std::int64_t base = 0;
  for (const LinearTarget& target : targets) {
    const std::int64_t strip_bytes = target.weight.strip_bytes(), strips = target.weight.strips();
    const auto first_at_or_after = [&](std::int64_t offset) {
      return std::clamp((offset - base + strip_bytes - 1) / strip_bytes, std::int64_t{0}, strips);
    };
    const auto last = static_cast<int>(first_at_or_after(end));
    for (int strip = static_cast<int>(first_at_or_after(begin)); strip < last; ++strip) {
      run_strip(kernels, block, target, strip);
    }
    base += strip_bytes * strips;
  }
}

void run_linear(cpu::Stream& stream, MatrixView<const float> x, int planes, std::span<const LinearTarget> targets) {
  const LinearKernels& kernels = cpu::kernels_for(stream.isa(), linear_scalar, linear_avx2, linear_avx512vnni);
  bool any_q4 = false;
  for (const LinearTarget& target : targets) {
    SPLASH_CHECK(target.weight.cols == x.cols && target.out.rows == x.rows && target.out.cols == target.weight.rows,
                 "linear [{}, {}] x [{}, {}] into [{}, {}]", target.weight.rows, target.weight.cols, x.rows, x.cols,
                 target.out.rows, target.out.cols);
    any_q4 |= target.weight.format == pack::Format::q4;
  }
  Arena& scratch = stream.op_scratch();
  for (int first = 0; first < x.rows; first += block_rows) {
    Block block;
    block.first_row = first;
    block.x = x.slice_rows(first, std::min(block_rows, x.rows - first));
    if (any_q4) block.quantised = quantise_block(stream, kernels, scratch, block.x, planes);
    ThreadPool& pool = stream.pool();
    pool.run([&](int thread) { run_share(kernels, block, targets, thread, pool.threads()); });
  }
}

}  // namespace

void linear(cpu::Stream& stream, MatrixView<const float> x, std::span<const LinearTarget> targets) {
  run_linear(stream, x, 1, targets);
}
void linear(cpu::Stream& stream, Fine input, std::span<const LinearTarget> targets) {
  run_linear(stream, input.x, 2, targets);
}

}  // namespace splash::ops
