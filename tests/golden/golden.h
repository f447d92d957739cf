// The golden fixtures of ../shared/fixtures, packed once per test program, and how far two arrays are apart.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "models/registry.h"
#include "pack/fixture_testing.h"
#include "pack/safetensors.h"
#include "support/random_model.h"

namespace splash::test {

// Expected values of a fixture. Missing names are a failed CHECK.
class Expected {
 public:
  explicit Expected(std::string_view name) {
    auto file = pack::SafetensorsFile::open(fixture(name) / "expected.safetensors");
    SPLASH_CHECK(file.has_value(), "{}", file.error().message);
    file_ = *file;
  }
  std::span<const float> floats(std::string_view name) const { return values<float>(name); }
  std::span<const std::int32_t> ints(std::string_view name) const { return values<std::int32_t>(name); }

 private:
  template <class T>
  std::span<const T> values(std::string_view name) const {
    const pack::TensorView* tensor = file_->find(name);
    SPLASH_CHECK(tensor != nullptr, "{}", name);
    return {reinterpret_cast<const T*>(tensor->data.data()), static_cast<std::size_t>(tensor->elements())};
  }
  std::shared_ptr<const pack::SafetensorsFile> file_;
};

// A packed fixture, kept for the program's life.
inline std::shared_ptr<const pack::Package> golden(const std::string& name, const std::string& draft = "",
                                                   pack::WeightChoice weights = pack::WeightChoice::source) {
  static TemporaryFolder folder;
  static std::map<std::string, std::shared_ptr<const pack::Package>> packages;
  const std::string key = name + "+" + draft + (weights == pack::WeightChoice::q4 ? "-q4" : "-source");
  auto& package = packages[key];
  if (!package) {
    pack::PackOptions options;
    options.weights = weights;
    if (!draft.empty()) options.draft = fixture(draft);
    package = packed(fixture(name), folder.path() / key, options);
  }
  return package;
}

// Largest absolute difference; infinity when the sizes differ or a value is not a number.
inline double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - b[i]);
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
  }
  return most;
}

inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const cpu::Isa isa : {cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512vnni}) {
    if (cpu::supported(isa)) names.emplace_back(cpu::name_of(isa));
  }
  return names;
}

}  // namespace splash::test
