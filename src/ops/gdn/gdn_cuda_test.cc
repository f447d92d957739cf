#include "ops/gdn/gdn_cuda.h"

#include "ops/testing_cuda.h"

namespace splash::ops {
namespace {

using namespace cuda::testing;

// One model of two lanes on both streams, fed the same rows.
struct Pair {
  GdnGeometry g;
  Numbers numbers{29};
  Memory memory;
  std::vector<float> conv, a_log, dt_bias, norm;
  GdnWeights host, device;
  ref::Stream ref;
  struct Lane {
    std::vector<float> state, conv, tape;
    int kept = 0;
    GdnLane host, device;
  };
  std::vector<Lane> lanes;

  explicit Pair(int key_heads, int value_heads, int lane_count = 2) : lanes(lane_count) {
    g.key_heads = key_heads, g.value_heads = value_heads;
    conv = numbers.normals(std::size_t(g.channels()) * 4, 0.5f);
    a_log = numbers.normals(value_heads), dt_bias = numbers.normals(value_heads), norm = numbers.normals(128);
    host = {conv, a_log, dt_bias, norm};
    device = {memory.vector(conv), memory.vector(a_log), memory.vector(dt_bias), memory.vector(norm)};
    for (Lane& lane : lanes) {
      lane.state.assign(g.state_floats(), 0), lane.conv.assign(g.conv_floats(), 0),
          lane.tape.assign(link::max_block * g.tape_row_floats(), 0);
      lane.host = {lane.state.data(), lane.conv.data(), lane.tape.data(), &lane.kept};
      lane.device = {memory.copy(lane.state), memory.copy(lane.conv), memory.copy(lane.tape),
                     memory.copy(&lane.kept, 1)};
    }
  }
  void keep(int lane, int kept) {
    lanes[lane].kept = kept;
    ASSERT_TRUE(cuda::testing::stream().synchronise());
    Memory::check(cudaMemcpy(lanes[lane].device.kept, &kept, sizeof(int), cudaMemcpyHostToDevice));
  }
  struct Part {
    int lane, rows;
    GdnMode mode;
  };
  // Runs the parts as one pass on both and compares; returns the device's rows.
  std::vector<float> pass(const char* what, const std::vector<Part>& parts) {
    int rows = 0;
    for (const Part& part : parts) rows += part.rows;
    const int values = g.value_heads * 128;
    const std::vector<float> qkv = numbers.normals(std::size_t(rows) * g.channels()),
                             z = numbers.normals(std::size_t(rows) * values),
                             b = numbers.normals(std::size_t(rows) * g.value_heads),
                             a = numbers.normals(std::size_t(rows) * g.value_heads);
    auto view = [&](const std::vector<float>& from, int cols) {
      return MatrixView<const float>(from.data(), rows, cols);
    };
    std::vector<float> out(std::size_t(rows) * values);
    std::vector<GdnSegment> on_host, on_device;
    int first = 0;
    for (const Part& part : parts) {
      const Segment segment{part.lane, first, part.rows, 0, {}};
      on_host.push_back({segment, lanes[part.lane].host, part.mode});
      on_device.push_back({segment, lanes[part.lane].device, part.mode});
      first += part.rows;
    }
    gdn(ref, g, host, {view(qkv, g.channels()), view(z, values), view(b, g.value_heads), view(a, g.value_heads)},
        on_host, {out.data(), rows, values});
    cuda::testing::stream().reset();
    const MatrixView<float> got = memory.matrix(rows, values);
    gdn(cuda::testing::stream(), g, device,
        {memory.matrix(qkv, rows, g.channels()), memory.matrix(z, rows, values), memory.matrix(b, rows, g.value_heads),
         memory.matrix(a, rows, g.value_heads)},
        on_device, got);
    const std::vector<float> result = download(got);
    expect_close(what, result, out, 1e-4);
    if (values % cuda::Panel::group == 0) cuda::testing::expect_panel(what, got);
    for (const Part& part : parts) {
      if (part.mode == GdnMode::commit) keep(part.lane, 0);
    }
    return result;
  }
};

void run_sequence(int key_heads, int value_heads) {
  constexpr auto commit = GdnMode::commit, verify = GdnMode::verify;
  Pair pair(key_heads, value_heads);
  pair.pass("prefill 37", {{0, 37, commit}});
  pair.pass("prefill 1 and 16", {{0, 1, commit}, {1, 16, commit}});
  pair.pass("verify 8 and 8", {{0, 8, verify}, {1, 8, verify}});
  pair.keep(0, 3), pair.keep(1, 8);
  pair.pass("verify after 3 and 8 kept", {{1, 8, verify}, {0, 5, verify}});
  pair.keep(0, 1), pair.keep(1, 2);
  pair.pass("prefill beside verify", {{0, 20, commit}, {1, 16, verify}});
  pair.keep(1, 16);
  gdn_fold(stream(), pair.g, pair.lanes[1].device);
  gdn_fold(pair.ref, pair.g, pair.lanes[1].host);
  pair.keep(1, 0);
  pair.pass("verify after a fold", {{1, 1, verify}, {0, 8, verify}});
  pair.keep(0, 7), pair.keep(1, 1);
  pair.pass("two rows", {{1, 2, verify}, {0, 2, verify}});
  pair.keep(0, 2), pair.keep(1, 1);
  pair.pass("long prefills after 2 and 1 kept", {{0, 75, commit}, {1, 18, commit}});
  pair.pass("verify after those", {{1, 8, verify}, {0, 8, verify}});
}

TEST(GdnCuda, ThreeValueHeadsPerKeyHead) { run_sequence(2, 6); }
TEST(GdnCuda, TwoValueHeadsPerKeyHead) { run_sequence(2, 4); }
TEST(GdnCuda, OneValueHeadPerKeyHead) { run_sequence(3, 3); }
TEST(GdnCuda, FourValueHeadsPerKeyHead) { run_sequence(1, 4); }

// The same rows in one prefill, in two, row by row, and as verified and kept blocks: the state has the same bits.
void run_cuts(int key_heads, int value_heads) {
  constexpr int rows = 40;
  Numbers numbers(31);
  Pair pair(key_heads, value_heads, 4);
  const GdnGeometry& g = pair.g;
  const int values = g.value_heads * 128;
  const std::vector<float> qkv = numbers.normals(std::size_t(rows) * g.channels()),
                           z = numbers.normals(std::size_t(rows) * values),
                           b = numbers.normals(std::size_t(rows) * g.value_heads),
                           a = numbers.normals(std::size_t(rows) * g.value_heads);
  Memory memory;
  const GdnRows all{memory.matrix(qkv, rows, g.channels()), memory.matrix(z, rows, values),
                    memory.matrix(b, rows, g.value_heads), memory.matrix(a, rows, g.value_heads)};
  auto run = [&](int lane, int first, int count, GdnMode mode, MatrixView<float> out) {
    const GdnSegment segment{{lane, 0, count, first, {}}, pair.lanes[lane].device, mode};
    gdn(stream(), g, pair.device,
        {all.qkv.slice_rows(first, count), all.z.slice_rows(first, count), all.b.slice_rows(first, count),
         all.a.slice_rows(first, count)},
        std::span(&segment, 1), out.slice_rows(first, count));
  };
  MatrixView<float> out[4];
  for (auto& matrix : out) matrix = memory.matrix(rows, values);
  stream().reset();
  run(0, 0, rows, GdnMode::commit, out[0]);
  run(1, 0, 23, GdnMode::commit, out[1]);
  run(1, 23, rows - 23, GdnMode::commit, out[1]);
  for (int r = 0; r < rows; ++r) run(2, r, 1, GdnMode::commit, out[2]);
  for (int first = 0; first < rows;) {
    const int width = std::min(8, rows - first), kept = std::min(width, 1 + first % 5);
    run(3, first, width, GdnMode::verify, out[3]);
    pair.keep(3, kept);
    first += kept;
  }
  gdn_fold(stream(), g, pair.lanes[3].device);
  const std::vector<float> want = download(out[0]);
  const std::vector<float> state = download(pair.lanes[0].device.state, g.state_floats());
  const std::vector<float> conv = download(pair.lanes[0].device.conv, g.conv_floats());
  for (int lane = 1; lane < 4; ++lane) {
    expect_same("outputs", download(out[lane]), want);
    expect_same("state", download(pair.lanes[lane].device.state, g.state_floats()), state);
    expect_same("conv", download(pair.lanes[lane].device.conv, g.conv_floats()), conv);
  }
}
TEST(GdnCuda, CutsChangeNoBit) {
  run_cuts(2, 6);
  run_cuts(2, 4);
  run_cuts(3, 3);
  run_cuts(1, 4);
}

}  // namespace
}  // namespace splash::ops
