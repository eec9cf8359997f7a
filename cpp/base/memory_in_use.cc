#include "base/memory_in_use.h"

#include <algorithm>
#include <fstream>
#include <optional>

namespace pfftjax {
namespace {

// The numbers after these names, each at the beginning of a line; 0 for one that is not there.
template <std::size_t kCount>
std::vector<double> NumbersOf(const std::string (&names)[kCount], const std::string& path) {
  std::vector<double> numbers(kCount);
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    const auto name = std::find(std::begin(names), std::end(names), word);
    if (name != std::end(names)) file >> numbers[static_cast<std::size_t>(name - names)];
    constexpr int longest = 1 << 10;
    file.ignore(longest, '\n');
  }
  return numbers;
}

// The number that a file begins with; it may be a word in its place.
std::optional<double> NumberIn(const std::string& path) {
  std::ifstream file(path);
  double number;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace

double ControlGroup::Limit() const {
  double least = 0;
  for (const std::string& path : limits) {
    const double limit = NumberIn(path).value_or(0);
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
  }
  return least;
}

double ControlGroup::ShareInUse(double least) const {
  const double limit = Limit();
  const double all = NumberIn(used).value_or(0);
  if (limit == 0) return 0;
  if (all < least * limit) return all / limit;
  const std::vector<double> files =
      NumbersOf({prefix + "active_file", prefix + "inactive_file"}, statistics);
  return (all - files[0] - files[1]) / limit;
}

MemoryInUse::MemoryInUse(const std::string& processes, const std::string& groups)
    : of_machine_(processes + "/meminfo") {
  const double kilobytes = NumbersOf({"MemTotal:"}, of_machine_)[0];
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
    const bool has_memory = ("," + controllers + ",").find(",memory,") != std::string::npos;
    if (path.empty() || path[0] != '/' || !(is_second || has_memory)) continue;
    // Each group around that of this process may have a limit, too. A container may see its own
    // one at the top of the tree.
    while (true) {
      if (!path.empty() && path.back() == '/') path.pop_back();
      const std::string its = groups + (is_second ? "" : "/memory") + path + "/memory.";
      const ControlGroup group =
          is_second
              ? ControlGroup{{its + "max", its + "high"}, its + "current", its + "stat", ""}
              : ControlGroup{
                    {its + "limit_in_bytes"}, its + "usage_in_bytes", its + "stat", "total_"};
      const double limit = group.Limit();
      // The first version has a large number for no limit.
      if (limit > 0 && (kilobytes == 0 || limit < 1024 * kilobytes)) groups_.push_back(group);
      if (path.empty()) break;
      path.erase(path.rfind('/'));
    }
  }
}

double MemoryInUse::Share(double least) const {
  const std::vector<double> machine = NumbersOf({"MemTotal:", "MemAvailable:"}, of_machine_);
  if (machine[0] == 0 && groups_.empty()) return 1;
  double share = machine[0] == 0 ? 0 : 1 - machine[1] / machine[0];
  for (const ControlGroup& group : groups_) share = std::max(share, group.ShareInUse(least));
  return share;
}

}  // namespace pfftjax
