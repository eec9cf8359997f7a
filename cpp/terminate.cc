#include "terminate.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>

#include "communicator.h"

namespace pfftjax {
namespace {

// Text put together without allocation: a signal handler may do little else.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text && size_ + 1 < text_.size()) text_[size_++] = *text++;
    return *this;
  }
  Line& operator<<(int value) {
    std::array<char, 12> digits{};
    std::size_t at = digits.size() - 1;
    do {
      digits[--at] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value > 0);
    return *this << &digits[at];
  }
  void Write() const {
    // Nothing can be done about a failure here.
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 256> text_{};
  std::size_t size_ = 0;
};

void OnTerminate(int signal) {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (!comm || comm->progress.stage == Stage::kIdle) continue;
    Line line;
    line << "pfftjax: rank " << comm->rank << " of " << comm->size << " (communicator "
         << static_cast<int>(i) << ") was terminated while in "
         << NameOf(comm->progress.operation.load())
         << "; see above for the rank that failed, or whether the time was up\n";
    line.Write();
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void ReportTermination() {
  struct sigaction present{};
  if (sigaction(SIGTERM, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
  struct sigaction ours{};
  ours.sa_handler = OnTerminate;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGTERM, &ours, nullptr);
}

}  // namespace pfftjax
