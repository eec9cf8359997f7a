#include "runtime/call.h"

#include <cstdio>
#include <utility>

#include "runtime/agreement.h"
#include "runtime/call_sites.h"
#include "runtime/departure.h"

namespace pfftjax {
namespace {

// The texts of errors that say that ranks differ start alike, so that tests and users find them.
std::string Differs(const std::string& what, const std::string& how) {
  return what + ": " + how + ". Every rank of a communicator must make the same collectives in " +
         "the same order, with sizes that fit " + kRaisedByAll;
}

// What all ranks of a collective must mean alike, as a hash.
std::uint32_t Meaning(Operation operation, const Payload& payload) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;
  const std::int64_t count = HasOwnCount(operation) ? 0 : payload.count;
  const std::uint64_t kind =
      (static_cast<std::uint64_t>(operation) << 8) | static_cast<std::uint64_t>(payload.element);
  const std::uint64_t mixed =
      (payload.parameters * kOdd ^ static_cast<std::uint64_t>(count)) * kOdd;
  return static_cast<std::uint32_t>(((mixed ^ kind) * kOdd) >> 32);
}

}  // namespace

ffi::Error Call::Begin() {
  Communicator* comm = FindCommunicator(site_.comm);
  if (!comm) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      std::string("pfftjax: ") + NameOf(site_.operation) +
                          " uses communicator number " + std::to_string(site_.comm) +
                          ", which this process has not made; programs from jax.export need the "
                          "communicators used in the same order as when they were exported");
  }
  if (site_.ranks != comm->size) {
    return Failed(site_.operation, *comm,
                  "the program was traced for " + std::to_string(site_.ranks) +
                      " ranks; trace it again for this number of ranks");
  }
  if (comm->busy.exchange(true)) {
    return Failed(site_.operation, *comm,
                  "another thread of this process is in an operation on the same communicator; "
                  "give each Python thread and each device a communicator of its own");
  }
  // Not before `busy` is set: whoever finalizes MPI first refuses calls and then looks at `busy`.
  if (Finalized()) {
    comm->busy = false;
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      std::string("pfftjax: ") + NameOf(site_.operation) + " on " + comm->Where() +
                          " was called after MPI_Finalize");
  }
  if (comm->is_freed && !comm->is_private) {
    comm->busy = false;
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition,
                      FreedText(NameOf(site_.operation), *comm));
  }
  comm_ = comm;
  comm->under_way = this;

  const Options& options = GetOptions();
  if (options.debug) started_ns_ = Nanoseconds();
  Progress& progress = comm->progress;
  // Released each: who reads one of them finds the call before this one at its end, or later.
  progress.operation.store(site_.operation, std::memory_order_release);
  progress.element.store(payload_.element, std::memory_order_release);
  progress.count.store(payload_.count, std::memory_order_release);
  if (site_.HasList()) {
    progress.key.store(KeyOf(site_.program), std::memory_order_release);
    progress.signature.store(site_.signature, std::memory_order_release);
  } else {
    progress.key.store(static_cast<std::uint64_t>(site_.signature), std::memory_order_release);
  }
  if (IsPointToPoint()) {
    progress.source.store(payload_.source, std::memory_order_release);
    progress.dest.store(payload_.dest, std::memory_order_release);
    progress.send_tag.store(payload_.send_tag, std::memory_order_release);
    progress.recv_tag.store(payload_.recv_tag, std::memory_order_release);
    progress.awaited.store(Awaited(), std::memory_order_release);
  }
  // Only the call that holds `busy` counts, so no other count can come between load and store.
  progress.entered.store(progress.entered.load(std::memory_order_relaxed) + 1,
                         std::memory_order_release);
  progress.stage.store(IsPointToPoint() ? Stage::kRunning : Stage::kChecking,
                       std::memory_order_release);

  if (IsPointToPoint()) return ffi::Error::Success();

  // Python has made the duplicates while it traced, except for a program from jax.export.
  if (!comm->is_private.load(std::memory_order_acquire)) {
    if (const int code = MakePrivate(*comm, NameOf(site_.operation)); code != 0) {
      return MpiFailed(site_.operation, *comm, payload_.element, payload_.count, code);
    }
  }
  if (comm->size > 1) {
    if (ffi::Error error = Check(); error.failure()) return error;
  }
  // Idle between: the watch must not take the count of one stage for that of the other.
  progress.stage.store(Stage::kIdle, std::memory_order_relaxed);
  const std::int64_t number = progress.passed.load(std::memory_order_relaxed) + 1;
  progress.MeaningOf(number).store(Meaning(site_.operation, payload_), std::memory_order_release);
  progress.passed.store(number, std::memory_order_release);
  has_passed_ = true;
  progress.stage.store(Stage::kRunning, std::memory_order_release);
  // Where operations run ahead of the GPU, to meet would measure the hosts only, and delay them.
  if (options.profile && comm->size > 1 && !comm->runs_ahead && MeetsForProfile(site_.operation)) {
    if (const int code = Mpi()->barrier(comm->data)) {
      return MpiFailed(site_.operation, *comm, payload_.element, payload_.count, code);
    }
    timed_.HasWaited();
  }
  return ffi::Error::Success();
}

int Call::End() {
  const bool is_empty = payload_.count == 0 && !HasOwnCount(site_.operation) &&
                        site_.operation != Operation::kBarrier && !IsPointToPoint();
  const int code = is_empty && comm_->size > 1 ? Mpi()->barrier(comm_->control) : 0;
  has_succeeded_ = code == 0;
  return code;
}

std::string Call::Compare(std::int64_t hash, const std::function<std::string()>& say,
                          const char* what, int* code) {
  process::Atomic<std::int64_t>& checks = comm_->progress.checks;
  checks.store(checks.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  const std::string how = Disagreement(*comm_, hash, say, code);
  return how.empty() ? how : Differs(what, how);
}

std::string Call::CompareCalls(std::int64_t number, int* code) {
  const std::string what =
      HasOwnCount(site_.operation)
          ? NameOf(site_.operation) + std::string(" ") + InfoOf(payload_.element).name
          : Describe(site_.operation, payload_.element, payload_.count);
  const bool is_in_words = !payload_.detail.empty() || payload_.parameters == 0;
  const std::string detail =
      is_in_words ? payload_.detail : " of parameters " + std::to_string(payload_.parameters);
  const std::string text = what + detail + " as collective " + std::to_string(number);
  const auto hash = static_cast<std::int64_t>(Hash(text.data(), text.size()));
  const auto say = [&] { return text + "\t" + LinesOf(*comm_); };
  return Compare(hash, say, "the ranks' calls differ", code);
}

ffi::Error Call::Refusal(const std::string& how, int code) const {
  if (code != 0) {
    return MpiFailed(site_.operation, *comm_, payload_.element, payload_.count, code);
  }
  return how.empty() ? ffi::Error::Success() : Failed(site_.operation, *comm_, how);
}

void Call::MustAgree() {
  int code = 0;
  const std::string how = CompareCalls(comm_->progress.passed, &code);
  if (code != 0) throw std::runtime_error(ReasonOf(code, *comm_));
  if (!how.empty()) throw std::runtime_error(how);
}

ffi::Error Call::Check() {
  const Options& options = GetOptions();
  Verified* const verified =
      site_.HasList() && options.first_call ? &comm_->Attached<Verified>() : nullptr;
  int code = 0;
  if (verified && site_.signature != verified->latest) {
    if (verified->all.count(site_.signature) == 0) {
      const std::string how = Compare(
          site_.signature,
          [&] { return WithLines(*comm_, site_.signature, ListOf(site_.program)); },
          "this program's collectives differ between ranks", &code);
      if (ffi::Error error = Refusal(how, code); error.failure()) return error;
      verified->all.insert(site_.signature);
    }
    verified->latest = site_.signature;
  }
  if (options.check || comm_->runs_ahead) {
    const std::string how = CompareCalls(comm_->progress.passed + 1, &code);
    return Refusal(how, code);
  }
  return ffi::Error::Success();
}

Call::~Call() {
  if (!comm_) return;
  if (GetOptions().profile) {
    const std::int64_t given = std::exchange(comm_->given_bytes, -1);
    const std::int64_t bytes =
        given >= 0 ? given : payload_.count * InfoOf(payload_.element).bytes;
    timed_.SetBytes(IsSecondHalf(site_.operation) ? 0 : bytes);  // the first half has counted them
    if (comm_->runs_ahead) timed_.RunsAhead();
  }
  if (GetOptions().debug) {
    const std::string what = Describe(site_.operation, payload_.element, payload_.count);
    const std::int64_t bytes = payload_.count * InfoOf(payload_.element).bytes;
    std::fprintf(stderr, "pfftjax rank %d/%d comm %lld call %lld: %s, %lld bytes, %.1f us\n",
                 comm_->rank, comm_->size, static_cast<long long>(comm_->number),
                 static_cast<long long>(comm_->progress.entered.load()), what.c_str(),
                 static_cast<long long>(bytes),
                 static_cast<double>(Nanoseconds() - started_ns_) * 1e-3);
  }
  // What has failed may have meant different things on different ranks, which the program has
  // heard. If it goes on, that is no evidence against the calls that follow.
  if (has_passed_ && !has_succeeded_) {
    comm_->progress.MeaningOf(comm_->progress.passed).store(kUnknown, std::memory_order_release);
  }
  comm_->progress.stage.store(Stage::kIdle, std::memory_order_release);
  comm_->under_way = nullptr;
  comm_->busy.store(false, std::memory_order_release);
}

}  // namespace pfftjax
