// How much of the memory that this process may have is in use.
#pragma once

#include <string>
#include <vector>

namespace pfftjax {

// A control group, as Slurm and containers make them: files with its limits, with what is in use,
// and with what of that are copies of files.
struct ControlGroup {
  std::vector<std::string> limits;
  std::string used;
  std::string statistics;
  std::string prefix;  // of the names in the latter

  // The least of its limits in bytes, or 0 where there is none.
  double Limit() const;
  // Copies of files count in it only where all that is in use is less than `least` of the limit.
  double ShareInUse(double least) const;
};

class MemoryInUse {
 public:
  // From where the kernel has its files.
  explicit MemoryInUse(const std::string& processes = "/proc",
                       const std::string& groups = "/sys/fs/cgroup");

  // The share of the machine's memory that is in use, by whatever processes, or that of a control
  // group in which this process is, if that is larger. Copies of files, which the kernel drops
  // when memory is wanted, do not count, but may in a group where the share is below `least`. 1
  // where nothing is known.
  double Share(double least = 0) const;

 private:
  std::string of_machine_;
  std::vector<ControlGroup> groups_;
};

}  // namespace pfftjax
