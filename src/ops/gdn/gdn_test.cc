#include "ops/gdn/gdn.h"

#include <algorithm>

#include "ops/conformance.h"

namespace splash::ops::conformance {
namespace {

// The memory of one lane in one layer.
struct Lane {
  explicit Lane(const GdnGeometry& geometry)
      : state(geometry.state_floats()), conv(geometry.conv_floats()), tape(link::max_block * geometry.tape_row_floats()) {}
  std::vector<float> state, conv, tape;
  int kept = 0;
  GdnLane view() { return {state.data(), conv.data(), tape.data(), &kept}; }
};

struct GdnInputs {
  GdnGeometry geometry;
  Matrix qkv, z, b, a, conv, a_log, dt_bias, norm;
  GdnInputs(const GdnGeometry& g, int rows, float scale = 1)
      : geometry(g), qkv(random_matrix(rows, g.channels(), 1, scale)), z(random_matrix(rows, g.value_heads * g.value_dim, 2)),
        b(random_matrix(rows, g.value_heads, 3)), a(random_matrix(rows, g.value_heads, 4, 2)),
        conv(random_matrix(g.channels(), g.conv_kernel, 5, 0.7f)), a_log(random_matrix(1, g.value_heads, 6)),
        dt_bias(random_matrix(1, g.value_heads, 7)), norm(random_matrix(1, g.value_dim, 8)) {}
  GdnWeights weights() const { return {conv.values, a_log.values, dt_bias.values, norm.values}; }
  GdnRows rows() const { return {qkv.view(), z.view(), b.view(), a.view()}; }
  Matrix out() const { return Matrix(qkv.rows, geometry.value_heads * geometry.value_dim); }
};

GdnSegment segment_of(Lane& lane, int first, int rows, GdnMode mode) {
  GdnSegment segment;
  segment.segment.first_row = first;
  segment.segment.rows = rows;
  segment.segment.position = first;
  segment.lane = lane.view();
  segment.mode = mode;
  return segment;
}

template <class Stream>
void run(Stream& stream, const GdnInputs& in, std::span<const GdnSegment> segments, Matrix& out) {
  gdn(stream, in.geometry, in.weights(), in.rows(), segments, out.view());
}
template <class Stream>
void commit(Stream& stream, const GdnInputs& in, Lane& lane, int first, int rows, Matrix& out) {
  const GdnSegment segment = segment_of(lane, first, rows, GdnMode::commit);
  run(stream, in, std::span(&segment, 1), out);
  lane.kept = 0;
}
template <class Stream>
void verify(Stream& stream, const GdnInputs& in, Lane& lane, int first, int rows, Matrix& out) {
  const GdnSegment segment = segment_of(lane, first, rows, GdnMode::verify);
  run(stream, in, std::span(&segment, 1), out);
}

const GdnGeometry small = {2, 6, 32, 48, 4, 1e-6f}, real = {2, 6, 128, 128, 4, 1e-6f}, single = {3, 3, 64, 64, 2, 1e-6f};

class Gdn : public EveryIsa {};

TEST_P(Gdn, MatchesRef) {
  for (const GdnGeometry& geometry : {small, real, single}) {
    for (const float scale : {1.0f, 0.0f, 1e3f}) {
      const GdnInputs in(geometry, 50, scale);
      Matrix expected = in.out(), out = in.out();
      Lane ref_lane(geometry), cpu_lane(geometry);
      ref::Stream reference;
      cpu::Stream cpu = stream(2);
      commit(reference, in, ref_lane, 0, 50, expected);
      commit(cpu, in, cpu_lane, 0, 50, out);
      expect_near(out, expected, 2e-5, 1e-4, "gdn");
      EXPECT_EQ(cpu_lane.conv, ref_lane.conv);
    }
  }
}

TEST_P(Gdn, CutsThreadsAndCompanyLeaveNoTrace) {
  for (const GdnGeometry& geometry : {small, real}) {
    const GdnInputs in(geometry, 40);
    Matrix whole = in.out();
    Lane lane(geometry);
    cpu::Stream cpu = stream(1);
    commit(cpu, in, lane, 0, 40, whole);
    for (int threads : {1, 2, 3}) {
      cpu::Stream many = stream(threads);
      Matrix out = in.out();
      Lane cut(geometry), other(geometry);
      int first = 0;
      for (int rows : {1, 2, 7, 30}) {
        const GdnSegment segments[] = {segment_of(cut, first, rows, GdnMode::commit)};
        run(many, in, segments, out);
        first += rows;
      }
      EXPECT_TRUE(same_bits(out, whole)) << threads;
      EXPECT_EQ(cut.state, lane.state);
      EXPECT_EQ(cut.conv, lane.conv);
      // The first 16 rows again as a lane of its own, beside another lane in verify mode.
      Lane again(geometry);
      const GdnSegment both[] = {segment_of(again, 0, 16, GdnMode::commit), segment_of(other, 16, 9, GdnMode::verify)};
      Matrix pair = in.out();
      run(many, in, both, pair);
      EXPECT_TRUE(same_bits(pair.values.data(), whole.values.data(), std::size_t{16} * pair.cols));
    }
  }
}

// Verify passes of which some rows are kept, then a fold: the bits of a run without speculation.
TEST_P(Gdn, VerifyAndFoldEqualCommit) {
  for (const GdnGeometry& geometry : {small, real, single}) {
    const GdnInputs in(geometry, 48);
    cpu::Stream cpu = stream(2);
    Matrix plain = in.out();
    Lane straight(geometry);
    commit(cpu, in, straight, 0, 5, plain);
    for (int row = 5; row < 32; ++row) commit(cpu, in, straight, row, 1, plain);

    Matrix out = in.out();
    Lane lane(geometry);
    commit(cpu, in, lane, 0, 5, out);
    int at = 5, pass = 0;
    while (at < 32) {  // blocks of 8 and of 16, of which 1..8, never more than are left, are kept
      const std::vector<float> before = lane.state;
      verify(cpu, in, lane, at, pass % 2 ? 8 : 16, out);
      if (pass == 0) {
        EXPECT_EQ(lane.state, before);
      }
      ASSERT_TRUE(same_bits(&out.values[std::size_t(at) * out.cols], &plain.values[std::size_t(at) * out.cols],
                            std::size_t(std::min(8, 32 - at)) * out.cols));
      lane.kept = std::min(1 + pass * 3 % 8, 32 - at);
      at += lane.kept;
      ++pass;
    }
    gdn_fold(cpu, geometry, lane.view());
    EXPECT_EQ(lane.state, straight.state);
    EXPECT_EQ(lane.conv, straight.conv);
  }
}

// A commit pass after a verify pass folds first; kept = 0 discards the proposals.
TEST_P(Gdn, CommitAfterVerify) {
  const GdnInputs in(real, 20);
  cpu::Stream cpu = stream(1);
  for (int kept : {0, 2, 3, 4}) {
    Matrix plain = in.out(), out = in.out();
    Lane straight(real), lane(real);
    commit(cpu, in, straight, 0, 4 + kept, plain);
    commit(cpu, in, straight, 4 + kept, 6, plain);
    commit(cpu, in, lane, 0, 4, out);
    verify(cpu, in, lane, 4, 8, out);
    lane.kept = kept;
    commit(cpu, in, lane, 4 + kept, 6, out);
    EXPECT_TRUE(same_bits(&out.values[std::size_t(4 + kept) * out.cols], &plain.values[std::size_t(4 + kept) * out.cols],
                          std::size_t{6} * out.cols));
    EXPECT_EQ(lane.state, straight.state);
    EXPECT_EQ(lane.conv, straight.conv);
  }
}

SPLASH_EVERY_ISA(Gdn);

}  // namespace
}  // namespace splash::ops::conformance
