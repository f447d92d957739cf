#include "pack/geometry.h"

#include <algorithm>

#include "pack/config.h"

namespace splash::pack {
namespace {

struct Bound {
  std::string_view name;
  std::int64_t value;
  std::int64_t least;
  std::int64_t most;
};

Status check_bounds(std::initializer_list<Bound> bounds, std::string_view place) {
  for (const Bound& bound : bounds) {
    if (bound.value < bound.least || bound.value > bound.most) {
      return fail(ErrorKind::corrupt, "{}: {} is {}, it must lie between {} and {}", place, bound.name, bound.value,
                  bound.least, bound.most);
    }
  }
  return {};
}

Status check_real(std::string_view name, double value, double least, double most, std::string_view place) {
  if (value >= least && value <= most) return {};
  return fail(ErrorKind::corrupt, "{}: {} is {}, it must lie between {} and {}", place, name, value, least, most);
}

// Query heads share key heads in equal groups; value heads share key heads of the recurrent mixer likewise.
Status check_multiple(std::string_view many, int count, std::string_view few, int divisor, std::string_view place) {
  if (count % divisor == 0) return {};
  return fail(ErrorKind::corrupt, "{}: {} ({}) is not a multiple of {} ({})", place, many, count, few, divisor);
}

}  // namespace

Status check_geometry(const TargetGeometry& g, std::string_view place) {
  SPLASH_TRY_STATUS(check_bounds({{"vocab_size", g.vocab_size, 1, most_vocab},
                                  {"hidden_size", g.hidden_size, 1, most_width},
                                  {"intermediate_size", g.intermediate_size, 1, most_width},
                                  {"number of layers", std::ssize(g.layers), 1, most_layers},
                                  {"query_heads", g.query_heads, 1, most_heads},
                                  {"kv_heads", g.kv_heads, 1, most_heads},
                                  {"head_dim", g.head_dim, 2, most_head_dim},
                                  {"rotary_dim", g.rotary_dim, 2, g.head_dim},
                                  {"key_heads", g.key_heads, 1, most_heads},
                                  {"value_heads", g.value_heads, 1, most_heads},
                                  {"key_dim", g.key_dim, 1, most_head_dim},
                                  {"value_dim", g.value_dim, 1, most_head_dim},
                                  {"conv_kernel", g.conv_kernel, 2, 16},
                                  {"max_positions", g.max_positions, 1, most_positions}},
                                 place));
  SPLASH_TRY_STATUS(check_bounds(
      {{"width of the queries", std::int64_t{g.query_heads} * g.head_dim, 1, most_width},
       {"width of the conv", std::int64_t{2} * g.key_heads * g.key_dim + std::int64_t{g.value_heads} * g.value_dim, 1,
        most_width}},
      place));
  SPLASH_TRY_STATUS(check_real("rope_theta", g.rope_theta, 1, 1e12, place));
  SPLASH_TRY_STATUS(check_real("rms_eps", g.rms_eps, 0, 1, place));
  SPLASH_TRY_STATUS(check_multiple("query_heads", g.query_heads, "kv_heads", g.kv_heads, place));
  SPLASH_TRY_STATUS(check_multiple("value_heads", g.value_heads, "key_heads", g.key_heads, place));
  return check_multiple("rotary_dim", g.rotary_dim, "two", 2, place);
}

Status check_geometry(const DraftGeometry& g, std::string_view place) {
  SPLASH_TRY_STATUS(check_bounds({{"vocab_size", g.vocab_size, 1, most_vocab},
                                  {"hidden_size", g.hidden_size, 1, most_width},
                                  {"intermediate_size", g.intermediate_size, 1, most_width},
                                  {"layers", g.layers, 1, most_layers},
                                  {"query_heads", g.query_heads, 1, most_heads},
                                  {"kv_heads", g.kv_heads, 1, most_heads},
                                  {"head_dim", g.head_dim, 2, most_head_dim},
                                  {"block_size", g.block_size, 2, 64},
                                  {"mask_token", g.mask_token, 0, g.vocab_size - 1},
                                  {"number of windows", std::ssize(g.windows), g.layers, g.layers},
                                  {"number of taps", std::ssize(g.taps), 1, most_layers},
                                  {"conv_group", g.conv_group, 1, g.hidden_size},
                                  {"selector_rank", g.selector_rank, 1, 65'536},
                                  {"selector_top_k", g.selector_top_k, 1, std::min(256, g.vocab_size)}},
                                 place));
  SPLASH_TRY_STATUS(
      check_bounds({{"width of the queries", std::int64_t{g.query_heads} * g.head_dim, 1, most_width},
                    {"width of the taps", std::ssize(g.taps) * std::int64_t{g.hidden_size}, 1, most_width * 16}},
                   place));
  for (const int window : g.windows) SPLASH_TRY_STATUS(check_bounds({{"window", window, 0, most_positions}}, place));
  int last_tap = -1;
  for (const int tap : g.taps) {
    SPLASH_TRY_STATUS(check_bounds({{"tap (ascending)", tap, last_tap + 1, most_layers - 1}}, place));
    last_tap = tap;
  }
  SPLASH_TRY_STATUS(check_real("rope_theta", g.rope_theta, 1, 1e12, place));
  SPLASH_TRY_STATUS(check_real("rms_eps", g.rms_eps, 0, 1, place));
  SPLASH_TRY_STATUS(check_multiple("query_heads", g.query_heads, "kv_heads", g.kv_heads, place));
  SPLASH_TRY_STATUS(check_multiple("hidden_size", g.hidden_size, "conv_group", g.conv_group, place));
  return check_multiple("head_dim", g.head_dim, "two", 2, place);
}

Status check_match(const TargetGeometry& target, const DraftGeometry& draft, std::string_view place) {
  if (draft.hidden_size != target.hidden_size) {
    return fail(ErrorKind::invalid, "{}: hidden_size of the draft is {}, of the target {}: not a draft for this model",
                place, draft.hidden_size, target.hidden_size);
  }
  if (draft.vocab_size != target.vocab_size) {
    return fail(ErrorKind::invalid, "{}: vocab_size of the draft is {}, of the target {}: not a draft for this model",
                place, draft.vocab_size, target.vocab_size);
  }
  if (draft.taps.back() >= std::ssize(target.layers)) {
    return fail(ErrorKind::invalid, "{}: the draft taps layer {}, the target has {} layers", place, draft.taps.back(),
                target.layers.size());
  }
  return {};
}

}  // namespace splash::pack
