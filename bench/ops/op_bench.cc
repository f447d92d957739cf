// Times the cpu kernels against the roof of this machine, measured in the same process: bytes that must move at the
// streaming-read rate, 8-bit products at the register rate.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/roof.h"
#include "base/rng.h"
#include "ops/attention/attention.h"
#include "ops/gdn/gdn.h"
#include "ops/linear/linear.h"

namespace splash {
namespace {

struct Options {
  int threads = 2;
  std::string isa;
  double seconds = 1.0;  // per line
  bool smoke = false;
  std::vector<std::string> only;

  bool wants(const std::string& name) const {
    return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
  }
};

// The best call counts, as for the roof: neighbours on a shared host only ever slow it down.
double best_ms(double seconds, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  body();
  double best = 1e300;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto begin = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  } while (Clock::now() < end);
  return best;
}

std::vector<float> noise(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, {static_cast<std::uint32_t>(seed), 0});
    values[i] = static_cast<float>(static_cast<std::int32_t>(words[0])) * 0x1p-31f;
  }
  return values;
}

// Random codes with sane scales; filled by copying one tile, which is all that speed depends on.
struct Weights {
  std::vector<std::byte> memory;
  std::vector<pack::Weight> matrices;
  Weights(pack::Format format, int count, int rows, int cols) {
    const pack::Weight shape{format, rows, cols, nullptr};
    const auto bytes = static_cast<std::size_t>(shape.bytes());
    memory.resize(bytes * count + 64);
    auto* data = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63});
    for (std::size_t at = 0; at < bytes * count; at += 4) {
      const std::uint32_t word = format == pack::Format::q4 && at % 576 >= 512
                                     ? 0x3c233ca3u
                                     : static_cast<std::uint32_t>(at * 2654435761u) & 0x3fff3fffu;
      std::memcpy(data + at, &word, 4);
    }
    for (int i = 0; i < count; ++i) matrices.push_back({format, rows, cols, data + bytes * i});
  }
};

void bench_linear(const Options& options, cpu::Stream& stream, const cpu::Roof& roof, pack::Format format) {
  const int rows = options.smoke ? 64 : 17'408, cols = options.smoke ? 128 : 5'120, count = options.smoke ? 1 : 4;
  const Weights weights(format, count, rows, cols);
  const double bytes = static_cast<double>(weights.matrices[0].bytes());
  fmt::print("\nlinear {} [{}, {}], {} matrices of {:.0f} MB in turn\n", format == pack::Format::q4 ? "q4" : "bf16", rows, cols,
             count, bytes * 1e-6);
  fmt::print("{:>6} {:>9} {:>8} {:>9} {:>10} {:>10} {:>10}\n", "rows", "ms", "GB/s", "GMAC/s", "of read", "of int8", "of roof");
  for (const int m : options.smoke ? std::vector{1, 5, 70} : std::vector{1, 2, 4, 6, 8, 12, 16, 32, 64, 256}) {
    const std::vector<float> x = noise(static_cast<std::size_t>(m) * cols, 1);
    std::vector<float> out(static_cast<std::size_t>(m) * rows);
    std::size_t turn = 0;
    const double ms = best_ms(options.smoke ? 0 : options.seconds, [&] {
      const pack::Weight& weight = weights.matrices[turn++ % weights.matrices.size()];
      ops::linear(stream, MatrixView<const float>(x.data(), m, cols), weight, MatrixView<float>(out.data(), m, rows));
    });
    const double gb_s = bytes * 1e-6 / ms, gmac_s = static_cast<double>(m) * rows * cols * 1e-6 / ms;
    const double of_read = gb_s / roof.read_gb_s, of_int8 = gmac_s / roof.int8_gmac_s;
    fmt::print("{:>6} {:>9.2f} {:>8.2f} {:>9.1f} {:>9.0f}% {:>9.0f}% {:>9.0f}%\n", m, ms, gb_s, gmac_s, 100 * of_read,
               100 * of_int8, 100 * std::max(of_read, of_int8));
  }
}

void bench_attention(const Options& options, cpu::Stream& stream) {
  ops::AttentionGeometry geometry;  // one layer of the 27B
  geometry.query_heads = 24;
  geometry.kv_heads = 4;
  const ops::KvGeometry kv{ops::KvFormat::int8, 1, geometry.kv_heads, geometry.head_dim};
  fmt::print("\nattention, one 27B layer (24 query heads, 4 kv heads, 256)\n{:>8} {:>6} {:>9} {:>9} {:>8}\n", "context", "rows",
             "ms", "GMAC/s", "GB/s");
  for (const int context : options.smoke ? std::vector{64} : std::vector{1'024, 32'768}) {
    for (const int m : {1, 8, 128}) {
      std::vector<ops::PageId> pages(static_cast<std::size_t>((context + m + 31) / 32));
      for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<ops::PageId>(i);
      std::vector<std::byte> memory(pages.size() * static_cast<std::size_t>(kv.page_bytes()) + 64);
      const ops::KvPool pool{kv, reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) & ~std::uintptr_t{63})};
      const int d = geometry.head_dim;
      const auto q = noise(static_cast<std::size_t>(m) * geometry.query_heads * 2 * d, 1),
                 k = noise(static_cast<std::size_t>(m) * geometry.kv_heads * d, 2), norm = noise(static_cast<std::size_t>(d), 3);
      std::vector<float> out(static_cast<std::size_t>(m) * geometry.query_heads * d);
      const ops::Segment segment{0, 0, m, context, pages};
      const double ms = best_ms(options.smoke ? 0 : options.seconds, [&] {
        ops::attention(stream, geometry, {norm, norm},
                       {MatrixView<const float>(q.data(), m, geometry.query_heads * 2 * d),
                        MatrixView<const float>(k.data(), m, geometry.kv_heads * d),
                        MatrixView<const float>(k.data(), m, geometry.kv_heads * d)},
                       std::span(&segment, 1), pool, 0, MatrixView<float>(out.data(), m, geometry.query_heads * d));
      });
      const double macs = 2.0 * m * geometry.query_heads * d * (context + 0.5 * m);
      fmt::print("{:>8} {:>6} {:>9.3f} {:>9.1f} {:>8.2f}\n", context, m, ms, macs * 1e-6 / ms,
                 static_cast<double>(kv.layer_bytes()) * static_cast<double>(pages.size()) * 1e-6 / ms);
    }
  }
}

void bench_gdn(const Options& options, cpu::Stream& stream) {
  const ops::GdnGeometry geometry{16, 48};  // one layer of the 27B
  const auto conv = noise(static_cast<std::size_t>(geometry.channels()) * 4, 1), heads = noise(48, 2), norm = noise(128, 3);
  std::vector<float> state(static_cast<std::size_t>(geometry.state_floats())), history(static_cast<std::size_t>(geometry.conv_floats())),
      tape(static_cast<std::size_t>(geometry.tape_row_floats()) * link::max_block);
  fmt::print("\ngdn, one 27B layer (16 key heads, 48 value heads)\n{:>8} {:>6} {:>9} {:>9}\n", "mode", "rows", "ms", "GMAC/s");
  for (const auto& [mode, m] : {std::pair{ops::GdnMode::verify, 1}, {ops::GdnMode::verify, 8}, {ops::GdnMode::commit, 8},
                                {ops::GdnMode::commit, 128}}) {
    const auto qkv = noise(static_cast<std::size_t>(m) * geometry.channels(), 4), z = noise(static_cast<std::size_t>(m) * 48 * 128, 5),
               gates = noise(static_cast<std::size_t>(m) * 48, 6);
    std::vector<float> out(static_cast<std::size_t>(m) * 48 * 128);
    int kept = 0;
    ops::GdnSegment segment;
    segment.segment.rows = m;
    segment.mode = mode;
    segment.lane = {state.data(), history.data(), tape.data(), &kept};
    const MatrixView<const float> gate_rows(gates.data(), m, 48);
    const double ms = best_ms(options.smoke ? 0 : options.seconds, [&] {
      ops::gdn(stream, geometry, {conv, heads, heads, norm},
               {MatrixView<const float>(qkv.data(), m, geometry.channels()), MatrixView<const float>(z.data(), m, 48 * 128), gate_rows,
                gate_rows},
               std::span(&segment, 1), MatrixView<float>(out.data(), m, 48 * 128));
      kept = mode == ops::GdnMode::verify ? (m + 1) / 2 : 0;
    });
    // S^T k, the update and S^T q: three multiply-adds per state element and row.
    fmt::print("{:>8} {:>6} {:>9.3f} {:>9.1f}\n", mode == ops::GdnMode::verify ? "verify" : "commit", m, ms,
               3.0 * m * static_cast<double>(geometry.state_floats()) * 1e-6 / ms);
  }
}

int run(const Options& options) {
  const auto isa = cpu::choose_isa(options.isa);
  if (!isa) {
    fmt::print(stderr, "{}\n", isa.error().message);
    return 1;
  }
  cpu::Stream stream(options.threads, *isa);
  const cpu::Roof roof = options.smoke ? cpu::Roof{1, 1} : cpu::measure_roof(stream.pool(), *isa);
  fmt::print("{} threads, {}: read {:.1f} GB/s, int8 {:.0f} GMAC/s\n", options.threads, cpu::name_of(*isa), roof.read_gb_s,
             roof.int8_gmac_s);
  if (options.wants("linear")) bench_linear(options, stream, roof, pack::Format::q4);
  if (options.wants("bf16")) bench_linear(options, stream, roof, pack::Format::bf16);
  if (options.wants("attention")) bench_attention(options, stream);
  if (options.wants("gdn")) bench_gdn(options, stream);
  if (options.smoke) return 0;
  const cpu::Roof after = cpu::measure_roof(stream.pool(), *isa);
  fmt::print("\nroof afterwards: read {:.1f} GB/s, int8 {:.0f} GMAC/s\n", after.read_gb_s, after.int8_gmac_s);
  return 0;
}

}  // namespace
}  // namespace splash

// By hand: the library that parses the server's options takes longer to compile than all of this file.
int main(int argc, char** argv) {
  constexpr const char* usage =
      "op_bench [--threads N] [--isa NAME] [--seconds S] [--smoke] [linear|bf16|attention|gdn ...]\n"
      "Times the cpu kernels against the measured roof. --isa: scalar, avx2 or avx512vnni, else the best of this machine;\n"
      "--seconds: time per line; --smoke: tiny sizes, only shows that everything runs.\n";
  splash::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--smoke") {
      options.smoke = true;
    } else if (!word.starts_with("-")) {
      options.only.emplace_back(word);
    } else if (value != nullptr && word == "--threads") {
      options.threads = std::atoi(argv[++i]);
    } else if (value != nullptr && word == "--isa") {
      options.isa = argv[++i];
    } else if (value != nullptr && word == "--seconds") {
      options.seconds = std::atof(argv[++i]);
    } else {
      std::fputs(usage, word == "--help" ? stdout : stderr);
      return word == "--help" ? 0 : 2;
    }
  }
  if (options.threads < 1) {
    std::fputs(usage, stderr);
    return 2;
  }
  return splash::run(options);
}
