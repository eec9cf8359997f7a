// How much of the memory that this process may have is in use.
#pragma once

#include <string>
#include <vector>

namespace pfftjax {

// A control group, as Slurm and containers make them: files with its limit, with what is in use,
// and with what of that are copies of files.
struct ControlGroup {
  std::string limit;
  std::string used;
  std::string statistics;
  std::string prefix;  // of the names in the latter

  double ShareInUse() const;
};

class MemoryInUse {
 public:
  // From where the kernel has its files.
  explicit MemoryInUse(const std::string& processes = "/proc",
                       const std::string& groups = "/sys/fs/cgroup");

  // The share of the machine's memory that is in use, by whatever processes, or that of a control
  // group in which this process is, if that is larger. Copies of files, which the kernel drops
  // when memory is wanted, do not count. 0 where nothing is known.
  double Share() const;

 private:
  std::string of_machine_;
  std::vector<ControlGroup> groups_;
};

}  // namespace pfftjax
