#include "runtime/terminate.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include "runtime/communicator.h"

namespace pfftjax {
namespace {

// Text put together without allocation: a signal handler may do little else.
class SignalSafeLine {
 public:
  SignalSafeLine& operator<<(const char* text) {
    while (*text && size_ + 1 < text_.size()) text_[size_++] = *text++;
    return *this;
  }
  SignalSafeLine& operator<<(int value) {
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
  std::array<char, 512> text_{};
  std::size_t size_ = 0;
};

// " from rank 1 to any rank", of a message.
void SayPartners(SignalSafeLine& line, const Progress& now) {
  for (const auto& [word, rank] :
       {std::pair{" from ", now.source.load()}, {" to ", now.dest.load()}}) {
    if (rank == kNobody) continue;
    line << word;
    if (rank == kAnybody) {
      line << "any rank";
    } else {
      line << "rank " << rank;
    }
  }
}

// A line for each communicator that this rank waits on.
void SayWhere(const char* what_happened, const char* remedy) {
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator* comm = FindCommunicator(i);
    if (!comm || (comm->progress.stage == Stage::kIdle && !comm->is_gathering)) continue;
    SignalSafeLine line;
    line << "pfftjax: rank " << comm->rank << " of " << comm->size << " (communicator "
         << static_cast<int>(i) << ") " << what_happened;
    if (comm->is_gathering) {
      line << comm->gathers_for.c_str() << ", which waits for the other ranks of the communicator";
    } else {
      const Operation operation = comm->progress.operation;
      line << NameOf(operation);
      if (IsMessage(operation)) SayPartners(line, comm->progress);
      if (comm->progress.called_for == comm->progress.entered) line << comm->progress.called;
    }
    line << remedy << "\n";
    line.Write();
  }
}

void OnTerminate(int signal) {
  SayWhere("was terminated while in ",
           "; see above for the rank that failed, or whether the time was up");
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct sigaction before_interrupt{};

// Python would raise KeyboardInterrupt when the call is over, which may be never.
void OnInterrupt(int signal, siginfo_t* info, void* context) {
  SayWhere("was interrupted while in ", "");
  if (before_interrupt.sa_flags & SA_SIGINFO) {
    before_interrupt.sa_sigaction(signal, info, context);
  } else if (before_interrupt.sa_handler != SIG_DFL) {
    before_interrupt.sa_handler(signal);
  } else {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void ReportTermination() {
  struct sigaction present{};
  if (sigaction(SIGTERM, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) {
    struct sigaction ours{};
    ours.sa_handler = OnTerminate;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGTERM, &ours, nullptr);
  }
  if (sigaction(SIGINT, nullptr, &before_interrupt) == 0 &&
      before_interrupt.sa_handler != SIG_IGN) {
    struct sigaction ours = before_interrupt;
    ours.sa_sigaction = OnInterrupt;
    ours.sa_flags |= SA_SIGINFO;
    sigaction(SIGINT, &ours, nullptr);
  }
}

}  // namespace pfftjax
