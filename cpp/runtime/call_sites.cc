#include "runtime/call_sites.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/process.h"

namespace pfftjax {
namespace {

constexpr std::size_t kKeyBytes = sizeof(std::uint64_t);
constexpr std::size_t kMostLines = 3;       // that a text names
constexpr std::size_t kMostKept = 16;       // programs and lines of one key
constexpr std::size_t kMostEagerCalls = 8;  // that may be waiting for each other

struct Site {
  struct Line {
    std::int64_t program;
    std::string text;
  };
  std::uint64_t before = 0;
  std::vector<Line> lines;  // the latest first
};

// The programs with one list of collectives, and the key of the last of these.
struct Programs {
  std::uint64_t last = 0;
  std::set<std::int64_t> numbers;
};

struct EagerCall {
  std::int64_t entered;  // calls that the communicator had begun before
  std::string operation;
  std::string line;
};

using Place = std::pair<std::int64_t, std::uint64_t>;  // communicator, and key or signature

struct Table {
  process::Mutex mutex;
  std::map<Place, Site> sites;
  std::map<Place, Programs> programs;  // by signature
  std::map<std::int64_t, std::deque<EagerCall>> eager;
};

// The watch outlives static destruction where MPI is never finalized.
Table& TheTable() { return process::Lasting<Table>(); }

std::uint64_t ToKey(std::string_view text) {
  std::uint64_t key = 0;
  if (text.size() >= kKeyBytes) std::memcpy(&key, text.data(), kKeyBytes);
  return key;
}

bool HasKey(std::string_view program) {
  return program.size() == kKeyBytes || (program.size() > kKeyBytes && program[kKeyBytes] == '\n');
}

std::uint64_t Unsigned(std::int64_t signature) { return static_cast<std::uint64_t>(signature); }

void AddOnce(std::vector<std::string>& lines, const std::string& line) {
  if (!line.empty() && std::find(lines.begin(), lines.end(), line) == lines.end()) {
    lines.push_back(line);
  }
}

// The lines of those calls outside of jit that may be the one that is under way. Such calls begin
// in the order in which they were made, so one that was made when all before had begun is certain.
std::vector<std::string> EagerLines(Table& table, std::int64_t number, std::int64_t entered,
                                    const char* operation, bool* is_certain) {
  std::vector<std::string> lines;
  *is_certain = false;
  const auto found = table.eager.find(number);
  if (found == table.eager.end()) return lines;
  const auto& calls = found->second;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (call->operation != operation || call->entered >= entered) continue;
    if (call->entered == entered - 1) {
      *is_certain = true;
      return {call->line};
    }
    if (call->entered + static_cast<std::int64_t>(kMostEagerCalls) >= entered) {
      AddOnce(lines, call->line);
    }
  }
  return lines;
}

// The lines of a site in these programs, or in any where that leaves none.
std::vector<std::string> LoweredLines(const Site& site, const std::set<std::int64_t>& programs) {
  std::vector<std::string> lines;
  for (const Site::Line& line : site.lines) {
    if (programs.count(line.program) > 0) AddOnce(lines, line.text);
  }
  if (!lines.empty()) return lines;
  for (const Site::Line& line : site.lines) AddOnce(lines, line.text);
  return lines;
}

std::string Join(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) {
    text += (i == 0 ? "" : i + 1 == lines.size() ? " or " : ", ") + lines[i];
  }
  return lines.size() > kMostLines ? text + " or elsewhere" : text;
}

}  // namespace

std::uint64_t KeyOf(std::string_view program) { return HasKey(program) ? ToKey(program) : 0; }

std::string_view ListOf(std::string_view program) {
  if (!HasKey(program)) return program;
  return program.size() > kKeyBytes ? program.substr(kKeyBytes + 1) : std::string_view{};
}

void NoteCall(std::int64_t comm, std::string_view key, std::string_view before,
              std::int64_t signature, std::int64_t program, const std::string& line) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  Site& site = table.sites[{comm, ToKey(key)}];
  site.before = ToKey(before);
  if (signature != 0) {
    Programs& programs = table.programs[{comm, Unsigned(signature)}];
    programs.last = ToKey(key);
    programs.numbers.insert(program);
    if (programs.numbers.size() > kMostKept) programs.numbers.erase(programs.numbers.begin());
  }
  if (line.empty()) return;
  site.lines.insert(site.lines.begin(), {program, line});
  if (site.lines.size() > kMostKept) site.lines.pop_back();
}

void NoteEagerCall(const Communicator& comm, const std::string& operation,
                   const std::string& line) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  auto& calls = table.eager[comm.number];
  calls.push_back({comm.progress.entered.load(), operation, line});
  if (calls.size() > kMostEagerCalls) calls.pop_front();
}

std::string LinesOf(const Communicator& comm) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  const Progress& now = comm.progress;
  bool is_certain = false;
  std::vector<std::string> lines =
      EagerLines(table, comm.number, now.entered, NameOf(now.operation), &is_certain);
  const auto site = table.sites.find({comm.number, now.key.load()});
  if (!is_certain && site != table.sites.end()) {
    // Nothing says to which program a message belongs.
    const bool is_message = IsMessage(now.operation);
    std::vector<std::string> lowered = LoweredLines(
        site->second, is_message ? std::set<std::int64_t>{}
                                 : table.programs[{comm.number, Unsigned(now.signature)}].numbers);
    for (const std::string& line : lines) AddOnce(lowered, line);
    lines = std::move(lowered);
  }
  return Join(lines);
}

std::string CalledAt(const Communicator& comm) {
  const std::string lines = LinesOf(comm);
  return lines.empty() ? lines : ", called at " + lines;
}

std::string WithLines(const Communicator& comm, std::int64_t signature, std::string_view list) {
  std::vector<std::string> lines;  // from the last collective to the first
  {
    Table& table = TheTable();
    const std::lock_guard lock(table.mutex);
    const Programs& programs = table.programs[{comm.number, Unsigned(signature)}];
    std::uint64_t key = programs.last;
    while (key != 0) {
      const auto site = table.sites.find({comm.number, key});
      if (site == table.sites.end()) break;
      lines.push_back(Join(LoweredLines(site->second, programs.numbers)));
      key = site->second.before;
    }
  }
  // A call outside of jit is a program of one collective.
  if (lines.size() == 1) lines[0] = LinesOf(comm);
  std::string text;
  for (auto line = lines.rbegin(); !list.empty(); line += line == lines.rend() ? 0 : 1) {
    const std::size_t end = std::min(list.find('\n'), list.size());
    text.append(list.substr(0, end));
    if (line != lines.rend() && !line->empty()) text.append("\t").append(*line);
    list = list.substr(std::min(end + 1, list.size()));
    if (!list.empty()) text.append("\n");
  }
  return text;
}

ShortText::ShortText(const std::string& text) {
  constexpr std::string_view kLeftOut = "...";
  if (text.size() <= text_.size()) {
    std::copy(text.begin(), text.end(), text_.begin());
  } else {
    const auto rest = std::copy(kLeftOut.begin(), kLeftOut.end(), text_.begin());
    std::copy(text.end() - (text_.end() - rest), text.end(), rest);
  }
}

ShortText::ShortText(const std::int64_t* words) { std::memcpy(text_.data(), words, text_.size()); }

void ShortText::Write(std::int64_t* words) const {
  std::memcpy(words, text_.data(), text_.size());
}

std::string ShortText::Text() const {
  return {text_.begin(), std::find(text_.begin(), text_.end(), '\0')};
}

}  // namespace pfftjax
