#include "api/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace splash::api {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries seconds_bounds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800};

MetricFamily family(std::string name, std::string help, MetricType type) {
  MetricFamily out;
  out.name = "splash_" + std::move(name);
  out.help = std::move(help);
  out.type = type;
  return out;
}

MetricFamily counter(std::string name, std::string help, std::uint64_t value) {
  MetricFamily out = family(std::move(name), std::move(help), MetricType::Counter);
  out.metric.resize(1);
  out.metric[0].counter.value = static_cast<double>(value);
  return out;
}

MetricFamily gauge(std::string name, std::string help, double value) {
  MetricFamily out = family(std::move(name), std::move(help), MetricType::Gauge);
  out.metric.resize(1);
  out.metric[0].gauge.value = value;
  return out;
}

// One series per label value.
MetricFamily labelled(std::string name, std::string help, MetricType type, const std::string& label,
                      const std::vector<std::pair<std::string, std::uint64_t>>& values) {
  MetricFamily out = family(std::move(name), std::move(help), type);
  for (const auto& [label_value, value] : values) {
    ClientMetric metric;
    metric.label = {{label, label_value}};
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = static_cast<double>(value);
    out.metric.push_back(std::move(metric));
  }
  return out;
}

MetricFamily step_histogram(std::string name, std::string help, const std::vector<double>& bounds_ms,
                            const std::vector<std::uint64_t>& counts, double sum_ms) {
  MetricFamily out = family(std::move(name), std::move(help), MetricType::Histogram);
  ClientMetric metric;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    metric.histogram.bucket.push_back(
        {below, i < bounds_ms.size() ? bounds_ms[i] / 1000.0 : std::numeric_limits<double>::infinity()});
  }
  metric.histogram.sample_count = below;
  metric.histogram.sample_sum = sum_ms / 1000.0;
  out.metric.push_back(std::move(metric));
  return out;
}

std::vector<std::pair<std::string, std::uint64_t>> by_index(const std::vector<std::uint64_t>& values) {
  std::vector<std::pair<std::string, std::uint64_t>> out;
  for (std::size_t i = 0; i < values.size(); ++i) out.emplace_back(std::to_string(i), values[i]);
  return out;
}

void add_engine(const EngineStatus& status, std::vector<MetricFamily>& out) {
  out.push_back(counter("prompt_tokens_total", "Prompt tokens of started requests", status.prompt_tokens));
  out.push_back(counter("cached_tokens_total", "Prompt tokens taken from the prefix cache", status.cached_tokens));
  out.push_back(counter("tokens_generated_total", "Reply tokens chosen", status.reply_tokens));
  out.push_back(counter("steps_total", "Model steps of any kind", status.steps));
  out.push_back(counter("failed_steps_total", "Model steps that failed", status.failed_steps));
  out.push_back(counter("decode_steps_total", "Draft, verify, accept, commit steps of one lane", status.decode_steps));
  out.push_back(counter("decode_rows_total", "Verify rows run", status.decode_rows));
  out.push_back(counter("prefill_rows_total", "Prompt rows run", status.prefill_rows));
  out.push_back(counter("draft_proposed_tokens_total", "Drafted tokens that were verified", status.drafted_tokens));
  out.push_back(counter("draft_accepted_tokens_total", "Drafted tokens that were kept", status.accepted_tokens));
  out.push_back(labelled("draft_proposed_by_position_total", "Drafted tokens verified, by place in the block",
                         MetricType::Counter, "position", by_index(status.drafted_by_position)));
  out.push_back(labelled("draft_accepted_by_position_total", "Drafted tokens kept, by place in the block",
                         MetricType::Counter, "position", by_index(status.accepted_by_position)));
  out.push_back(labelled("generations_total", "Requests by how the engine ended them", MetricType::Counter, "end",
                         {{"stop", status.stopped},
                          {"length", status.cut},
                          {"failed", status.failed},
                          {"refused", status.refused},
                          {"cancelled", status.cancelled},
                          {"timeout", status.timed_out}}));
  out.push_back(counter("suspensions_total", "Lanes given up for want of pages and resumed later", status.suspended));
  out.push_back(counter("snapshots_saved_total", "Recurrent states saved", status.snapshots_saved));
  out.push_back(counter("snapshots_restored_total", "Recurrent states restored", status.snapshots_restored));
  out.push_back(counter("snapshots_evicted_total", "Recurrent states given up", status.snapshots_evicted));
  out.push_back(gauge("requests_queued", "Requests waiting for a lane", static_cast<double>(status.queued)));
  out.push_back(gauge("requests_running", "Requests on a lane", static_cast<double>(status.running)));
  out.push_back(labelled(
      "pages", "KV pages by use", MetricType::Gauge, "use",
      {{"lanes", status.pages_lanes},
       {"cached", status.pages_cached},
       {"free", status.pages_total - std::min(status.pages_total, status.pages_lanes + status.pages_cached)}}));
  out.push_back(labelled("snapshots", "Places for recurrent states by use", MetricType::Gauge, "use",
                         {{"used", status.snapshots_used},
                          {"free", status.snapshots_total - std::min(status.snapshots_total, status.snapshots_used)}}));
  out.push_back(step_histogram("step_seconds", "Duration of a model step", status.step_bounds_ms, status.step_counts,
                               status.step_sum_ms));
  out.push_back(step_histogram("decode_step_seconds", "Duration of a step without prompt rows", status.step_bounds_ms,
                               status.decode_step_counts, status.decode_step_sum_ms));
  const auto spent = [&](const std::string& name, const std::string& what, const EngineStatus::Spent& on) {
    out.push_back(counter(name + "_total", what, on.count));
    out.push_back(counter(name + "_microseconds_total", what + ": the time that took", on.us));
  };
  spent("between_steps", "From a step's results to the step of the same requests that followed at once",
        status.between_steps);
  spent("turnovers", "The same where a request came or went or a state was filed in between", status.turnovers);
  spent("admissions", "Requests given a lane", status.admission);
  spent("filings", "States filed in the prefix cache", status.filing);
}

}  // namespace

struct Metrics::Series {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("splash_requests_total")
                                                          .Help("HTTP requests by status; 499 = the client went away")
                                                          .Register(registry);
  prometheus::Histogram& ttft = prometheus::BuildHistogram()
                                    .Name("splash_http_ttft_seconds")
                                    .Help("From a checked request to its first token")
                                    .Register(registry)
                                    .Add({}, seconds_bounds);
  prometheus::Histogram& generation = prometheus::BuildHistogram()
                                          .Name("splash_generation_seconds")
                                          .Help("From a checked request to the end of its reply")
                                          .Register(registry)
                                          .Add({}, seconds_bounds);
};

Metrics::Metrics() : series_(std::make_unique<Series>()) {}
Metrics::~Metrics() = default;

void Metrics::request_ended(int status) { series_->requests.Add({{"status", std::to_string(status)}}).Increment(); }

void Metrics::first_token_after(Duration since_arrival) {
  series_->ttft.Observe(std::chrono::duration<double>(since_arrival).count());
}

void Metrics::generation_took(Duration since_arrival) {
  series_->generation.Observe(std::chrono::duration<double>(since_arrival).count());
}

std::string Metrics::text(const Backend& backend) const {
  std::vector<MetricFamily> families;
  MetricFamily info = family("info", "The served model", MetricType::Gauge);
  info.metric.resize(1);
  info.metric[0].label = {{"model", backend.model}, {"draft", backend.has_draft ? "yes" : "no"}};
  info.metric[0].gauge.value = 1;
  families.push_back(std::move(info));
  families.push_back(gauge("lanes", "Seats in the running batch", backend.lanes));
  families.push_back(gauge("context_tokens", "Prompt and reply of one request together", backend.context));
  add_engine(backend.status(), families);
  for (MetricFamily& measured : series_->registry.Collect()) families.push_back(std::move(measured));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace splash::api
