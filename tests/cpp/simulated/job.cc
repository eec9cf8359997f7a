#include "job.h"

#include "memory.h"
#include "mpi.h"
#include "runtime/communicator.h"

namespace pfftjax::simulated {
namespace {

Job* job = nullptr;

}  // namespace

Job& TheJob() { return *job; }

Job::Job(std::uint64_t seed, int ranks) : scheduler(seed), ranks(ranks) {
  job = this;
  simulated::scheduler = &scheduler;
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(std::make_unique<Process>());
    processes.back()->rank = rank;
    all.push_back(rank);
  }
  comms.push_back(std::make_unique<Comm>(all, 0));
}

Job::~Job() {
  for (const auto& process : processes) {
    process_outside = process.get();
    for (std::int64_t i = 0; i < CommunicatorCount(); ++i) delete FindCommunicator(i);
    for (const Process::Object& object : process->objects) {
      if (object.data) object.destroy(object.data);
    }
  }
  ResetMemory();
  simulated::scheduler = nullptr;
  job = nullptr;
}

// The calls that a rank is in.
std::string DescribeCalls(Process& process) {
  std::string text;
  process_outside = &process;
  Task* const current = simulated::scheduler->SetCurrent(nullptr);
  for (std::int64_t i = 0; i < CommunicatorCount(); ++i) {
    const Communicator& comm = *FindCommunicator(i);
    const pfftjax::Progress& progress = comm.progress;
    if (progress.stage == Stage::kIdle && !comm.is_gathering) continue;
    text += "\n  " + comm.Where() + " on communicator " + std::to_string(i) +
            (comm.is_gathering                    ? " makes the duplicates before "
             : progress.stage == Stage::kChecking ? " is in the check before "
                                                  : " is in ") +
            NameOf(progress.operation) + ", after " + std::to_string(progress.passed) +
            " collectives";
  }
  simulated::scheduler->SetCurrent(current);
  return text;
}

void Job::Run(const std::function<void(int)>& body) {
  for (int rank = 0; rank < ranks; ++rank) {
    scheduler.Start(*processes[static_cast<std::size_t>(rank)], [this, body, rank] {
      LoadMpi("");  // this program itself
      body(rank);
    });
  }
  scheduler.describe = DescribeCalls;
  scheduler.Run();
}

void Job::Die() {
  CurrentProcess().is_dead = true;
  scheduler.Block("death");
  std::abort();
}

}  // namespace pfftjax::simulated

extern "C" const pfftjax::MpiApi* pfftjax_mpi_api() { return pfftjax::simulated::SimulatedMpi(); }
