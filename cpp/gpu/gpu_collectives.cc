// The handlers for GPUs of collectives with blocks of one size, of reductions, and of the sendrecv
// that all ranks make.
#include "collectives/messages.h"
#include "collectives/reductions.h"
#include "gpu/context.h"
#include "gpu/mirror.h"
#include "gpu/transport.h"
#include "runtime/handlers.h"

namespace pfftjax::gpu {
namespace {

// Does what RunOn does, with the detail in words: these calls may be compared
// (Communicator::runs_ahead).
template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, const Detail& detail, Body&& body) {
  return pfftjax::RunOn(site, x, detail.Words(), detail.Number(), std::forward<Body>(body));
}

// Returns where to send the operand from: a copy of it where the result takes its place.
const void* Apart(const Operand& x, Result& y, Queue& queue) {
  const void* const send = x.untyped_data();
  if (send != y->untyped_data()) return send;
  void* const copy = queue.Allocate(BytesOf(x));
  queue.Copy(copy, send, BytesOf(x), Direction::kOnDevice);
  return copy;
}

// The root of a gather has all blocks, and others have zeros; the operand of a scatter counts on
// the root only.
template <Pattern kPattern, typename... Root>
ffi::Error Exchange(const CallSite& site, Queue queue, Root... root, Operand x, Token, Result y,
                    TokenResult) {
  const Detail detail{-1, root...};
  const Operand& alike = kPattern == Pattern::kScatter ? *y : x;
  return RunOn(site, alike, detail, [&](Communicator& comm, Element element) {
    const std::int64_t count = CountOf(alike);
    if (count == 0) return 0;
    const std::int64_t block = kPattern == Pattern::kAlltoall ? count / comm.size : count;
    const void* const send =
        kPattern == Pattern::kAllgather ? x.untyped_data() : Apart(x, y, queue);
    const int code =
        ExchangeBlocks(comm, send, y->untyped_data(),
                       EqualBlocks{kPattern, comm, block, detail.root}, element, queue);
    if (kPattern == Pattern::kGather && comm.rank != detail.root) {
      queue.Clear(y->untyped_data(), BytesOf(*y));
    }
    return code;
  });
}

ffi::Error Bcast(const CallSite& site, Queue queue, std::int32_t root, Operand x, Token, Result y,
                 TokenResult) {
  return RunOn(site, x, {-1, root}, [&](Communicator& comm, Element) {
    const std::int64_t bytes = BytesOf(x);
    if (bytes == 0) return 0;
    Transport& transport = TransportOf(comm);
    if (comm.rank == root && y->untyped_data() != x.untyped_data()) {
      queue.Copy(y->untyped_data(), x.untyped_data(), bytes, Direction::kOnDevice);
    }
    return transport.Bcast(comm, y->untyped_data(), bytes, root, queue);
  });
}

// Where nothing arrives the result is zero.
ffi::Error SendrecvAll(const CallSite& site, Queue queue, std::int32_t source, std::int32_t dest,
                       Operand x, Token, Result y, TokenResult) {
  return pfftjax::RunOn(site, x, {}, 0, [&](Communicator& comm, Element element) {
    TransportOf(comm);  // before the ranks compare their partners
    const Partners mine(comm, source, dest, CountOf(*y), CountOf(x));
    if (ffi::Error error = CheckPartners(site.operation, comm, mine); error.failure())
      return error;
    const void* const send = Apart(x, y, queue);
    if (mine.source == kNobody) queue.Clear(y->untyped_data(), BytesOf(*y));
    const int code = ExchangeBlocks(comm, send, y->untyped_data(), mine, element, queue);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, element, CountOf(x), code);
  });
}

// Goes by way of the host, as any operation does that has no handler of its own (staged.cc).
int ReduceOnHost(Communicator& comm, const Reducing& what, const Operand& x, Result& y,
                 Queue& queue) {
  Mirror mirror(BytesOf(x) + BytesOf(*y));
  char* const result = mirror.data() + BytesOf(x);
  queue.Copy(mirror.data(), x.untyped_data(), BytesOf(x), Direction::kToHost);
  queue.Synchronize(comm.control);
  if (const int code = ReduceInChunks(comm, what, mirror.data(), result)) return code;
  queue.Copy(y->untyped_data(), result, BytesOf(*y), Direction::kToDevice);
  mirror.GiveBackAfter(queue);
  return 0;
}

// There are zeros on ranks without a result.
template <Spread kSpread, typename... Root>
ffi::Error Reduce(const CallSite& site, Queue queue, std::int32_t op, Root... root, Operand x,
                  Token, Result y, TokenResult) {
  const Detail detail{op, root...};
  return RunOn(site, x, detail, [&](Communicator& comm, Element element) {
    const Reducing what{kSpread, static_cast<Reduction>(op), element, CountOf(*y), detail.root};
    if (what.count == 0) return 0;
    Transport& transport = TransportOf(comm);
    const int code = transport.CanReduce(element, what.reduction)
                         ? transport.Reduce(comm, what, x.untyped_data(), y->untyped_data(), queue)
                         : ReduceOnHost(comm, what, x, y, queue);
    if (kSpread == Spread::kRoot && comm.rank != detail.root) {
      queue.Clear(y->untyped_data(), BytesOf(*y));
    }
    return code;
  });
}

}  // namespace

std::vector<Registration> CollectiveHandlers() {
  return {DeviceHandler<Operation::kAlltoall, Exchange<Pattern::kAlltoall>>("pfftjax_alltoall"),
          DeviceHandler<Operation::kAllgather, Exchange<Pattern::kAllgather>>("pfftjax_allgather"),
          DeviceHandler<Operation::kBcast, Bcast>("pfftjax_bcast", "root"),
          DeviceHandler<Operation::kGather, Exchange<Pattern::kGather, std::int32_t>>(
              "pfftjax_gather", "root"),
          DeviceHandler<Operation::kScatter, Exchange<Pattern::kScatter, std::int32_t>>(
              "pfftjax_scatter", "root"),
          DeviceHandler<Operation::kSendrecvAll, SendrecvAll>("pfftjax_sendrecv_all", "source",
                                                              "dest"),
          DeviceHandler<Operation::kAllreduce, Reduce<Spread::kAll>>("pfftjax_allreduce", "op"),
          DeviceHandler<Operation::kReduce, Reduce<Spread::kRoot, std::int32_t>>("pfftjax_reduce",
                                                                                 "op", "root"),
          DeviceHandler<Operation::kReduceScatter, Reduce<Spread::kBlocks>>(
              "pfftjax_reduce_scatter", "op")};
}

}  // namespace pfftjax::gpu
