#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "cache/plan.h"

namespace splash::cache {
namespace {

// The first number in a file that holds only that; nothing for "max" or a file that is not there.
std::optional<std::int64_t> read_number(const char* path) {
  std::int64_t value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

// The number behind `key` in a file of "key number ..." lines.
std::optional<std::int64_t> read_number(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word && word != key) file.ignore(256, '\n');
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace

MachineMemory machine_memory() {
  constexpr std::int64_t kib = 1024;
  MachineMemory memory;
  memory.total_bytes = read_number("/proc/meminfo", "MemTotal:").value_or(0) * kib;
  memory.available_bytes = read_number("/proc/meminfo", "MemAvailable:").value_or(0) * kib;
  // In a container the limit is the group's, and its file pages can be dropped.
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto current = read_number("/sys/fs/cgroup/memory.current");
  if (limit && current && *limit < memory.total_bytes) {
    const std::int64_t file = read_number("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    memory.total_bytes = *limit;
    memory.available_bytes = std::clamp<std::int64_t>(*limit - *current + file, 0, memory.available_bytes);
  }
  return memory;
}

}  // namespace splash::cache
