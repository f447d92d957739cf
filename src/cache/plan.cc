#include "cache/plan.h"

#include <algorithm>
#include <array>

namespace splash::cache {
namespace {

constexpr std::int64_t mib = std::int64_t{1} << 20;
constexpr std::int64_t gib = std::int64_t{1} << 30;
constexpr int maximum_snapshots = 64;  // eight conversations' worth for eight lanes; more only lengthens the LRU scan
constexpr int cached_contexts = 4;     // full contexts of pages beyond the lanes' own that idle prefixes may fill

int pages_for(std::int64_t tokens) { return static_cast<int>((tokens + link::page_tokens - 1) / link::page_tokens); }

// How many items of `bytes` fit into `spare`, at most `cap`.
int fitting(std::int64_t spare, std::int64_t bytes, std::int64_t cap) {
  if (spare <= 0 || cap <= 0) return 0;
  return static_cast<int>(bytes <= 0 ? cap : std::min(cap, spare / bytes));
}

MemoryPlan sized(const model::Footprint& footprint, int lanes, int pages, int snapshots) {
  MemoryPlan plan{.lanes = lanes, .pages = pages, .snapshots = snapshots};
  plan.weights_bytes = footprint.weights_bytes;
  plan.scratch_bytes = footprint.scratch_bytes;
  plan.lanes_bytes = lanes * footprint.lane_bytes;
  plan.pages_bytes = pages * footprint.page_bytes;
  plan.snapshots_bytes = snapshots * footprint.snapshot_bytes;
  return plan;
}

tl::unexpected<Error> too_small(const MemoryPlan& least, std::int64_t budget, int context, const Wish& wish) {
  const std::int64_t missing = least.used_bytes() - budget;
  std::string fix = wish.max_bytes > 0 ? "raise the memory limit" : "free memory";
  if (wish.lanes > 1) fix += ", ask for fewer lanes";
  return fail_parameter(
      ErrorKind::overloaded, "memory",
      "the model needs {} (weights {}, scratch {}, {} lane(s) {}, {} positions of KV {}, {} snapshots {}) "
      "but may use {}: {} are missing; {} or choose a smaller model",
      format_bytes(least.used_bytes()), format_bytes(least.weights_bytes), format_bytes(least.scratch_bytes),
      least.lanes, format_bytes(least.lanes_bytes), context, format_bytes(least.pages_bytes), least.snapshots,
      format_bytes(least.snapshots_bytes), format_bytes(budget), format_bytes(missing), fix);
}

Status check_wish(const Wish& wish, int model_context) {
  if (wish.lanes < 0 || wish.lanes > link::max_lanes) {
    return fail_parameter(ErrorKind::invalid, "lanes", "lanes must be 1 to {}, not {}", link::max_lanes, wish.lanes);
  }
  if (wish.context < 0 || wish.context > model_context) {
    return fail_parameter(ErrorKind::invalid, "context", "context must be 1 to {} (the model's window), not {}",
                          model_context, wish.context);
  }
  return {};
}

// Whose memory is shared out: a machine's, or a device's beside one that takes what snapshots do not fit.
enum class Home { machine, device };

Result<MemoryPlan> share_out(Home home, const MachineMemory& machine, const model::Footprint& footprint,
                             int model_context, const Wish& wish) {
  SPLASH_TRY_STATUS(check_wish(wish, model_context));
  // The system and our own code, buffers and connections live in the reserve.
  const std::int64_t reserve = std::clamp(machine.total_bytes / 16, 512 * mib, 8 * gib);
  std::int64_t budget = std::max<std::int64_t>(0, std::min(machine.available_bytes, machine.total_bytes) - reserve);
  if (wish.max_bytes > 0) budget = std::min(budget, wish.max_bytes);

  const int least_context = std::min(minimum_context, model_context);
  const int wanted_context = wish.context > 0 ? wish.context : least_context;
  const int least_lanes = std::max(wish.lanes, 1);
  const int least_snapshots = home == Home::machine ? minimum_snapshots : 0;
  const MemoryPlan least = sized(footprint, least_lanes, pages_for(wanted_context), least_snapshots);
  std::int64_t spare = budget - least.used_bytes();
  if (spare < 0) {
    const MemoryPlan bare = sized(footprint, least_lanes, pages_for(least_context), least_snapshots);
    if (wish.context <= least_context || bare.used_bytes() > budget) {
      return too_small(least, budget, wanted_context, wish);
    }
    const std::int64_t most = pages_for(least_context) + (budget - bare.used_bytes()) / footprint.page_bytes;
    return fail_parameter(ErrorKind::invalid, "context",
                          "a context of {} does not fit: {} are missing; the largest that fits with {} lane(s) is {}",
                          wish.context, format_bytes(-spare), least_lanes, most * link::page_tokens);
  }

  // A quarter of what is spare for more lanes, a quarter of the rest for snapshots, the rest for pages: the pages also
  // bound the context, and a snapshot without its pages is worth nothing. What has a host beside it gives them less, and
  // nothing that one request could fill.
  int lanes = least_lanes;
  if (wish.lanes == 0) lanes += fitting(spare / 4, footprint.lane_bytes, link::max_lanes - 1);
  spare -= (lanes - least_lanes) * footprint.lane_bytes;
  const int context_pages = pages_for(wish.context > 0 ? wish.context : model_context);
  const std::int64_t for_snapshots =
      home == Home::machine ? spare / 4 : (spare - (context_pages - least.pages) * footprint.page_bytes) / 8;
  const int more_snapshots = fitting(for_snapshots, footprint.snapshot_bytes, maximum_snapshots - least_snapshots);
  spare -= more_snapshots * footprint.snapshot_bytes;
  const std::int64_t useful_pages = std::int64_t{context_pages} * (lanes + cached_contexts);
  const int more_pages = fitting(spare, footprint.page_bytes, useful_pages - least.pages);

  MemoryPlan result = sized(footprint, lanes, least.pages + more_pages, least_snapshots + more_snapshots);
  result.context = wish.context > 0 ? wish.context : std::min(model_context, result.pages * link::page_tokens);
  result.reserve_bytes = reserve;
  result.budget_bytes = budget;
  return result;
}

}  // namespace

Result<MemoryPlan> plan(const MachineMemory& machine, const model::Footprint& footprint, int model_context,
                        const Wish& wish) {
  return share_out(Home::machine, machine, footprint, model_context, wish);
}

Result<MemoryPlan> plan_on_device(const MachineMemory& device, const MachineMemory& host,
                                  const model::Footprint& footprint, int model_context, const Wish& wish) {
  SPLASH_TRY(MemoryPlan result, share_out(Home::device, device, footprint, model_context, wish));
  const std::int64_t reserve = std::clamp(host.total_bytes / 16, 512 * mib, 8 * gib);
  const std::int64_t spare = std::min(host.available_bytes, host.total_bytes) - reserve;
  const int least = std::max(minimum_snapshots - result.snapshots, 0);
  if (fitting(spare, footprint.snapshot_bytes, least) < least) {
    return fail_parameter(ErrorKind::overloaded, "memory",
                          "{} places to resume from need {} of host memory, {} are to spare: free memory", least,
                          format_bytes(least * footprint.snapshot_bytes),
                          format_bytes(std::max<std::int64_t>(spare, 0)));
  }
  result.host_snapshots =
      std::max(least, fitting(spare / 4, footprint.snapshot_bytes, maximum_snapshots - result.snapshots));
  result.host_snapshots_bytes = result.host_snapshots * footprint.snapshot_bytes;
  result.snapshots += result.host_snapshots;
  return result;
}

std::string describe(const MemoryPlan& plan) {
  std::string host;
  if (plan.host_snapshots > 0) {
    host = fmt::format(", {} of them in {} of host memory", plan.host_snapshots, format_bytes(plan.host_snapshots_bytes));
  }
  return fmt::format(
      "weights    {:>9}\n"
      "scratch    {:>9}\n"
      "lanes      {:>9}  {} requests at once\n"
      "KV pages   {:>9}  {} pages of {} tokens\n"
      "snapshots  {:>9}  {} places to resume from{}\n"
      "together   {:>9}  of {} that may be used\n"
      "context    {:>9}  tokens of prompt and reply in one request\n",
      format_bytes(plan.weights_bytes), format_bytes(plan.scratch_bytes), format_bytes(plan.lanes_bytes), plan.lanes,
      format_bytes(plan.pages_bytes), plan.pages, link::page_tokens, format_bytes(plan.snapshots_bytes), plan.snapshots,
      host, format_bytes(plan.used_bytes()), format_bytes(plan.budget_bytes), plan.context);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

}  // namespace splash::cache
