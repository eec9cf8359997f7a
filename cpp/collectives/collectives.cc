// The collectives that MPI has, as FFI handlers: one function an operation.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/copies.h"
#include "base/options.h"
#include "collectives/exchange.h"
#include "collectives/node_exchange.h"
#include "collectives/reductions.h"
#include "runtime/handlers.h"
#include "runtime/node.h"

namespace pfftjax {
namespace {

// Prepares the result and runs `body(comm, element)`, with MPI's code back.
template <typename Body>
ffi::Error RunInto(Result& y, const CallSite& site, const Operand& x, Detail detail, Body&& body) {
  PrepareToWrite(y->untyped_data(), y->size_bytes());
  return RunOn(site, x, detail.Say(), detail.Number(), std::forward<Body>(body));
}

// An alltoall between several nodes, some of them with several ranks. Small blocks travel together
// with those of the other ranks of a node, where that spares many messages: the ranks of a node
// wait for each other on the way. Where larger blocks fill the links, their messages cost nothing
// beside that, and smaller ones would be mostly the rest of a cache line.
template <typename ByMpi>
int AlltoallBetweenNodes(Communicator& comm, const void* x, void* y, std::int64_t bytes,
                         ByMpi&& by_mpi) {
  constexpr std::int64_t kLeastBytes = process::Size(64);
  constexpr std::int64_t kMostBytes = 256;
  if (!GetOptions().shared_memory || bytes == 0 || bytes < kLeastBytes || bytes > kMostBytes) {
    return by_mpi();
  }
  const Nodes& nodes = NodesOf(comm);
  const std::int64_t away = comm.size - nodes.RanksOnNodeOf(0);
  if (!nodes.AreMixed() || away - nodes.MostSends(0) < GetOptions().least_spared) return by_mpi();
  const NodeExchange::Pieces moved{{{comm.size, comm.size, bytes}, bytes}};
  Window* window = nullptr;
  const std::int64_t wanted = NodeExchange::WindowBytes(nodes, moved);
  if (const int code = WindowOnNode(comm, wanted, &window)) return code;
  if (!window) return by_mpi();

  const auto size = static_cast<std::size_t>(bytes);
  const auto* const blocks = static_cast<const char*>(x);
  auto* const results = static_cast<char*>(y);
  NodeExchange exchange(comm, *window, nodes, moved);
  if (const int code = exchange.Begin()) return code;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (rank == comm.rank) continue;
    process::Writes(exchange.To(rank), size);
    std::memcpy(exchange.To(rank), blocks + rank * bytes, size);
  }
  if (const int code = exchange.Send()) return code;
  if (x != y) std::memcpy(results + comm.rank * bytes, blocks + comm.rank * bytes, size);
  if (const int code = exchange.Arrive()) return code;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (rank == comm.rank) continue;
    process::Reads(exchange.From(rank), size);
    std::memcpy(results + rank * bytes, exchange.From(rank), size);
  }
  return 0;
}

// An alltoall or an allgather.
template <Pattern kPattern>
ffi::Error Exchange(const CallSite& site, Operand x, Token, Result y, TokenResult) {
  return RunInto(y, site, x, {}, [&](Communicator& comm, Element element) {
    constexpr bool is_same_for_all = kPattern == Pattern::kAllgather;
    const std::int64_t block = is_same_for_all ? CountOf(x) : CountOf(x) / comm.size;
    const auto by_mpi = [&] {
      const void* send = x.untyped_data();
      // Other ranks need not be in place: the messages are the same.
      const bool is_in_place = !is_same_for_all && send == y->untyped_data();
      const std::unique_ptr<char[]> copy(is_in_place ? new char[x.size_bytes()] : nullptr);
      if (is_in_place) send = std::memcpy(copy.get(), send, x.size_bytes());
      if (block * comm.size <= ChunkElements(element)) {
        const auto exchange = is_same_for_all ? Mpi()->allgather : Mpi()->alltoall;
        return exchange(send, y->untyped_data(), block, element, comm.data);
      }
      const EqualBlocks blocks{kPattern, comm, block};
      return ExchangeBlocks(comm, send, y->untyped_data(), blocks, element);
    };
    const std::int64_t bytes = block * InfoOf(element).bytes;
    if (Node* const node = NodeOf(comm)) {
      return node->Exchange(x.untyped_data(), y->untyped_data(), {bytes, element, is_same_for_all},
                            by_mpi);
    }
    if (is_same_for_all) return by_mpi();
    return AlltoallBetweenNodes(comm, x.untyped_data(), y->untyped_data(), bytes, by_mpi);
  });
}

// A reduction. On ranks without a result there are zeros: a reduction to a root is the adjoint of
// Bcast.
template <Spread kSpread, typename... Root>
ffi::Error Reduce(const CallSite& site, std::int32_t op, Root... root, Operand x, Token, Result y,
                  TokenResult) {
  const Detail detail{op, root...};
  return RunInto(y, site, x, detail, [&](Communicator& comm, Element element) {
    if (kSpread == Spread::kRoot && comm.rank != detail.root) {
      Clear(y->untyped_data(), y->size_bytes());
    }
    return ReduceInChunks(comm,
                          {kSpread, static_cast<Reduction>(op), element, CountOf(*y), detail.root},
                          x.untyped_data(), y->untyped_data());
  });
}

ffi::Error Bcast(const CallSite& site, std::int32_t root, Operand x, Token, Result y,
                 TokenResult) {
  return RunInto(y, site, x, {-1, root}, [&](Communicator& comm, Element element) {
    if (comm.rank == root && y->untyped_data() != x.untyped_data()) {
      std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
    }
    return ForEachChunk(CountOf(x), ChunkElements(element),
                        [&](std::int64_t offset, std::int64_t count) {
                          return Mpi()->bcast(At(y->untyped_data(), offset, element), count,
                                              element, root, comm.data);
                        });
  });
}

// A gather: all blocks on the root, zeros elsewhere; or its adjoint, a scatter, whose operand
// counts on the root only. All ranks have one block alike.
template <Pattern kPattern>
ffi::Error Rooted(const CallSite& site, std::int32_t root, Operand x, Token, Result y,
                  TokenResult) {
  constexpr bool is_gather = kPattern == Pattern::kGather;
  const Operand& one = is_gather ? x : *y;
  return RunInto(y, site, one, {-1, root}, [&](Communicator& comm, Element element) {
    const std::int64_t block = CountOf(one);
    if (is_gather && comm.rank != root) Clear(y->untyped_data(), y->size_bytes());
    if (block == 0) return 0;
    if (block * comm.size <= ChunkElements(element)) {
      const auto move = is_gather ? Mpi()->gather : Mpi()->scatter;
      return move(x.untyped_data(), y->untyped_data(), block, element, root, comm.data);
    }
    return ExchangeBlocks(comm, x.untyped_data(), y->untyped_data(),
                          EqualBlocks{kPattern, comm, block, root}, element);
  });
}

ffi::Error Barrier(const CallSite& site, Token, TokenResult) {
  return Run(site, Payload{}, [](Communicator& comm) { return Mpi()->barrier(comm.data); });
}

}  // namespace

Element ElementOf(ffi::DataType type) {
  constexpr std::array types = {ffi::PRED, ffi::S8,  ffi::S16, ffi::S32, ffi::S64,
                                ffi::U8,   ffi::U16, ffi::U32, ffi::U64, ffi::F16,
                                ffi::BF16, ffi::F32, ffi::F64, ffi::C64, ffi::C128};
  static_assert(types.size() == kElements.size());
  const auto found = std::find(types.begin(), types.end(), type);
  if (found == types.end()) {
    throw std::runtime_error("there is no MPI type for XLA element type " +
                             std::to_string(static_cast<int>(type)));
  }
  return static_cast<Element>(found - types.begin());
}

std::vector<Registration> CollectiveHandlers() {
  return {SiteHandler<Operation::kAlltoall, Exchange<Pattern::kAlltoall>>("pfftjax_alltoall"),
          SiteHandler<Operation::kAllgather, Exchange<Pattern::kAllgather>>("pfftjax_allgather"),
          SiteHandler<Operation::kReduceScatter, Reduce<Spread::kBlocks>>("pfftjax_reduce_scatter",
                                                                          "op"),
          SiteHandler<Operation::kAllreduce, Reduce<Spread::kAll>>("pfftjax_allreduce", "op"),
          SiteHandler<Operation::kReduce, Reduce<Spread::kRoot, std::int32_t>>("pfftjax_reduce",
                                                                               "op", "root"),
          SiteHandler<Operation::kBcast, Bcast>("pfftjax_bcast", "root"),
          SiteHandler<Operation::kGather, Rooted<Pattern::kGather>>("pfftjax_gather", "root"),
          SiteHandler<Operation::kScatter, Rooted<Pattern::kScatter>>("pfftjax_scatter", "root"),
          SiteHandler<Operation::kBarrier, Barrier>("pfftjax_barrier")};
}

}  // namespace pfftjax
