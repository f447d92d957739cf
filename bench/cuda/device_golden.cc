// device_golden FIXTURE...: the golden fixtures through the CUDA ops, layer by layer as models/qwen3_5/forward.h has
// them. Prints how far hidden states and logits are from the reference and whether the greedy continuation is the same,
// plain and with kept proposals.
// clang-format off
#include "ops/ops_cuda.h"  // first: see there
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <list>

#include "models/qwen3_5/weights.h"
#include "pack/safetensors.h"

namespace splash {
namespace {

namespace qwen = models::qwen3_5;

class DeviceModel {
 public:
  DeviceModel(cuda::Stream& stream, const qwen::Weights& host, int max_positions) : stream_(stream), w_(host) {
    move(w_.embedding), move(w_.head), move(w_.norm);
    for (qwen::Layer& layer : w_.layers) {
      move(layer.input_norm), move(layer.post_attention_norm);
      move(layer.mlp.gate), move(layer.mlp.up), move(layer.mlp.down);
      if (auto* g = std::get_if<models::Gdn>(&layer.mixer)) {
        move(g->qkv), move(g->z), move(g->b), move(g->a), move(g->out);
        move(g->core.conv), move(g->core.a_log), move(g->core.dt_bias), move(g->core.norm);
        lanes_.push_back({zeros<float>(w_.gdn.state_floats()), zeros<float>(w_.gdn.conv_floats()),
                          zeros<float>(link::max_block * w_.gdn.tape_row_floats()), nullptr});
      } else {
        auto& a = std::get<models::Attention>(layer.mixer);
        move(a.q_gate), move(a.k), move(a.v), move(a.out), move(a.norms.q_norm), move(a.norms.k_norm);
      }
    }
    kept_ = zeros<int>(1);
    for (ops::GdnLane& lane : lanes_) lane.kept = kept_;
    const int pages = (max_positions + 31) / 32;
    pool_.geometry = {ops::KvFormat::int8, w_.attention_layers, w_.attention.kv_heads, w_.attention.head_dim};
    pool_.base = reinterpret_cast<std::byte*>(zeros<char>(pool_.geometry.page_bytes() * pages));
    for (int i = 0; i < pages; ++i) pages_.push_back(pages - 1 - i);
  }

  // Logits of all rows; hidden (if wanted) receives the residual after each layer.
  std::vector<float> run(std::span<const Token> tokens, int position, ops::GdnMode mode,
                         std::vector<std::vector<float>>* hidden = nullptr) {
    stream_.reset();
    const int rows = static_cast<int>(tokens.size());
    const pack::TargetGeometry& g = w_.geometry;
    const MatrixView<float> x = stream_.matrix(rows, g.hidden_size), normed = stream_.matrix(rows, g.hidden_size);
    const auto of_gdn = models::gdn_scratch(stream_, rows, w_.gdn);
    const auto of_attention = models::attention_scratch(stream_, rows, w_.attention);
    const auto of_mlp = models::mlp_scratch(stream_, rows, g.intermediate_size);
    const ops::Segment segment{0, 0, rows, position, pages_};
    auto keep = [&](MatrixView<float> m) {
      if (hidden) hidden->push_back(fetch(m));
    };
    ops::embed(stream_, w_.embedding, tokens, x);
    keep(x);
    for (const qwen::Layer& layer : w_.layers) {
      ops::rms_norm(stream_, x, layer.input_norm, g.rms_eps, normed);
      if (const auto* recurrent = std::get_if<models::Gdn>(&layer.mixer)) {
        const ops::GdnSegment lane{segment, lanes_[static_cast<std::size_t>(layer.mixer_index)], mode};
        models::gdn(stream_, w_.gdn, *recurrent, normed, std::span(&lane, 1), of_gdn, x);
      } else {
        models::attention(stream_, w_.attention, std::get<models::Attention>(layer.mixer), normed,
                          std::span(&segment, 1), pool_, layer.mixer_index, of_attention, x);
      }
      ops::rms_norm(stream_, x, layer.post_attention_norm, g.rms_eps, normed);
      models::mlp(stream_, layer.mlp, normed, of_mlp, true, x);
      keep(x);
    }
    const MatrixView<float> logits = stream_.matrix(rows, w_.head.rows);
    ops::rms_norm(stream_, x, w_.norm, g.rms_eps, normed);
    ops::linear(stream_, normed, w_.head, logits);
    return fetch(logits);
  }
  void set_kept(int kept) { cudaMemcpy(kept_, &kept, sizeof(int), cudaMemcpyHostToDevice); }
  void clear() {
    for (const ops::GdnLane& lane : lanes_) {
      cudaMemset(lane.state, 0, w_.gdn.state_floats() * 4);
      cudaMemset(lane.conv, 0, w_.gdn.conv_floats() * 4);
    }
    set_kept(0);
  }
  const pack::TargetGeometry& geometry() const { return w_.geometry; }

 private:
  template <class T>
  T* zeros(std::size_t count) {
    auto buffer = cuda::DeviceBuffer::allocate(count * sizeof(T) + 256);
    SPLASH_CHECK(buffer.has_value(), "{}", buffer.error().message);
    buffers_.push_back(std::move(*buffer));
    cudaMemset(buffers_.back().data(), 0, count * sizeof(T) + 256);
    return buffers_.back().as<T>();
  }
  void move(pack::Weight& weight) {
    auto* data = zeros<std::byte>(static_cast<std::size_t>(weight.bytes()));
    cudaMemcpy(data, weight.data, static_cast<std::size_t>(weight.bytes()), cudaMemcpyHostToDevice);
    weight.data = data;
  }
  void move(std::span<const float>& values) {
    auto* data = zeros<float>(values.size());
    cudaMemcpy(data, values.data(), values.size_bytes(), cudaMemcpyHostToDevice);
    values = {data, values.size()};
  }
  std::vector<float> fetch(MatrixView<float> m) {
    const Status status = stream_.synchronise();
    SPLASH_CHECK(status.has_value(), "{}", status.error().message);
    std::vector<float> values(static_cast<std::size_t>(m.rows) * m.cols);
    cudaMemcpy(values.data(), m.data, values.size() * 4, cudaMemcpyDeviceToHost);
    return values;
  }

  cuda::Stream& stream_;
  qwen::Weights w_;
  std::list<cuda::DeviceBuffer> buffers_;
  std::vector<ops::GdnLane> lanes_;
  int* kept_ = nullptr;
  ops::KvPool pool_;
  std::vector<ops::PageId> pages_;
};

bool report(const char* what, std::span<const float> got, std::span<const float> want, double bound) {
  double error = 0, norm = 0, worst = 0;
  for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
    const double difference = std::fabs(double{got[i]} - want[i]);
    error += difference * difference, norm += double{want[i]} * want[i], worst = std::max(worst, difference);
    if (std::isnan(got[i])) worst = INFINITY, error = INFINITY;
  }
  const double relative = std::sqrt(error / norm);
  const bool good = got.size() == want.size() && relative <= bound;
  fmt::print("  {:<28} relative {:.2e} (bound {:.0e}), worst {:.2e}{}\n", what, relative, bound, worst,
             good ? "" : "  FAILED");
  return good;
}

Token argmax(std::span<const float> row) {
  return static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
}

int check(cuda::Stream& stream, const std::filesystem::path& folder) {
  fmt::print("{}\n", folder.filename().string());
  auto package = pack::open_model(folder, {.weights = pack::WeightChoice::source});
  auto expected = pack::SafetensorsFile::open(folder / "expected.safetensors");
  if (!package || !expected) {
    fmt::print("{}\n", !package ? package.error().message : expected.error().message);
    return 1;
  }
  auto ints = [&](const char* name) {
    const pack::TensorView* tensor = (*expected)->find(name);
    if (!tensor) return std::span<const Token>();  // not every fixture has a continuation
    return std::span<const Token>(reinterpret_cast<const Token*>(tensor->data.data()),
                                  static_cast<std::size_t>(tensor->elements()));
  };
  auto floats = [&](const std::string& name) {
    const pack::TensorView* tensor = (*expected)->find(name);
    return std::span(reinterpret_cast<const float*>(tensor->data.data()), static_cast<std::size_t>(tensor->elements()));
  };
  DeviceModel model(stream, qwen::load(**package), 512);
  const std::span<const Token> ids = ints("ids"), greedy = ints("greedy_ids");
  const int vocabulary = model.geometry().vocab_size, length = static_cast<int>(ids.size());
  int failures = 0;
  std::vector<std::vector<float>> hidden;
  const std::vector<float> logits = model.run(ids, 0, ops::GdnMode::commit, &hidden);
  for (std::size_t i = 0; i + 1 < hidden.size(); ++i)
    failures += !report(fmt::format("hidden.{}", i).c_str(), hidden[i], floats(fmt::format("hidden.{}", i)), 2e-2);
  failures += !report("logits", logits, floats("logits"), 2e-2);

  // Greedy, one row at a time, then with proposals: 3 right ones, then wrong ones, in a block of 8.
  for (const bool with_proposals : {false, true}) {
    if (greedy.empty()) break;
    model.clear();
    std::vector<float> last = model.run(ids, 0, ops::GdnMode::commit);
    model.set_kept(0);
    Token anchor = argmax(std::span(last).last(vocabulary));
    std::vector<Token> chosen = {anchor};
    int position = length;
    while (chosen.size() < greedy.size()) {
      std::vector<Token> block = {anchor};
      for (std::size_t i = 0; with_proposals && i < 7; ++i) {
        const std::size_t at = chosen.size() + i;
        block.push_back(i < 3 && at < greedy.size() ? greedy[at] : (anchor + 7 * static_cast<Token>(i)) % vocabulary);
      }
      const std::vector<float> rows = model.run(block, position, ops::GdnMode::verify);
      int kept = 0;
      Token next = 0;
      do {
        next = argmax(std::span(rows).subspan(static_cast<std::size_t>(kept) * vocabulary, vocabulary));
        chosen.push_back(next);
        ++kept;
      } while (kept < static_cast<int>(block.size()) && block[static_cast<std::size_t>(kept)] == next);
      model.set_kept(kept);
      position += kept;
      anchor = next;
    }
    std::size_t same = 0;
    while (same < greedy.size() && chosen[same] == greedy[same]) ++same;
    fmt::print("  greedy {}: {} of {} tokens as the reference{}\n", with_proposals ? "with proposals" : "plain", same,
               greedy.size(), same == greedy.size() ? "" : "  (a near tie?)");
  }
  return failures;
}

}  // namespace
}  // namespace splash

int main(int argc, char** argv) {
  using namespace splash;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what is printed survives a crash
  auto device = cuda::choose_device(-1);
  if (!device) {
    fmt::print("no CUDA device: {}\n", device.error().message);
    return 77;
  }
  auto stream = cuda::Stream::open(*device, std::size_t{1} << 30);
  if (!stream) {
    fmt::print("{}\n", stream.error().message);
    return 1;
  }
  int failures = 0;
  for (int i = 1; i < argc; ++i) failures += check(**stream, argv[i]);
  return failures == 0 ? 0 : 1;
}
