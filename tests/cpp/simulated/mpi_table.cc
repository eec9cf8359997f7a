// The table of MPI functions (cpp/mpi/mpi_api.h) over the simulated MPI.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "job.h"
#include "mpi.h"

namespace pfftjax::simulated {
namespace {

Comm& CommOf(MpiHandle handle) {
  if (handle == 0) scheduler->Fail("a call of MPI's without a communicator");
  return *reinterpret_cast<Comm*>(handle);
}

// At the beginning of each call; an error that the job injects, or 0.
int Begin() {
  scheduler->Point();
  Progress();
  Job& job = TheJob();
  if (job.network.fails == 0 || !scheduler->random.Chance(job.network.fails)) return 0;
  ++job.injected;
  return kErrorInjected;
}

void Free(Request* request) { delete request; }

int Wait(Request* request) {
  const int code = WaitFor(request);
  Free(request);
  return code;
}

int Collective(MpiHandle comm, const Part& part) {
  if (const int code = Begin()) return code;
  if (TheJob().clock) {
    CollectOnClock(CommOf(comm), part);
    return 0;
  }
  return Wait(Enter(CommOf(comm), part));
}

int Alltoall(const void* send, void* recv, std::int64_t count, Element element, MpiHandle comm) {
  return Collective(comm, {Kind::kAlltoall, count, element, {}, 0, send, recv, nullptr});
}
int Allgather(const void* send, void* recv, std::int64_t count, Element element, MpiHandle comm) {
  return Collective(comm, {Kind::kAllgather, count, element, {}, 0, send, recv, nullptr});
}
int ReduceScatter(const void* send, void* recv, std::int64_t count, Element element,
                  Reduction reduction, MpiHandle comm) {
  return Collective(comm,
                    {Kind::kReduceScatter, count, element, reduction, 0, send, recv, nullptr});
}
int Allreduce(const void* send, void* recv, std::int64_t count, Element element,
              Reduction reduction, MpiHandle comm) {
  return Collective(comm, {Kind::kAllreduce, count, element, reduction, 0, send, recv, nullptr});
}
int Reduce(const void* send, void* recv, std::int64_t count, Element element, Reduction reduction,
           int root, MpiHandle comm) {
  return Collective(comm, {Kind::kReduce, count, element, reduction, root, send, recv, nullptr});
}
int Scan(const void* send, void* recv, std::int64_t count, Element element, Reduction reduction,
         MpiHandle comm) {
  return Collective(comm, {Kind::kScan, count, element, reduction, 0, send, recv, nullptr});
}
int Exscan(const void* send, void* recv, std::int64_t count, Element element, Reduction reduction,
           MpiHandle comm) {
  return Collective(comm, {Kind::kExscan, count, element, reduction, 0, send, recv, nullptr});
}
int ReduceLocal(const void* in, void* inout, std::int64_t count, Element element,
                Reduction reduction) {
  ReduceInto(in, inout, count, element, reduction);
  return 0;
}
int Bcast(void* buffer, std::int64_t count, Element element, int root, MpiHandle comm) {
  return Collective(comm, {Kind::kBcast, count, element, {}, root, buffer, buffer, nullptr});
}
int Gather(const void* send, void* recv, std::int64_t count, Element element, int root,
           MpiHandle comm) {
  return Collective(comm, {Kind::kGather, count, element, {}, root, send, recv, nullptr});
}
int Scatter(const void* send, void* recv, std::int64_t count, Element element, int root,
            MpiHandle comm) {
  return Collective(comm, {Kind::kScatter, count, element, {}, root, send, recv, nullptr});
}
int Barrier(MpiHandle comm) { return Collective(comm, {}); }

int Sendrecv(const void* send, std::int64_t send_count, Element send_element, int dest,
             int send_tag, void* recv, std::int64_t recv_count, Element recv_element, int source,
             int recv_tag, MpiHandle comm, Envelope* envelope, const HalfEnded& half_ended) {
  if (const int code = Begin()) return code;
  const std::int64_t bytes = InfoOf(recv_element).bytes;
  Comm& on = CommOf(comm);
  Request* const receive = on.Post(recv, recv_count * bytes, source, recv_tag);
  Request* const sent = on.Send(send, send_count * InfoOf(send_element).bytes, dest, send_tag);
  Request* const both[] = {receive, sent};
  int first = 0;
  WaitForAny(both, 2, &first);
  if (half_ended.tell) half_ended.tell(half_ended.state, first == 0);
  WaitFor(both[1 - first]);
  const int code = receive->code != 0 ? receive->code : sent->code;
  *envelope = {receive->source, receive->tag,
               receive->bytes % bytes == 0 ? receive->bytes / bytes : -1};
  Free(receive);
  Free(sent);
  return code;
}

int FromAddress(const void* address, MpiHandle* comm) {
  *comm = reinterpret_cast<MpiHandle>(address);
  return 0;
}
int DuplicateStart(MpiHandle comm, MpiHandle* duplicate, MpiHandle* request) {
  if (const int code = Begin()) return code;
  Part part;
  part.kind = Kind::kDuplicate;
  part.duplicate = duplicate;
  *duplicate = 0;
  *request = reinterpret_cast<MpiHandle>(Enter(CommOf(comm), part));
  return 0;
}
int RankAndSize(MpiHandle comm, int* rank, int* size) {
  *rank = CommOf(comm).RankOf(CurrentProcess());
  *size = CommOf(comm).size();
  return 0;
}

int SendStart(const void* data, std::int64_t bytes, int dest, int tag, MpiHandle comm,
              MpiHandle* request) {
  if (const int code = Begin()) return code;
  *request = reinterpret_cast<MpiHandle>(CommOf(comm).Send(data, bytes, dest, tag));
  return 0;
}
int ReceiveStart(void* data, std::int64_t bytes, int source, int tag, MpiHandle comm,
                 MpiHandle* request) {
  if (const int code = Begin()) return code;
  *request = reinterpret_cast<MpiHandle>(CommOf(comm).Post(data, bytes, source, tag));
  return 0;
}
int WaitEither(MpiHandle* receive, MpiHandle* send, int* received, std::int64_t* bytes) {
  if (const int code = Begin()) return code;
  Request* const requests[] = {receive ? reinterpret_cast<Request*>(*receive) : nullptr,
                               send ? reinterpret_cast<Request*>(*send) : nullptr};
  int which = 0;
  WaitForAny(requests, 2, &which);
  *received = which == 0;
  *bytes = requests[which]->bytes;
  const int code = requests[which]->code;
  Free(requests[which]);
  *(which == 0 ? receive : send) = 0;
  return code;
}

int ProgressOnly(MpiHandle) { return Begin(); }

int Test(MpiHandle* request, int* done, std::int64_t* bytes) {
  *done = 0;
  if (const int code = Begin()) return code;
  int code = 0;
  *done = TestRequest(request, &code, bytes);
  return code;
}
int BarrierStart(MpiHandle comm, MpiHandle* request) {
  if (const int code = Begin()) return code;
  *request = reinterpret_cast<MpiHandle>(Enter(CommOf(comm), {}));
  return 0;
}
int ReceiveWords(std::int64_t* words, int count, int tag, MpiHandle comm, int* source,
                 int* found) {
  *found = 0;
  if (const int code = Begin()) return code;
  Comm& on = CommOf(comm);
  const Message* const message = on.Probe(tag);
  if (!message) return 0;
  *source = message->from;
  *found = 1;
  return Wait(on.Post(words, count * static_cast<std::int64_t>(sizeof *words), *source, tag));
}

int Probe(MpiHandle comm, Envelope* envelope, int* found) {
  *found = 0;
  if (const int code = Begin()) return code;
  const Message* const message = CommOf(comm).Probe(kAnyTag);
  if (!message) return 0;
  *envelope = {message->from, message->tag, message->bytes};
  *found = 1;
  return 0;
}

void ErrorText(int code, char* text, std::size_t size) {
  const char* what = code == kErrorTruncate   ? "a message was truncated"
                     : code == kErrorInjected ? "an error that the simulation injects"
                                              : "unknown";
  std::snprintf(text, size, "%s", what);
}

void Abort(int) {
  Job& job = TheJob();
  job.is_aborted = true;
  job.aborted_at = job.scheduler.now();
  job.scheduler.Stop();
}

}  // namespace

const MpiApi* SimulatedMpi() {
  static const MpiApi api = [] {
    MpiApi made{};
    made.version = kMpiApiVersion;
    made.proc_null = kProcNull;
    made.any_source = kAnySource;
    made.any_tag = kAnyTag;
    made.alltoall = Alltoall;
    made.allgather = Allgather;
    made.reduce_scatter = ReduceScatter;
    made.allreduce = Allreduce;
    made.reduce = Reduce;
    made.scan = Scan;
    made.exscan = Exscan;
    made.reduce_local = ReduceLocal;
    made.bcast = Bcast;
    made.gather = Gather;
    made.scatter = Scatter;
    made.sendrecv = Sendrecv;
    made.barrier = Barrier;
    made.add_op = [](const void*) { return -1; };
    made.write_status = [](void* status, const Envelope& envelope, Element) {
      *static_cast<Envelope*>(status) = envelope;
      return 0;
    };
    made.from_address = FromAddress;
    made.duplicate_start = DuplicateStart;
    made.return_errors = [](MpiHandle) { return 0; };
    made.rank_and_size = RankAndSize;
    made.tag_limit = [](int* limit) {
      *limit = 32767;
      return 0;
    };
    made.send_start = SendStart;
    made.receive_start = ReceiveStart;
    made.wait_either = WaitEither;
    made.progress = ProgressOnly;
    made.test = Test;
    made.barrier_start = BarrierStart;
    made.receive_words = ReceiveWords;
    made.probe = Probe;
    made.error_text = ErrorText;
    made.finalized = [] { return static_cast<int>(CurrentProcess().is_finalized); };
    made.abort = Abort;
    made.on_finalize = [](void (*callback)()) {
      CurrentProcess().at_finalize = callback;
      return 0;
    };
    return made;
  }();
  return &api;
}

}  // namespace pfftjax::simulated
