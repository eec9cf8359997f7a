// On GPUs: blocks of one size between all ranks, or one rank and all; reductions over them; and
// the sendrecv that all ranks make.
#include "collectives/messages.h"
#include "collectives/reductions.h"
#include "gpu/context.h"
#include "gpu/gpu_handlers.h"
#include "gpu/mirror.h"
#include "gpu/transport.h"

namespace pfftjax::gpu {
namespace {

// One block of `bytes` for each of so many ranks, one after the other; or the same one for all; or
// none.
std::vector<Block> InTurn(int ranks, std::int64_t bytes) {
  std::vector<Block> blocks;
  for (int rank = 0; rank < ranks; ++rank) blocks.push_back({rank * bytes, bytes});
  return blocks;
}
std::vector<Block> Same(int ranks, std::int64_t bytes) {
  return std::vector<Block>(static_cast<std::size_t>(ranks), Block{0, bytes});
}
std::vector<Block> None(int ranks) { return Same(ranks, 0); }

// As RunOn, with the detail in words: these calls may be compared (Communicator::runs_ahead).
template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, const Detail& detail, Body&& body) {
  return pfftjax::RunOn(site, x, detail.Words(), detail.Number(), std::forward<Body>(body));
}

// What is sent from the operand; from a copy where the result takes its place.
const void* Apart(const Operand& x, Result& y, Queue& queue) {
  const void* const send = x.untyped_data();
  if (send != y->untyped_data()) return send;
  const auto bytes = static_cast<std::int64_t>(x.size_bytes());
  void* const copy = queue.Allocate(bytes);
  queue.Copy(copy, send, bytes, Direction::kOnDevice);
  return copy;
}

ffi::Error Alltoall(const CallSite& site, Queue queue, Operand x, Token, Result y, TokenResult) {
  return RunOn(site, x, {}, [&](Communicator& comm, Element) {
    const auto bytes = static_cast<std::int64_t>(x.size_bytes());
    if (bytes == 0) return 0;
    const std::vector<Block> blocks = InTurn(comm.size, bytes / comm.size);
    return ExchangeBytes(comm, Apart(x, y, queue), blocks, y->untyped_data(), blocks, queue);
  });
}

ffi::Error Allgather(const CallSite& site, Queue queue, Operand x, Token, Result y, TokenResult) {
  return RunOn(site, x, {}, [&](Communicator& comm, Element) {
    const auto bytes = static_cast<std::int64_t>(x.size_bytes());
    if (bytes == 0) return 0;
    return ExchangeBytes(comm, x.untyped_data(), Same(comm.size, bytes), y->untyped_data(),
                         InTurn(comm.size, bytes), queue);
  });
}

ffi::Error Bcast(const CallSite& site, Queue queue, std::int32_t root, Operand x, Token, Result y,
                 TokenResult) {
  return RunOn(site, x, {-1, root}, [&](Communicator& comm, Element) {
    const auto bytes = static_cast<std::int64_t>(x.size_bytes());
    if (bytes == 0) return 0;
    Transport& transport = RequireTransport(comm);
    if (comm.rank == root && y->untyped_data() != x.untyped_data()) {
      queue.Copy(y->untyped_data(), x.untyped_data(), bytes, Direction::kOnDevice);
    }
    return transport.Bcast(comm, y->untyped_data(), bytes, root, queue);
  });
}

// All blocks on the root, zeros elsewhere.
ffi::Error Gather(const CallSite& site, Queue queue, std::int32_t root, Operand x, Token, Result y,
                  TokenResult) {
  return RunOn(site, x, {-1, root}, [&](Communicator& comm, Element) {
    const auto bytes = static_cast<std::int64_t>(x.size_bytes());
    if (bytes == 0) return 0;
    const void* const send = Apart(x, y, queue);
    std::vector<Block> to = None(comm.size);
    to[root] = {0, bytes};
    const int code =
        ExchangeBytes(comm, send, to, y->untyped_data(),
                      comm.rank == root ? InTurn(comm.size, bytes) : None(comm.size), queue);
    if (comm.rank != root) {
      queue.Clear(y->untyped_data(), static_cast<std::int64_t>(y->size_bytes()));
    }
    return code;
  });
}

// The operand counts on the root only.
ffi::Error Scatter(const CallSite& site, Queue queue, std::int32_t root, Operand x, Token,
                   Result y, TokenResult) {
  return RunOn(site, *y, {-1, root}, [&](Communicator& comm, Element) {
    const auto bytes = static_cast<std::int64_t>(y->size_bytes());
    if (bytes == 0) return 0;
    std::vector<Block> from = None(comm.size);
    from[root] = {0, bytes};
    return ExchangeBytes(comm, Apart(x, y, queue),
                         comm.rank == root ? InTurn(comm.size, bytes) : None(comm.size),
                         y->untyped_data(), from, queue);
  });
}

// Where nothing arrives the result is zero.
ffi::Error SendrecvAll(const CallSite& site, Queue queue, std::int32_t source, std::int32_t dest,
                       Operand x, Token, Result y, TokenResult) {
  const auto sends = static_cast<std::int64_t>(x.element_count());
  const auto receives = static_cast<std::int64_t>(y->element_count());
  return pfftjax::RunOn(site, x, {}, 0, [&](Communicator& comm, Element element) {
    Transport& transport = RequireTransport(comm);
    Partners mine(comm, source, dest, receives, sends);
    if (ffi::Error error = CheckPartners(site.operation, comm, mine); error.failure())
      return error;
    mine.sent *= InfoOf(element).bytes;
    mine.received *= InfoOf(element).bytes;
    std::vector<Block> to;
    std::vector<Block> from;
    for (int rank = 0; rank < comm.size; ++rank) {
      to.push_back(mine.To(rank));
      from.push_back(mine.From(rank));
    }
    const void* const send = Apart(x, y, queue);
    if (mine.source == kNobody) {
      queue.Clear(y->untyped_data(), static_cast<std::int64_t>(y->size_bytes()));
    }
    const int code = transport.Exchange(comm, send, to, y->untyped_data(), from, queue);
    return code == 0 ? ffi::Error::Success()
                     : MpiFailed(site.operation, comm, element, sends, code);
  });
}

// By way of the host, as any operation goes that has no handler of its own (staged.cc):
// `reduce(x, y)` has both there.
template <typename Body>
int ReduceOnHost(Communicator& comm, const Operand& x, Result& y, Queue& queue, Body&& reduce) {
  const auto in = static_cast<std::int64_t>(x.size_bytes());
  const auto out = static_cast<std::int64_t>(y->size_bytes());
  Mirror mirror(in + out);
  char* const result = mirror.data() + in;
  queue.Copy(mirror.data(), x.untyped_data(), in, Direction::kToHost);
  queue.Synchronize(comm.control);
  if (const int code = reduce(mirror.data(), result)) return code;
  queue.Copy(y->untyped_data(), result, out, Direction::kToDevice);
  mirror.GiveBackAfter(queue);
  return 0;
}

ffi::Error Allreduce(const CallSite& site, Queue queue, std::int32_t op, Operand x, Token,
                     Result y, TokenResult) {
  const auto reduction = static_cast<Reduction>(op);
  return RunOn(site, x, {op, -1}, [&](Communicator& comm, Element element) {
    const auto count = static_cast<std::int64_t>(x.element_count());
    if (count == 0) return 0;
    Transport& transport = RequireTransport(comm);
    if (transport.CanReduce(element, reduction)) {
      return transport.Allreduce(comm, x.untyped_data(), y->untyped_data(), count, element,
                                 reduction, queue);
    }
    return ReduceOnHost(comm, x, y, queue, [&](const void* mine, void* all) {
      return AllreduceInChunks(comm, mine, all, count, element, reduction);
    });
  });
}

// The result on the root, zeros elsewhere.
ffi::Error Reduce(const CallSite& site, Queue queue, std::int32_t op, std::int32_t root, Operand x,
                  Token, Result y, TokenResult) {
  const auto reduction = static_cast<Reduction>(op);
  return RunOn(site, x, {op, root}, [&](Communicator& comm, Element element) {
    const auto count = static_cast<std::int64_t>(x.element_count());
    if (count == 0) return 0;
    Transport& transport = RequireTransport(comm);
    const int code =
        transport.CanReduce(element, reduction)
            ? transport.Reduce(comm, x.untyped_data(), y->untyped_data(), count, element,
                               reduction, root, queue)
            : ReduceOnHost(comm, x, y, queue, [&](const void* mine, void* all) {
                return ReduceInChunks(comm, mine, all, count, element, reduction, root);
              });
    if (comm.rank != root) {
      queue.Clear(y->untyped_data(), static_cast<std::int64_t>(y->size_bytes()));
    }
    return code;
  });
}

ffi::Error ReduceScatter(const CallSite& site, Queue queue, std::int32_t op, Operand x, Token,
                         Result y, TokenResult) {
  const auto reduction = static_cast<Reduction>(op);
  return RunOn(site, x, {op, -1}, [&](Communicator& comm, Element element) {
    const auto block = static_cast<std::int64_t>(y->element_count());
    if (block == 0) return 0;
    Transport& transport = RequireTransport(comm);
    if (transport.CanReduce(element, reduction)) {
      return transport.ReduceScatter(comm, x.untyped_data(), y->untyped_data(), block, element,
                                     reduction, queue);
    }
    return ReduceOnHost(comm, x, y, queue, [&](const void* mine, void* all) {
      return ReduceScatterInChunks(comm, mine, all, block, element, reduction);
    });
  });
}

}  // namespace

std::vector<Registration> CollectiveHandlers() {
  return {
      SiteHandler<Operation::kAlltoall, Alltoall>("pfftjax_alltoall").OnDevice(),
      SiteHandler<Operation::kAllgather, Allgather>("pfftjax_allgather").OnDevice(),
      SiteHandler<Operation::kBcast, Bcast>("pfftjax_bcast", "root").OnDevice(),
      SiteHandler<Operation::kGather, Gather>("pfftjax_gather", "root").OnDevice(),
      SiteHandler<Operation::kScatter, Scatter>("pfftjax_scatter", "root").OnDevice(),
      SiteHandler<Operation::kSendrecvAll, SendrecvAll>("pfftjax_sendrecv_all", "source", "dest")
          .OnDevice(),
      SiteHandler<Operation::kAllreduce, Allreduce>("pfftjax_allreduce", "op").OnDevice(),
      SiteHandler<Operation::kReduce, Reduce>("pfftjax_reduce", "op", "root").OnDevice(),
      SiteHandler<Operation::kReduceScatter, ReduceScatter>("pfftjax_reduce_scatter", "op")
          .OnDevice()};
}

}  // namespace pfftjax::gpu
