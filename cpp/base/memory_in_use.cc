#include "base/memory_in_use.h"

#include <algorithm>
#include <fstream>
#include <optional>

namespace pfftjax {
namespace {

// The number after a name at the beginning of a line.
std::optional<double> NumberOf(const std::string& name, const std::string& path) {
  std::ifstream file(path);
  std::string word;
  double number;
  while (file >> word) {
    if (word == name && file >> number) return number;
    file.ignore(1 << 10, '\n');
  }
  return std::nullopt;
}

// The number that a file begins with; it may be a word in its place.
std::optional<double> NumberIn(const std::string& path) {
  std::ifstream file(path);
  double number;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

double ControlGroup::ShareInUse() const {
  const std::optional<double> most = NumberIn(limit);
  const std::optional<double> all = NumberIn(used);
  if (!most || !all || *most <= 0) return 0;
  double in_use = *all;
  for (const char* name : {"active_file", "inactive_file"}) {
    in_use -= NumberOf(prefix + name, statistics).value_or(0);
  }
  return in_use / *most;
}

MemoryInUse::MemoryInUse(const std::string& processes, const std::string& groups)
    : of_machine_(processes + "/meminfo") {
  std::ifstream file(processes + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {  // number:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    // The second version of control groups has one tree, for all controllers.
    const bool is_second = controllers.empty();
    if (!is_second && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    // Each group around that of this process may have a limit, too. A container may see its own
    // one at the top of the tree.
    while (true) {
      if (!path.empty() && path.back() == '/') path.pop_back();
      const std::string folder = groups + (is_second ? "" : "/memory") + path + "/memory.";
      const ControlGroup group =
          is_second ? ControlGroup{folder + "max", folder + "current", folder + "stat", ""}
                    : ControlGroup{folder + "limit_in_bytes", folder + "usage_in_bytes",
                                   folder + "stat", "total_"};
      if (NumberIn(group.limit)) groups_.push_back(group);
      if (path.empty()) break;
      path.erase(path.rfind('/'));
    }
  }
}

double MemoryInUse::Share() const {
  double share = 0;
  const std::optional<double> all = NumberOf("MemTotal:", of_machine_);
  const std::optional<double> available = NumberOf("MemAvailable:", of_machine_);
  if (all && available && *all > 0) share = 1 - *available / *all;
  for (const ControlGroup& group : groups_) share = std::max(share, group.ShareInUse());
  return share;
}

}  // namespace pfftjax
