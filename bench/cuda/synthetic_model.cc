#include "synthetic_model.h"

#include "device_kernels.h"

namespace splash::bench {

// Everything the host sets up goes through the stream that the kernels run on and is waited for: a plain cudaMemcpy is not
// ordered with it, so that a table's zero fill, queued behind gigabytes of weights, could come after its contents.
void SyntheticModel::copy(void* to, const void* from, std::size_t bytes) {
  stream_.note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.native()), "copy");
  stream_.note(cudaStreamSynchronize(stream_.native()), "copy");
}
void SyntheticModel::fill(void* to, int value, std::size_t bytes) {
  stream_.note(cudaMemsetAsync(to, value, bytes, stream_.native()), "fill");
}

template <class T>
T* SyntheticModel::memory(std::size_t count) {
  auto buffer = cuda::DeviceBuffer::allocate(count * sizeof(T) + 256);
  if (!buffer) {
    failure_ = buffer.error().message;
    return nullptr;
  }
  buffers_.push_back(std::move(*buffer));
  fill(buffers_.back().data(), 0, count * sizeof(T) + 256);
  return buffers_.back().as<T>();
}

pack::Weight SyntheticModel::weight(int rows, int cols) {
  pack::Weight weight{pack::Format::q4, rows, cols, nullptr};
  auto* data = memory<std::byte>(static_cast<std::size_t>(weight.bytes()));
  if (data) fill_tiles(stream_, data, static_cast<std::size_t>(weight.bytes()) / 576, seed_++);
  weight.data = data;
  return weight;
}

float* SyntheticModel::floats(std::size_t count, float scale) {
  float* data = memory<float>(count);
  if (data) fill_floats(stream_, data, count, scale, seed_++);
  return data;
}

ops::GdnGeometry SyntheticModel::gdn_geometry() const { return {g_.key_heads, g_.value_heads}; }
ops::AttentionGeometry SyntheticModel::attention_geometry() const { return {g_.query_heads, g_.kv_heads}; }
ops::DraftAttentionGeometry SyntheticModel::draft_geometry() const {
  ops::DraftAttentionGeometry geometry;
  geometry.query_heads = g_.draft_query_heads, geometry.kv_heads = g_.draft_kv_heads, geometry.head_dim = g_.draft_dim;
  geometry.window = g_.window;
  return geometry;
}
std::int64_t SyntheticModel::state_bytes() const {
  return (gdn_geometry().state_floats() + gdn_geometry().conv_floats()) * 4 * g_.layers / 4 * 3;
}

Result<std::unique_ptr<SyntheticModel>> SyntheticModel::make(cuda::Stream& stream, const Geometry& geometry, int lanes,
                                                             int context) {
  std::unique_ptr<SyntheticModel> model(new SyntheticModel(stream));
  SyntheticModel& m = *model;
  const Geometry& g = m.g_ = geometry;
  const ops::GdnGeometry gdn = m.gdn_geometry();
  m.max_lanes_ = lanes, m.context_ = context;
  m.norm_ = m.gain(g.hidden), m.head_norm_ = m.gain(256), m.draft_head_norm_ = m.gain(g.draft_dim);
  m.gdn_weights_ = {m.gain(gdn.channels() * 4), m.gain(g.value_heads), m.gain(g.value_heads), m.gain(128)};
  m.kept_ = m.memory<int>(lanes);
  for (int l = 0; l < g.layers; ++l) {
    Layer layer;
    layer.recurrent = l % 4 != 3;
    if (layer.recurrent) {
      layer.qkv = m.weight(gdn.channels(), g.hidden), layer.z = m.weight(g.value_heads * 128, g.hidden);
      layer.b = m.weight(g.value_heads, g.hidden), layer.a = m.weight(g.value_heads, g.hidden);
      layer.out = m.weight(g.hidden, g.value_heads * 128);
      std::vector<ops::GdnLane> of_layer;
      for (int lane = 0; lane < lanes; ++lane) {
        of_layer.push_back({m.memory<float>(gdn.state_floats()), m.memory<float>(gdn.conv_floats()),
                            m.memory<float>(link::max_block * gdn.tape_row_floats()), m.kept_ + lane});
      }
      auto* table = m.memory<ops::GdnLane>(lanes);
      if (table) m.copy(table, of_layer.data(), of_layer.size() * sizeof(ops::GdnLane));
      m.gdn_lanes_.push_back(std::move(of_layer));
      m.gdn_lane_tables_.push_back(table);
    } else {
      layer.q_gate = m.weight(g.query_heads * 512, g.hidden), layer.k = m.weight(g.kv_heads * 256, g.hidden);
      layer.v = m.weight(g.kv_heads * 256, g.hidden), layer.out = m.weight(g.hidden, g.query_heads * 256);
      m.gdn_lanes_.emplace_back();
      m.gdn_lane_tables_.push_back(nullptr);
    }
    layer.gate = m.weight(g.inner, g.hidden), layer.up = m.weight(g.inner, g.hidden),
    layer.down = m.weight(g.hidden, g.inner);
    for (const pack::Weight* w : {&layer.qkv, &layer.z, &layer.b, &layer.a, &layer.q_gate, &layer.k, &layer.v,
                                  &layer.out, &layer.gate, &layer.up, &layer.down}) {
      m.layer_bytes_ += w->data ? w->bytes() : 0;
    }
    m.layers_.push_back(layer);
  }
  m.head_ = m.weight(g.vocabulary, g.hidden);
  m.fc_ = m.weight(g.hidden, g.taps * g.hidden), m.selector_projection_ = m.weight(g.rank, g.hidden);
  m.draft_bytes_ = m.fc_.bytes() + m.selector_projection_.bytes();
  for (int l = 0; l < g.draft_layers; ++l) {
    DraftLayer d;
    d.attention_projection = m.weight(g.hidden / 4, g.hidden), d.mlp_projection = m.weight(g.hidden / 4, g.hidden);
    d.q = m.weight(g.draft_query_heads * g.draft_dim, g.hidden),
    d.k = m.weight(g.draft_kv_heads * g.draft_dim, g.hidden);
    d.v = m.weight(g.draft_kv_heads * g.draft_dim, g.hidden),
    d.out = m.weight(g.hidden, g.draft_query_heads * g.draft_dim);
    d.gate = m.weight(g.inner, g.hidden), d.up = m.weight(g.inner, g.hidden), d.down = m.weight(g.hidden, g.inner);
    d.attention_base = m.gain(4 * g.hidden), d.mlp_base = m.gain(4 * g.hidden);
    for (const pack::Weight* w :
         {&d.attention_projection, &d.mlp_projection, &d.q, &d.k, &d.v, &d.out, &d.gate, &d.up, &d.down})
      m.draft_bytes_ += w->bytes();
    m.draft_layers_.push_back(d);
    std::vector<ops::DraftRing> rings;
    const std::size_t ring = static_cast<std::size_t>(g.window) * g.draft_kv_heads * g.draft_dim;
    for (int lane = 0; lane < lanes; ++lane) rings.push_back({m.memory<float>(ring), m.memory<float>(ring), g.window});
    m.rings_.push_back(std::move(rings));
  }
  const std::size_t codebook = static_cast<std::size_t>(g.vocabulary) * g.rank;
  m.selector_ = {{pack::Format::f32, g.vocabulary, g.rank, reinterpret_cast<std::byte*>(m.floats(codebook, 0.05f))},
                 {pack::Format::f32, g.vocabulary, g.rank, reinterpret_cast<std::byte*>(m.floats(codebook, 0.05f))}};
  m.pool_.geometry = {ops::KvFormat::int8, g.layers / 4, g.kv_heads, 256};
  m.pages_per_lane_ = (context + 2 * link::page_tokens - 1) / link::page_tokens;
  m.pool_.base =
      m.memory<std::byte>(static_cast<std::size_t>(m.pool_.geometry.page_bytes()) * m.pages_per_lane_ * lanes);
  std::vector<ops::PageId> pages(static_cast<std::size_t>(m.pages_per_lane_) * lanes);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < m.pages_per_lane_; ++i)
      pages[static_cast<std::size_t>(lane) * m.pages_per_lane_ + i] = i * lanes + lane;  // lanes interleave
  }
  auto* page_table = m.memory<ops::PageId>(pages.size());
  if (page_table) m.copy(page_table, pages.data(), pages.size() * sizeof(ops::PageId));
  m.pages_ = page_table;
  m.entries_ = m.memory<ops::SegmentEntry>(lanes);
  m.draft_tokens_ = m.memory<Token>(lanes * g.block), m.verify_tokens_ = m.memory<Token>(max_rows);
  m.block_tables_ = m.memory<ops::DraftBlockSegment>(std::size_t(g.draft_layers) * lanes);
  m.context_tables_ = m.memory<ops::DraftContextSegment>(std::size_t(g.draft_layers) * lanes);
  m.choices_ = m.memory<ops::LaneChoice>(lanes), m.laws_ = m.memory<ops::SlotLaw>(std::size_t(lanes) * g.block);
  m.chosen_ = m.memory<ops::LaneChosen>(lanes);
  if (!m.failure_.empty()) return fail(ErrorKind::overloaded, "{}", m.failure_);
  SPLASH_TRY_STATUS(stream.synchronise());
  return model;
}

void SyntheticModel::place(int lanes, int position) {
  position_ = position;
  fill(kept_, 0, max_lanes_ * sizeof(int));
  for (const auto& of_layer : gdn_lanes_) {
    for (const ops::GdnLane& lane : of_layer) {
      fill(lane.state, 0, gdn_geometry().state_floats() * 4);
      fill(lane.conv, 0, gdn_geometry().conv_floats() * 4);
    }
  }
  unsigned seed = 11;
  for (const auto& of_layer : rings_) {
    for (const ops::DraftRing& ring : of_layer) {
      const std::size_t count = static_cast<std::size_t>(ring.capacity) * g_.draft_kv_heads * g_.draft_dim;
      fill_floats(stream_, ring.keys, count, 1, seed++);
      fill_floats(stream_, ring.values, count, 1, seed++);
    }
  }
  fill_pages(stream_, pool_.base, static_cast<std::size_t>(pool_bytes()), 7);
  std::vector<Token> tokens;
  for (int i = 0; i < lanes * g_.block; ++i)
    tokens.push_back(i % g_.block == 0 ? 1000 + i : std::min(248000, g_.vocabulary - 1));
  copy(draft_tokens_, tokens.data(), tokens.size() * sizeof(Token));
  copy(verify_tokens_, tokens.data(), tokens.size() * sizeof(Token));
}

void SyntheticModel::set_kept(int lanes, int kept) {
  const std::vector<int> all(lanes, kept);
  copy(kept_, all.data(), all.size() * sizeof(int));
}

void SyntheticModel::begin(int lanes, int rows, bool verify) {
  stream_.reset();
  segments_.clear();
  commit_rows_ = verify ? 0 : rows;
  std::vector<ops::SegmentEntry> entries;
  std::vector<ops::LaneChoice> choices;
  for (int lane = 0; lane < lanes; ++lane) {
    choices.push_back({.position = position_, .rows = std::min(rows, link::max_block), .budget = rows, .lane = lane});
    segments_.push_back({lane, lane * rows, rows, position_, {}});
    entries.push_back({lane, lane * rows, rows, position_, verify ? 1 : 0, 0,
                       pages_ + static_cast<std::ptrdiff_t>(lane) * (max_lanes_ / lanes) * pages_per_lane_});
  }
  copy(entries_, entries.data(), entries.size() * sizeof(entries[0]));
  copy(choices_, choices.data(), choices.size() * sizeof(choices[0]));
  stream_.bind(segments_.data(), entries_);
  stream_.bind(token_names_.data(), draft_tokens_);
  stream_.bind(token_names_.data() + max_rows, verify_tokens_);
  block_segments_.assign(g_.draft_layers, {});
  context_segments_.assign(g_.draft_layers, {});
  for (int l = 0; l < g_.draft_layers; ++l) {
    for (int lane = 0; lane < lanes; ++lane) {
      block_segments_[l].push_back({lane * g_.block, position_, rings_[l][lane]});
      context_segments_[l].push_back({lane * rows, rows, position_, rings_[l][lane]});
    }
    ops::DraftBlockSegment* blocks = block_tables_ + l * max_lanes_;
    ops::DraftContextSegment* contexts = context_tables_ + l * max_lanes_;
    copy(blocks, block_segments_[l].data(), lanes * sizeof(*blocks));
    copy(contexts, context_segments_[l].data(), lanes * sizeof(*contexts));
    stream_.bind(block_segments_[l].data(), blocks);
    stream_.bind(context_segments_[l].data(), contexts);
  }
}

void SyntheticModel::gdn_layer(int l, int lanes, int rows) {
  const ops::GdnGeometry gdn = gdn_geometry();
  const int count = lanes * rows, values = gdn.value_heads * 128;
  const ops::GdnRows in{stream_.matrix(count, gdn.channels()), stream_.matrix(count, values),
                        stream_.matrix(count, gdn.value_heads), stream_.matrix(count, gdn.value_heads)};
  ops::gdn(stream_, gdn, gdn_weights_, in, {entries_, lanes, gdn_lane_tables_[l], commit_rows_},
           stream_.matrix(count, values));
}

void SyntheticModel::attention_layer(int index, int lanes, int rows) {
  const int count = lanes * rows;
  ops::attention(stream_, attention_geometry(), {head_norm_, head_norm_},
                 {stream_.matrix(count, g_.query_heads * 512), stream_.matrix(count, g_.kv_heads * 256),
                  stream_.matrix(count, g_.kv_heads * 256)},
                 segments_, pool_, index, stream_.matrix(count, g_.query_heads * 256));
}

void SyntheticModel::draft_attention_layer(int l, int lanes) {
  const int count = lanes * g_.block;
  ops::draft_attention(stream_, draft_geometry(), draft_head_norm_, draft_head_norm_,
                       stream_.matrix(count, g_.draft_query_heads * g_.draft_dim),
                       stream_.matrix(count, g_.draft_kv_heads * g_.draft_dim),
                       stream_.matrix(count, g_.draft_kv_heads * g_.draft_dim), g_.block, block_segments_[l],
                       stream_.matrix(count, g_.draft_query_heads * g_.draft_dim));
}

// The target's layers over rows whose embeddings lie in x; normed gets the final norm. features: [rows, taps * hidden]
// or empty.
void SyntheticModel::forward(MatrixView<float> x, MatrixView<float> normed, int lanes, MatrixView<float> features) {
  const ops::GdnGeometry gdn = gdn_geometry();
  const int rows = x.rows, values = gdn.value_heads * 128;
  const MatrixView<float> qkv = stream_.matrix(rows, gdn.channels()), z = stream_.matrix(rows, values),
                          b = stream_.matrix(rows, gdn.value_heads), a = stream_.matrix(rows, gdn.value_heads),
                          q_gate = stream_.matrix(rows, g_.query_heads * 512),
                          k = stream_.matrix(rows, g_.kv_heads * 256), v = stream_.matrix(rows, g_.kv_heads * 256),
                          mixed = stream_.matrix(rows, values), inner = stream_.matrix(rows, g_.inner),
                          inner_up = stream_.matrix(rows, g_.inner);
  int tap = 0;
  for (int l = 0; l < g_.layers; ++l) {
    const Layer& layer = layers_[l];
    if (l == 0 || !fold_norms) ops::rms_norm(stream_, x, norm_, 1e-6f, normed);
    if (layer.recurrent) {
      const ops::LinearTarget in[] = {{layer.qkv, qkv}, {layer.z, z}, {layer.b, b}, {layer.a, a}};
      if (has(Part::target_linears)) ops::linear(stream_, normed, in);
      if (has(Part::gdn)) {
        ops::gdn(stream_, gdn, gdn_weights_, {qkv, z, b, a}, {entries_, lanes, gdn_lane_tables_[l], commit_rows_}, mixed);
      }
    } else {
      const ops::LinearTarget in[] = {{layer.q_gate, q_gate}, {layer.k, k}, {layer.v, v}};
      if (has(Part::target_linears)) ops::linear(stream_, normed, in);
      if (has(Part::attention)) {
        ops::attention(stream_, attention_geometry(), {head_norm_, head_norm_}, {q_gate, k, v}, segments_, pool_, l / 4,
                       mixed);
      }
    }
    if (!has(Part::target_linears)) {
    } else if (fold_norms) {
      ops::linear_add_norm(stream_, mixed, layer.out, x, norm_, 1e-6f, normed);
    } else {
      ops::linear_add(stream_, mixed, layer.out, x);
      ops::rms_norm(stream_, x, norm_, 1e-6f, normed);
    }
    if (has(Part::target_linears)) ops::linear_swiglu(stream_, normed, layer.gate, layer.up, inner_up, inner);
    if (!has(Part::target_linears)) {
    } else if (fold_norms) {
      ops::linear_add_norm(stream_, inner, layer.down, x, norm_, 1e-6f, normed);
    } else {
      ops::linear_add(stream_, inner, layer.down, x);
    }
    if (has(Part::taps) && features.rows > 0 && tap < g_.taps && l == 1 + tap * (g_.layers - 4) / (g_.taps - 1)) {
      ops::draft_feature(stream_, x, features, tap++);
    }
  }
  if (!fold_norms) ops::rms_norm(stream_, x, norm_, 1e-6f, normed);
}

void SyntheticModel::draft_pass(int lanes) {
  const int rows = lanes * g_.block, slots = g_.block - 1, k = 16, groups = g_.hidden / 16;
  MatrixView<float> x = stream_.matrix(rows, g_.hidden), spare = stream_.matrix(rows, g_.hidden);
  const MatrixView<float> normed = stream_.matrix(rows, g_.hidden),
                          coefficients[2] = {stream_.matrix(rows, 4 * groups), stream_.matrix(rows, 4 * groups)},
                          convolved = stream_.matrix(rows, g_.hidden),
                          q = stream_.matrix(rows, g_.draft_query_heads * g_.draft_dim),
                          key = stream_.matrix(rows, g_.draft_kv_heads * g_.draft_dim),
                          value = stream_.matrix(rows, g_.draft_kv_heads * g_.draft_dim),
                          mixed = stream_.matrix(rows, g_.draft_query_heads * g_.draft_dim),
                          sub = stream_.matrix(rows, g_.hidden), inner = stream_.matrix(rows, g_.inner),
                          inner_up = stream_.matrix(rows, g_.inner);
  ops::DraftBoundary::End end;
  const auto begin = [&](std::span<const float> base, const pack::Weight& projection, MatrixView<float> of_sublayer) {
    const ops::DraftBoundary boundary{.end = end,
                                      .gain = norm_,
                                      .eps = 1e-6f,
                                      .conv = {base, projection},
                                      .block = g_.block,
                                      .normed = normed,
                                      .coefficients = of_sublayer,
                                      .convolved = convolved};
    end = {base, of_sublayer, sub};
    if (!has(Part::draft_boundaries)) return;
    if (ops::draft_boundary(stream_, x, spare, boundary).data != x.data) std::swap(x, spare);
  };
  ops::embed(stream_, head_, std::span(token_names_).first(rows), x);
  for (int l = 0; l < g_.draft_layers; ++l) {
    const DraftLayer& d = draft_layers_[l];
    begin(d.attention_base, d.attention_projection, coefficients[0]);
    const ops::LinearTarget in[] = {{d.q, q}, {d.k, key}, {d.v, value}};
    if (has(Part::draft_linears)) ops::linear(stream_, convolved, in);
    if (has(Part::draft_attention)) {
      ops::draft_attention(stream_, draft_geometry(), draft_head_norm_, draft_head_norm_, q, key, value, g_.block,
                           block_segments_[l], mixed);
    }
    if (has(Part::draft_linears)) ops::linear(stream_, mixed, d.out, sub);
    begin(d.mlp_base, d.mlp_projection, coefficients[1]);
    if (has(Part::draft_linears)) ops::linear_swiglu(stream_, convolved, d.gate, d.up, inner_up, inner);
    if (has(Part::draft_linears)) ops::linear(stream_, inner, d.down, sub);
  }
  const int chosen = lanes * slots;
  const MatrixView<float> dense = stream_.matrix(chosen, g_.hidden);
  ops::draft_finish(stream_, x, end, 16, g_.block, norm_, 1e-6f, 1, dense);
  const MatrixView<float> logits = stream_.matrix(chosen, g_.vocabulary), projections = stream_.matrix(chosen, g_.rank),
                          values = stream_.matrix(chosen, k);
  const MatrixView<Token> candidates{stream_.allocate<Token>(std::size_t(chosen) * k), chosen, k};
  const ops::LinearTarget of_choice[] = {{head_, logits}, {selector_projection_, projections}};
  if (has(Part::draft_head)) ops::linear(stream_, dense, of_choice);
  if (!has(Part::draft_choice)) return;
  ops::top_k(stream_, logits, std::min(248000, g_.vocabulary), candidates, values);
  ops::selector_walk(stream_, {.weights = selector_,
                               .candidates = candidates,
                               .values = values,
                               .projections = projections,
                               .lanes = lanes,
                               .slots = slots,
                               .choices = choices_,
                               .tokens = verify_tokens_,
                               .laws = laws_});
}

void SyntheticModel::commit_draft(int lanes, int rows, MatrixView<const float> features) {
  const int count = lanes * rows;
  const MatrixView<float> context = stream_.matrix(count, g_.hidden), normed = stream_.matrix(count, g_.hidden);
  ops::linear_norm(stream_, features, fc_, context, norm_, 1e-6f, normed);
  std::vector<ops::DraftContextLayer> layers;
  for (int l = 0; l < g_.draft_layers; ++l) {
    layers.push_back({draft_layers_[l].k, draft_layers_[l].v, draft_head_norm_, context_segments_[l]});
  }
  if (has(Part::context_layers)) ops::draft_contexts(stream_, draft_geometry(), normed, layers);
}

SyntheticModel::StepViews SyntheticModel::step(int lanes, int width) {
  const int rows = lanes * width;
  if (width > 1 && has(Part::draft)) draft_pass(lanes);
  const MatrixView<float> x = stream_.matrix(rows, g_.hidden), normed = stream_.matrix(rows, g_.hidden),
                          logits = stream_.matrix(rows, g_.vocabulary);
  const MatrixView<float> features = width > 1 ? stream_.matrix(rows, g_.taps * g_.hidden) : MatrixView<float>{};
  ops::embed(stream_, head_, std::span(token_names_).subspan(max_rows, rows), x);
  forward(x, normed, lanes, features);
  if (has(Part::target_head)) ops::linear(stream_, normed, head_, logits);
  ops::StepAcceptance acceptance{
      .logits = logits, .limit = std::min(248000, g_.vocabulary), .lanes = lanes, .width = width};
  acceptance.choices = choices_, acceptance.tokens = verify_tokens_, acceptance.laws = laws_;
  acceptance.chosen = chosen_, acceptance.kept = kept_;
  ops::accept(stream_, acceptance);
  if (width > 1 && has(Part::commit)) commit_draft(lanes, width, features);
  return {x, logits, features};
}

void SyntheticModel::prefill(int rows) {
  const MatrixView<float> x = stream_.matrix(rows, g_.hidden);
  ops::embed(stream_, head_, std::span(token_names_).subspan(max_rows, rows), x);
  forward(x, stream_.matrix(rows, g_.hidden), 1, {});
}

}  // namespace splash::bench
