// Benchmark records: one JSON line per measurement, flushed at once, so that a run that is cut off keeps what it had.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace splash::bench {

struct Measurement {
  std::string name;
  int rows = 0;
  double bytes = 0;  // that must move through device memory
  double flops = 0;
  double median_us = 0;
  double low_us = 0, high_us = 0;
  std::string note;
};

class Records {
 public:
  Records(const char* path, std::string machine, double roof_gb_s)
      : file_(path ? std::fopen(path, "a") : nullptr), machine_(std::move(machine)), roof_(roof_gb_s) {}
  ~Records() {
    if (file_) std::fclose(file_);
  }
  void set_roof(double gb_s) { roof_ = gb_s; }
  void add(const Measurement& m) {
    const double gb_s = m.bytes / m.median_us / 1e3, share = roof_ > 0 ? gb_s / roof_ : 0;
    fmt::print("{:<46} {:>5} rows {:>9.1f} us ({:.1f}..{:.1f}) {:>9.3f} MB {:>6.0f} GB/s {:>5.1f} % of roof{}{}\n",
               m.name, m.rows, m.median_us, m.low_us, m.high_us, m.bytes / 1e6, gb_s, share * 100,
               m.flops > 0 ? fmt::format(" {:.0f} TFLOP/s", m.flops / m.median_us / 1e6) : "",
               m.note.empty() ? "" : "  " + m.note);
    std::fflush(stdout);
    if (!file_) return;
    fmt::print(
        file_,
        R"({{"name":"{}","rows":{},"bytes":{:.0f},"flops":{:.0f},"median_us":{:.2f},"low_us":{:.2f},"high_us":{:.2f},"gb_s":{:.1f},"roof_gb_s":{:.1f},"share_of_roof":{:.4f},"note":"{}",{}}})"
        "\n",
        m.name, m.rows, m.bytes, m.flops, m.median_us, m.low_us, m.high_us, gb_s, roof_, share, m.note, machine_);
    std::fflush(file_);
  }
  void add_cycles(const std::string& name, double cycles) {
    fmt::print("{:<46} {:.1f} cycles\n", name, cycles);
    if (!file_) return;
    fmt::print(file_, R"({{"name":"{}","cycles":{:.2f},{}}})"
               "\n",
               name, cycles, machine_);
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
  std::string machine_;  // JSON members: gpu, driver, clocks, commit
  double roof_;
};

}  // namespace splash::bench
