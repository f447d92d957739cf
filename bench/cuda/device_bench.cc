// device_bench OUT.jsonl [section ...]: the table of kernels and steps on this machine's GPU; all sections by default,
// in the order of their weight, each line written as soon as it is measured.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "device_kernels.h"
#include "issue_limits.h"
#include "ops/sampling/law_cuda.h"
#include "record.h"
#include "synthetic_model.h"

namespace splash::bench {
namespace {

struct Times {
  double median = 0, low = 0, high = 0;
};

class Bench {
 public:
  Bench(cuda::Stream& stream, Records& records) : stream_(stream), records_(records) {
    cudaEventCreate(&start_);
    cudaEventCreate(&stop_);
  }

  // Records what body enqueues once and replays it; microseconds per replay.
  template <class Body>
  Times time(Body&& body, int replays = 15) {
    auto recording = stream_.record(body);
    if (!recording) {
      fmt::print("FAILED: {}\n", recording.error().message);
      return {1e9, 1e9, 1e9};
    }
    nodes_ = recording->nodes();
    return replay(*recording, replays);
  }
  Times replay(const cuda::Recording& recording, int replays) {
    for (int i = 0; i < 2; ++i) stream_.replay(recording);
    std::vector<double> times;
    for (int i = 0; i < replays; ++i) {
      cudaEventRecord(start_, stream_.native());
      stream_.replay(recording);
      cudaEventRecord(stop_, stream_.native());
      cudaEventSynchronize(stop_);
      float ms = 0;
      cudaEventElapsedTime(&ms, start_, stop_);
      times.push_back(ms * 1e3);
    }
    if (const Status status = stream_.synchronise(); !status) fmt::print("FAILED: {}\n", status.error().message);
    std::sort(times.begin(), times.end());
    return {times[times.size() / 2], times.front(), times.back()};
  }
  void add(Measurement m, Times times, double per = 1) {
    m.median_us = times.median / per, m.low_us = times.low / per, m.high_us = times.high / per;
    records_.add(m);
  }
  std::size_t nodes() const { return nodes_; }

 private:
  cuda::Stream& stream_;
  Records& records_;
  cudaEvent_t start_, stop_;
  std::size_t nodes_ = 0;
};

using Layer = SyntheticModel::Layer;

double bytes_of(std::initializer_list<const pack::Weight*> weights) {
  double bytes = 0;
  for (const pack::Weight* weight : weights) bytes += weight->data ? static_cast<double>(weight->bytes()) : 0;
  return bytes;
}

// One kind of matrix over all layers that have it: the weights differ from launch to launch, so nothing is read from
// the L2.
template <class Targets>
void time_matrices(Bench& bench, cuda::Stream& stream, SyntheticModel& model, const char* name, int rows, int cols,
                   Targets&& targets) {
  stream.reset();
  const MatrixView<float> x = stream.matrix(rows, cols);
  fill_floats(stream, x.data, std::size_t(rows) * cols, 1, 3);
  stream.panel_to_fill(x);  // as its producer would have: the panel is part of the producer's time
  double bytes = 0, weights = 0;
  int count = 0;
  const Times times = bench.time(
      [&] {
        for (const Layer& layer : model.layers()) {
          const std::vector<ops::LinearTarget> list = targets(layer);
          if (list.empty()) continue;
          ++count;
          for (const ops::LinearTarget& target : list)
            bytes += static_cast<double>(target.weight.bytes()),
                weights += 1.0 * target.weight.rows * target.weight.cols;
          ops::linear(stream, x, list);
        }
      },
      rows > 64 ? 5 : 11);
  bench.add({name, rows, bytes / count, 2 * weights * rows / count}, times, count);
}

void linears(Bench& bench, cuda::Stream& stream, SyntheticModel& model, int rows) {
  const Geometry& g = model.geometry();
  auto out = [&, rows](int columns) { return stream.matrix(rows, columns); };
  stream.reset();
  time_matrices(bench, stream, model, "linear gdn in (qkv z b a)", rows, g.hidden,
                [&, made = std::vector<MatrixView<float>>{}](const Layer& l) mutable {
                  if (!l.recurrent) return std::vector<ops::LinearTarget>{};
                  if (made.empty()) made = {out(l.qkv.rows), out(l.z.rows), out(l.b.rows), out(l.a.rows)};
                  return std::vector<ops::LinearTarget>{
                      {l.qkv, made[0]}, {l.z, made[1]}, {l.b, made[2]}, {l.a, made[3]}};
                });
  time_matrices(bench, stream, model, "linear mixer out", rows, g.value_heads * 128,
                [&, made = MatrixView<float>{}](const Layer& l) mutable {
                  if (!made.data) made = out(g.hidden);
                  return std::vector<ops::LinearTarget>{{l.out, made, true}};
                });
  time_matrices(bench, stream, model, "linear gate and up", rows, g.hidden,
                [&, made = std::vector<MatrixView<float>>{}](const Layer& l) mutable {
                  if (made.empty()) made = {out(g.inner), out(g.inner)};
                  return std::vector<ops::LinearTarget>{{l.gate, made[0]}, {l.up, made[1]}};
                });
  time_matrices(bench, stream, model, "linear down", rows, g.inner,
                [&, made = MatrixView<float>{}](const Layer& l) mutable {
                  if (!made.data) made = out(g.hidden);
                  return std::vector<ops::LinearTarget>{{l.down, made, true}};
                });
  if (rows > 64) return;
  stream.reset();
  const MatrixView<float> x = stream.matrix(rows, g.hidden), logits = stream.matrix(rows, g.vocabulary);
  stream.panel_to_fill(x);
  const Times head = bench.time([&] { ops::linear(stream, x, model.head(), logits); });
  bench.add({"linear head", rows, bytes_of({&model.head()}), 2.0 * rows * g.vocabulary * g.hidden}, head);
}

void every_linear(Bench& bench, cuda::Stream& stream, SyntheticModel& model, int rows, const std::string& note) {
  const Geometry& g = model.geometry();
  stream.reset();
  const MatrixView<float> x = stream.matrix(rows, g.hidden), normed = stream.matrix(rows, g.hidden),
                          wide = stream.matrix(rows, g.query_heads * 512),
                          mixed = stream.matrix(rows, g.value_heads * 128), b = stream.matrix(rows, 1024),
                          a = stream.matrix(rows, 1024), z = stream.matrix(rows, g.value_heads * 128),
                          qkv = stream.matrix(rows, model.gdn_geometry().channels()),
                          inner = stream.matrix(rows, g.inner), inner_up = stream.matrix(rows, g.inner);
  for (const MatrixView<float>& m : {normed, mixed, inner}) stream.panel_to_fill(m);
  const Times times = bench.time([&] {
    for (const Layer& l : model.layers()) {
      if (l.recurrent) {
        const ops::LinearTarget in[] = {
            {l.qkv, qkv}, {l.z, z}, {l.b, {b.data, rows, l.b.rows}}, {l.a, {a.data, rows, l.a.rows}}};
        ops::linear(stream, normed, in);
      } else {
        const ops::LinearTarget in[] = {{l.q_gate, wide}, {l.k, b}, {l.v, a}};
        ops::linear(stream, normed, in);
      }
      ops::linear_add(stream, mixed, l.out, x);
      const ops::LinearTarget in[] = {{l.gate, inner}, {l.up, inner_up}};
      ops::linear(stream, normed, in);
      stream.panel_to_fill(inner);
      ops::linear_add(stream, inner, l.down, x);
    }
  });
  bench.add(
      {"256 linears of the layers, one graph", rows, static_cast<double>(model.layer_weight_bytes()), 0, 0, 0, 0, note},
      times);
}

void attention(Bench& bench, SyntheticModel& model, int lanes, int position) {
  if (position + 8 > model.context(lanes)) return;
  const int layers = model.geometry().layers / 4;
  model.place(lanes, position);
  model.begin(lanes, 8, true);
  const double pages = static_cast<double>(model.page_layer_bytes()) * (position / 32) * lanes;
  const Times times = bench.time([&] {
    for (int i = 0; i < layers; ++i) model.attention_layer(i, lanes, 8);
  });
  bench.add({fmt::format("attention at {}K", (position + 8) / 1024), lanes * 8, pages}, times, layers);
}

void small_kernels(Bench& bench, cuda::Stream& stream, SyntheticModel& model, int lanes) {
  const Geometry& g = model.geometry();
  const int rows = lanes * 8;
  auto repeat = [&](const char* name, double bytes, int times, auto&& body, std::string note = "") {
    const Times taken = bench.time([&] {
      for (int i = 0; i < times; ++i) body(i);
    });
    bench.add({name, rows, bytes, 0, 0, 0, 0, std::move(note)}, taken, times);
  };
  model.place(lanes, 1024);
  model.begin(lanes, 8, true);
  const double state = static_cast<double>(model.state_bytes()) / (g.layers / 4 * 3) * lanes;
  repeat("gdn verify, nothing kept", state, g.layers / 4 * 3,
         [&](int i) { model.gdn_layer(i / 3 * 4 + i % 3, lanes, 8); });
  model.set_kept(lanes, 5);
  model.begin(lanes, 8, true);
  repeat("gdn verify, 5 kept", 2 * state, g.layers / 4 * 3,
         [&](int i) { model.gdn_layer(i / 3 * 4 + i % 3, lanes, 8); });
  for (const int position : {1024, 32760}) attention(bench, model, lanes, position);
  model.place(lanes, 4096);
  model.begin(lanes, 8, true);
  repeat("draft attention, full window", 2.0 * lanes * g.window * g.draft_kv_heads * g.draft_dim * 4, g.draft_layers,
         [&](int i) { model.draft_attention_layer(i, lanes); });
  stream.reset();
  const MatrixView<float> x = stream.matrix(rows, g.hidden), y = stream.matrix(rows, g.hidden);
  fill_floats(stream, x.data, std::size_t(rows) * g.hidden, 1, 5);
  repeat("rms_norm", 8.0 * rows * g.hidden, 64, [&](int) { ops::rms_norm(stream, x, model.norm(), 1e-6f, y); });
  stream.reset();
  const MatrixView<float> logits = stream.matrix(rows, g.vocabulary), values = stream.matrix(rows, 16),
                          one = stream.matrix(rows, 1);
  fill_floats(stream, logits.data, std::size_t(rows) * g.vocabulary, 1, 7);
  const MatrixView<Token> ids{stream.allocate<Token>(rows * 16), rows, 16}, top{stream.allocate<Token>(rows), rows, 1};
  repeat("top_k 16", 4.0 * rows * g.vocabulary, 10, [&](int) { ops::top_k(stream, logits, 248000, ids, values); });
  // The law of every row and the choice, as the step does them (sampling/law_cuda.h).
  const std::vector<ops::LaneChoice> laws[] = {
      std::vector<ops::LaneChoice>(lanes),
      std::vector<ops::LaneChoice>(lanes, {.temperature = 0.7f, .top_p = 0.95f, .top_k = 20}),
      std::vector<ops::LaneChoice>(lanes, {.temperature = 1.0f}),
      std::vector<ops::LaneChoice>(lanes, {.temperature = 1.0f, .top_p = 0.95f}),
      std::vector<ops::LaneChoice>(lanes, {.temperature = 1.0f, .top_p = 0.95f, .top_k = 200})};
  const char* const law_names[] = {"accept: greedy", "accept: top_k 20, top_p 0.95", "accept: whole vocabulary",
                                   "accept: top_p 0.95 alone", "accept: top_k 200, top_p 0.95"};
  for (int i = 0; i < 5; ++i) {
    auto choices = laws[i];
    for (ops::LaneChoice& choice : choices) choice.rows = 8, choice.budget = 8;
    auto* slots = stream.allocate<ops::SlotLaw>(static_cast<std::size_t>(rows));
    stream.note(cudaMemsetAsync(slots, 0, rows * sizeof(ops::SlotLaw), stream.native()), "slots");
    auto* tokens = stream.allocate<Token>(rows);
    stream.note(cudaMemsetAsync(tokens, 0, rows * sizeof(Token), stream.native()), "tokens");
    ops::StepAcceptance args{.logits = logits, .limit = 248000, .lanes = lanes, .width = 8};
    args.kind = ops::law_kind({.temperature = choices[0].temperature, .top_k = choices[0].top_k}, 248000);
    args.choices = stream.upload(choices.data(), choices.size());
    args.tokens = tokens, args.laws = slots, args.chosen = stream.allocate<ops::LaneChosen>(lanes);
    repeat(law_names[i], 4.0 * rows * g.vocabulary, 5, [&](int) { ops::accept(stream, args); });
  }
  repeat("argmax", 4.0 * rows * g.vocabulary, 10, [&](int) { ops::top_k(stream, logits, 248000, top, one); });
}

void steps(Bench& bench, SyntheticModel& model, int lanes, int width, int position, const char* remark = "") {
  if (position + width > model.context(lanes)) return;
  const Geometry& g = model.geometry();
  model.place(lanes, position);
  model.begin(lanes, width, true);
  const double pages = static_cast<double>(model.page_layer_bytes()) * g.layers / 4 * (position / 32) * lanes;
  double bytes = static_cast<double>(model.layer_weight_bytes()) + bytes_of({&model.head()}) +
                 2.0 * static_cast<double>(model.state_bytes()) * lanes + pages;
  if (width > 1) {
    bytes += static_cast<double>(model.draft_weight_bytes()) + bytes_of({&model.head()}) +
             2.0 * lanes * std::min(position, g.window) * g.draft_kv_heads * g.draft_dim * 4 * g.draft_layers;
  }
  const Times times = bench.time([&] { model.step(lanes, width); });
  int kept = 0;
  cudaMemcpy(&kept, model.kept(), sizeof kept, cudaMemcpyDeviceToHost);
  bench.add({fmt::format("step, {} lane(s) x {} rows at {}", lanes, width, position), lanes * width, bytes, 0, 0, 0, 0,
             fmt::format("{} nodes; kept {}{}", bench.nodes(), kept, remark)},
            times);
}

// What a step is made of: its time less that of the same step without a part. Launches overlap, so the parts need not add
// up.
void parts(Bench& bench, SyntheticModel& model, int lanes) {
  using Part = SyntheticModel::Part;
  const Geometry& g = model.geometry();
  model.place(lanes, 1024);
  struct Case {
    const char* name;
    unsigned without;
    int launches;
  };
  const int recurrent = g.layers / 4 * 3, drafted = g.draft_layers;
  const Case cases[] = {{"gdn", Part::gdn, recurrent},
                        {"attention", Part::attention, g.layers - recurrent},
                        {"target's linears", Part::target_linears, 4 * g.layers},
                        {"taps (copies)", Part::taps, g.taps},
                        {"target's head", Part::target_head, 1},
                        {"draft pass", Part::draft, 1},
                        {"draft attention", Part::draft_attention, drafted},
                        {"draft boundaries (convolutions, norms, projections)", Part::draft_boundaries, 2 * drafted},
                        {"draft linears (qkv, out, gate and up, down)", Part::draft_linears, 4 * drafted},
                        {"draft head and selector's projection", Part::draft_head, 1},
                        {"draft choice (top_k, walk)", Part::draft_choice, 1},
                        {"draft context", Part::commit, 1},
                        {"draft context, keys and values of the layers", Part::context_layers, drafted}};
  const auto measure = [&](unsigned without) {
    model.without = without;
    model.set_kept(lanes, 0);
    model.begin(lanes, 8, true);
    const Times times = bench.time([&] { model.step(lanes, 8); });
    model.without = 0;
    return times;
  };
  const double whole = measure(0).median;
  for (const Case& one : cases) {
    const double less = whole - measure(one.without).median;
    const Measurement m{fmt::format("part of a step: {}", one.name), lanes * 8, 0, 0, 0, 0, 0,
                        fmt::format("{} times; whole {:.1f} us", one.launches, whole)};
    bench.add(m, {less, less, less}, one.launches);
  }
}

// Attention and the step where the pages weigh as much as the weights.
void long_contexts(Bench& bench, SyntheticModel& model) {
  constexpr std::pair<int, int> cases[] = {{1, 4},  {1, 8},   {1, 16},  {1, 24},  {1, 48}, {1, 64},
                                           {1, 96}, {1, 128}, {1, 192}, {1, 256}, {4, 8},  {4, 64}};
  for (const auto& [lanes, thousands] : cases) {
    attention(bench, model, lanes, thousands * 1024 - 8);
    steps(bench, model, lanes, 8, thousands * 1024 - 8);
  }
}

void prefill(Bench& bench, SyntheticModel& model, int rows, int position) {
  if (position + rows > model.context(1)) return;
  model.place(1, position);
  model.begin(1, rows, false);
  const Times times = bench.time([&] { model.prefill(rows); }, 5);
  const double flops = 2.0 * rows * static_cast<double>(model.layer_weight_bytes()) * 16 / 9;
  bench.add(
      {fmt::format("prefill, {} rows at {}", rows, position), rows, static_cast<double>(model.layer_weight_bytes()),
       flops, 0, 0, 0, fmt::format("{:.0f} tok/s", rows / times.median * 1e6)},
      times);
}

int run(int argc, char** argv) {
  auto wanted = [&](std::string_view section) {
    if (argc <= 2) return true;
    return std::any_of(argv + 2, argv + argc, [&](const char* argument) { return section == argument; });
  };
  auto device = cuda::choose_device(-1);
  if (!device) {
    fmt::print("no CUDA device: {}\n", device.error().message);
    return 77;
  }
  auto opened = cuda::Stream::open(*device, std::size_t{6} << 30);
  if (!opened) {
    fmt::print("{}\n", opened.error().message);
    return 1;
  }
  cuda::Stream& stream = **opened;
  const char* extra = std::getenv("SPLASH_BENCH_MACHINE");  // JSON members: clocks, commit
  fmt::print("{}\n", cuda::describe(*device));
  Records records(argc > 1 ? argv[1] : nullptr,
                  fmt::format(R"("gpu":"{}","driver_cuda":{}{}{})", device->name, device->driver_version,
                              extra ? "," : "", extra ? extra : ""),
                  0);
  Bench bench(stream, records);
  const auto begun = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); };
  const bool probe_prefill = wanted("probe-prefill") && argc > 2;     // prefill passes over four layers, for ncu
  const bool probe = (wanted("probe") && argc > 2) || probe_prefill;  // each kernel of a layer once, for ncu
  const bool small = wanted("small") && argc > 2;  // a model of two lanes and four layers, for compute-sanitizer
  Geometry geometry;
  if (small)
    geometry.layers = 4, geometry.draft_layers = 1, geometry.vocabulary = 4096, geometry.hidden = 512,
    geometry.inner = 1024;
  if (probe) geometry.layers = 4, geometry.draft_layers = 1;
  auto made =
      SyntheticModel::make(stream, geometry, small ? 2 : 8, small ? 1100 : 32768 + 64);
  if (!made) {
    fmt::print("{}\n", made.error().message);
    return 1;
  }
  SyntheticModel& model = **made;
  fmt::print("model made after {:.1f} s\n", seconds());
  if (probe_prefill) {
    for (const auto& [rows, position] : {std::pair{512, 0}, {2048, 0}, {2048, 30000}}) {
      model.place(1, position);
      model.begin(1, rows, false);
      model.prefill(rows);
    }
    if (const Status status = stream.synchronise(); !status) fmt::print("FAILED: {}\n", status.error().message);
    return 0;
  }
  if (probe) {
    // Two steps of one, four and eight lanes at 1K (the second folds kept rows in), then attention at 32K.
    for (const int lanes : {1, 4, 8}) {
      model.place(lanes, 1024);
      for (int i = 0; i < 2; ++i) {
        model.begin(lanes, 8, true);
        model.step(lanes, 8);
        model.set_kept(lanes, 5);
      }
    }
    model.place(1, 32760);
    model.begin(1, 8, true);
    model.attention_layer(0, 1, 8);
    if (const Status status = stream.synchronise(); !status) fmt::print("FAILED: {}\n", status.error().message);
    return 0;
  }
  if (small) {
    steps(bench, model, 2, 8, 1024);
    prefill(bench, model, 70, 0);
    return 0;
  }
  if (wanted("roof")) {
    const std::size_t bytes = static_cast<std::size_t>(model.head().bytes());
    double best = 0;
    for (const int blocks : {264, 528, 1056}) {
      stream.reset();
      auto* sink = stream.allocate<unsigned>(1);
      const Times times = bench.time([&] { read_everything(stream, model.head().data, bytes, sink, blocks); });
      bench.add({"plain read of the head", 0, static_cast<double>(bytes), 0, 0, 0, 0, fmt::format("{} blocks", blocks)},
                times);
      best = std::max(best, static_cast<double>(bytes) / times.median / 1e3);
    }
    records.set_roof(best);
  }
  if (wanted("limits")) {
    for (const auto& limits : {products_and_issue(stream), fetching_beside_others(stream)}) {
      for (const Limit& limit : limits) records.add_cycles(limit.name, limit.cycles);
    }
  }
  if (wanted("steps")) {
    for (const bool fold : {true, false, false, true}) {  // A B B A
      model.fold_norms = fold;
      steps(bench, model, 1, 8, 1024, fold ? ", norms folded" : ", norms apart");
    }
    steps(bench, model, 1, 1, 1024);
    steps(bench, model, 4, 8, 1024);
    steps(bench, model, 1, 8, 32752);
    steps(bench, model, 2, 8, 1024);
    steps(bench, model, 8, 8, 1024);
  }
  if (wanted("long")) long_contexts(bench, model);
  if (wanted("parts")) {
    parts(bench, model, 1);
    parts(bench, model, 4);
  }
  if (wanted("widths")) {
    every_linear(bench, stream, model, 8, "");
    for (const int rows : {1, 16, 32, 64}) every_linear(bench, stream, model, rows, "");
    every_linear(bench, stream, model, 8, "again");
  }
  if (wanted("kernels")) {
    linears(bench, stream, model, 8);
    small_kernels(bench, stream, model, 1);
    small_kernels(bench, stream, model, 4);
    small_kernels(bench, stream, model, 8);
  }
  if (wanted("prefill")) {
    prefill(bench, model, 512, 0);
    prefill(bench, model, 2048, 0);
    prefill(bench, model, 2048, 30000);
    linears(bench, stream, model, 512);
  }
  if (wanted("rows")) {
    linears(bench, stream, model, 32);
    linears(bench, stream, model, 64);
  }
  fmt::print("done after {:.1f} s\n", seconds());
  return 0;
}

}  // namespace
}  // namespace splash::bench

int main(int argc, char** argv) { return splash::bench::run(argc, argv); }
