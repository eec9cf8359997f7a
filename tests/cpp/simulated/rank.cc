#include "rank.h"

#include <map>

#include "mpi.h"
#include "runtime/agreement.h"
#include "runtime/departure.h"

namespace pfftjax::simulated {

Array::Array(ffi::DataType type, std::vector<std::int64_t> shape)
    : type(type), shape(std::move(shape)) {
  std::size_t size = ffi::ByteWidth(type);
  for (const std::int64_t extent : this->shape) size *= static_cast<std::size_t>(extent);
  data.assign(size, '\x5a');  // nothing that a right result has
}

void MakeComms(Job& job, const Grid& grid) {
  const auto add = [&](std::vector<int> members) {
    job.comms.push_back(
        std::make_unique<Comm>(std::move(members), static_cast<int>(job.comms.size())));
  };
  // Along axis 0 of the grid, for each place on axis 1; then along axis 1.
  for (int column = 0; column < grid.columns; ++column) {
    std::vector<int> members;
    for (int row = 0; row < grid.rows; ++row) members.push_back(row * grid.columns + column);
    add(std::move(members));
  }
  for (int row = 0; row < grid.rows; ++row) {
    std::vector<int> members;
    for (int column = 0; column < grid.columns; ++column) {
      members.push_back(row * grid.columns + column);
    }
    add(std::move(members));
  }
  add(job.comms[0]->members);
}

void Rank::Begin(bool makes_private) {
  const int row = rank / grid.columns;
  const int column = rank % grid.columns;
  const int mine[] = {0, 1 + column, 1 + grid.columns + row, 1 + grid.columns + grid.rows};
  // As pfftjax/_runtime/communicators.py: those of MPI_COMM_WORLD when pfftjax is imported, the
  // others where a program uses them, or in its first call.
  const auto make_private = [](std::int64_t number) {
    Communicator& comm = *FindCommunicator(number);
    Expect(MakePrivateStart(comm, "a program") == 0, "duplicate_start");
    for (bool is_done = false; !is_done;) {
      Expect(MakePrivatePoll(comm, &is_done) == 0, "duplicate_poll");
      if (!is_done) process::SleepFor(std::chrono::microseconds(100));
    }
    Expect(comm.size == 1 || Disagreement(comm, 1, "settings").empty(), "other settings");
  };
  for (std::int64_t number = kWorld; number <= kOther; ++number) {
    const Comm& comm = *job.comms[static_cast<std::size_t>(mine[number])];
    AddCommunicator(&comm, number == kWorld ? std::vector<int>{} : comm.members);
    if (number == kWorld || makes_private) make_private(number);
  }
}

void Rank::Leave() {
  LeaveStart();
  while (!LeavePoll()) process::SleepFor(std::chrono::milliseconds(1));
}

void Rank::Finalize() {
  PrepareToFinalize();
  CurrentProcess().finalizing = job.scheduler.current();
  CurrentProcess().at_finalize();
  // MPI_Finalize ends what this rank has begun.
  Progress();
  ++CurrentProcess().waits_in_mpi;
  CurrentProcess().is_finalized = true;
}

void Rank::End() {
  Leave();
  Finalize();
}

void Rank::Compute() {
  Random& random = job.scheduler.random;
  if (random.Chance(0.5)) return;
  job.scheduler.Sleep(random.Chance(0.05) ? random.Spread(kMillisecond, 3 * kSecond)
                                          : random.Spread(100, 100 * kMicrosecond));
}

Site::Site(std::int64_t number, std::string_view program)
    : number(number),
      ranks(FindCommunicator(number)->size),
      signature(program.empty()
                    ? 0
                    : static_cast<std::int64_t>(Hash(program.data(), program.size()) | 1)),
      program(program) {}

void* FindHandler(const char* name, const std::type_info& type) {
  static const auto* const handlers = [] {
    auto* found = new std::map<std::string, XLA_FFI_CallFrame>;
    for (const auto& all :
         {CollectiveHandlers(), MessageHandlers(), SameHandlers(), ScanHandlers(), SplitHandlers(),
          RowHandlers(), PencilHandlers(), OwnerHandlers(), RouteHandlers()}) {
      for (const Registration& one : all) {
        reinterpret_cast<XLA_FFI_Handler*>(one.handler)(&(*found)[one.name]);
      }
    }
    return found;
  }();
  const auto found = handlers->find(name);
  if (found == handlers->end()) Wrong(std::string("there is no handler ") + name);
  if (*found->second.type != type) {
    Wrong(std::string(name) + " has other arguments than the simulation gives it");
  }
  return reinterpret_cast<void*>(found->second.function);
}

void Expect(const ffi::Error& error) {
  if (error.failure()) Wrong(error.message());
}

void Wrong(const std::string& what) {
  scheduler->Fail("rank " + std::to_string(CurrentProcess().rank) + ": " + what);
}

}  // namespace pfftjax::simulated
