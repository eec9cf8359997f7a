// The collectives that MPI has, as FFI handlers: one function an operation.
#include <cstring>
#include <memory>
#include <string>

#include "base/copies.h"
#include "collectives/exchange.h"
#include "collectives/reductions.h"
#include "runtime/agreement.h"
#include "runtime/handlers.h"
#include "runtime/node.h"

namespace pfftjax {
namespace {

// Prepares the result and runs `body(comm, element)`, with MPI's code back.
template <typename Body>
ffi::Error RunInto(Result& y, const CallSite& site, const Operand& x, Detail detail, Body&& body) {
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return RunOn(site, x, detail.Say(), detail.Number(), std::forward<Body>(body));
}

ffi::Error Alltoall(const CallSite& site, Operand x, Token, Result y, TokenResult) {
  return RunInto(y, site, x, {}, [&](Communicator& comm, Element element) {
    const auto total = static_cast<std::int64_t>(x.element_count());
    const std::int64_t block = total / comm.size;
    const auto by_mpi = [&] {
      const void* send = x.untyped_data();
      // Other ranks need not be in place: the messages are the same.
      const bool is_in_place = send == y->untyped_data();
      const std::unique_ptr<char[]> copy(is_in_place ? new char[x.size_bytes()] : nullptr);
      if (is_in_place) send = std::memcpy(copy.get(), send, x.size_bytes());
      if (total <= ChunkElements(element)) {
        return Mpi()->alltoall(send, y->untyped_data(), block, element, comm.data);
      }
      const auto place = [block](int rank) { return Block{rank * block, block}; };
      return ExchangeBlocks(comm, send, place, y->untyped_data(), place, element);
    };
    Node* node = NodeOf(comm);
    if (!node) return by_mpi();
    return node->Exchange(x.untyped_data(), y->untyped_data(),
                          {block * InfoOf(element).bytes, element, false}, by_mpi);
  });
}

ffi::Error Allgather(const CallSite& site, Operand x, Token, Result y, TokenResult) {
  return RunInto(y, site, x, {}, [&](Communicator& comm, Element element) {
    const auto block = static_cast<std::int64_t>(x.element_count());
    const auto by_mpi = [&] {
      if (block * comm.size <= ChunkElements(element)) {
        return Mpi()->allgather(x.untyped_data(), y->untyped_data(), block, element, comm.data);
      }
      const auto whole = [block](int) { return Block{0, block}; };
      const auto place = [block](int rank) { return Block{rank * block, block}; };
      return ExchangeBlocks(comm, x.untyped_data(), whole, y->untyped_data(), place, element);
    };
    Node* node = NodeOf(comm);
    if (!node) return by_mpi();
    return node->Exchange(x.untyped_data(), y->untyped_data(),
                          {block * InfoOf(element).bytes, element, true}, by_mpi);
  });
}

ffi::Error ReduceScatter(const CallSite& site, std::int32_t op, Operand x, Token, Result y,
                         TokenResult) {
  return RunInto(y, site, x, {op, -1}, [&](Communicator& comm, Element element) {
    return ReduceScatterInChunks(comm, x.untyped_data(), y->untyped_data(),
                                 static_cast<std::int64_t>(y->element_count()), element,
                                 static_cast<Reduction>(op));
  });
}

ffi::Error Allreduce(const CallSite& site, std::int32_t op, Operand x, Token, Result y,
                     TokenResult) {
  return RunInto(y, site, x, {op, -1}, [&](Communicator& comm, Element element) {
    return AllreduceInChunks(comm, x.untyped_data(), y->untyped_data(),
                             static_cast<std::int64_t>(x.element_count()), element,
                             static_cast<Reduction>(op));
  });
}

// The sum on the root, zeros elsewhere: the adjoint of Bcast.
ffi::Error Reduce(const CallSite& site, std::int32_t op, std::int32_t root, Operand x, Token,
                  Result y, TokenResult) {
  return RunInto(y, site, x, {op, root}, [&](Communicator& comm, Element element) {
    if (comm.rank != root) Clear(y->untyped_data(), y->size_bytes());
    return ReduceInChunks(comm, x.untyped_data(), y->untyped_data(),
                          static_cast<std::int64_t>(x.element_count()), element,
                          static_cast<Reduction>(op), root);
  });
}

ffi::Error Bcast(const CallSite& site, std::int32_t root, Operand x, Token, Result y,
                 TokenResult) {
  return RunInto(y, site, x, {-1, root}, [&](Communicator& comm, Element element) {
    if (comm.rank == root && y->untyped_data() != x.untyped_data()) {
      std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
    }
    return ForEachChunk(static_cast<std::int64_t>(x.element_count()), ChunkElements(element),
                        [&](std::int64_t offset, std::int64_t count) {
                          return Mpi()->bcast(At(y->untyped_data(), offset, element), count,
                                              element, root, comm.data);
                        });
  });
}

// All blocks on the root, zeros elsewhere: the adjoint of Scatter, whose operand counts on the
// root only.
ffi::Error Gather(const CallSite& site, std::int32_t root, Operand x, Token, Result y,
                  TokenResult) {
  return RunInto(y, site, x, {-1, root}, [&](Communicator& comm, Element element) {
    const auto block = static_cast<std::int64_t>(x.element_count());
    if (comm.rank != root) Clear(y->untyped_data(), y->size_bytes());
    if (block * comm.size <= ChunkElements(element)) {
      return block == 0 ? 0
                        : Mpi()->gather(x.untyped_data(), y->untyped_data(), block, element, root,
                                        comm.data);
    }
    const auto to = [&](int rank) { return Block{0, rank == root ? block : 0}; };
    const auto from = [&](int rank) {
      return comm.rank == root ? Block{rank * block, block} : Block{};
    };
    return ExchangeBlocks(comm, x.untyped_data(), to, y->untyped_data(), from, element);
  });
}

ffi::Error Scatter(const CallSite& site, std::int32_t root, Operand x, Token, Result y,
                   TokenResult) {
  // What all ranks have alike is the result.
  return RunInto(y, site, *y, {-1, root}, [&](Communicator& comm, Element element) {
    const auto block = static_cast<std::int64_t>(y->element_count());
    if (block * comm.size <= ChunkElements(element)) {
      return block == 0 ? 0
                        : Mpi()->scatter(x.untyped_data(), y->untyped_data(), block, element, root,
                                         comm.data);
    }
    const auto to = [&](int rank) {
      return comm.rank == root ? Block{rank * block, block} : Block{};
    };
    const auto from = [&](int rank) { return Block{0, rank == root ? block : 0}; };
    return ExchangeBlocks(comm, x.untyped_data(), to, y->untyped_data(), from, element);
  });
}

ffi::Error Barrier(const CallSite& site, Token, TokenResult) {
  return Run(site, Payload{}, [](Communicator& comm) { return Mpi()->barrier(comm.data); });
}

// The identity, with proof: only lowered under PFFTJAX_CHECK=1.
ffi::Error CheckReplicated(const CallSite& site, Operand x, Token, Result y, TokenResult) {
  const Element element = ElementOf(x.element_type()).value_or(Element::kBool);
  const Payload payload{element, static_cast<std::int64_t>(x.element_count()), {}};
  return Run(site, payload, [&](Communicator& comm) {
    const auto hash = static_cast<std::int64_t>(Hash(x.untyped_data(), x.size_bytes()));
    const std::string text = Describe(site.operation, element, payload.count) + " with the hash " +
                             std::to_string(hash);
    const std::string how = comm.size > 1 ? Disagreement(comm, hash, text) : std::string{};
    if (!how.empty()) {
      return Failed(site.operation, comm,
                    "a value (or, under grad, the cotangent of an allreduce) that must be equal "
                    "on all ranks is not: " +
                        how +
                        ". Pass replicated values into rank-dependent work through replicate, and "
                        "use the result of allreduce alike on every rank");
    }
    std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
    return ffi::Error::Success();
  });
}

}  // namespace

std::optional<Element> ElementOf(ffi::DataType type) {
  constexpr std::array types = {ffi::PRED, ffi::S8,  ffi::S16, ffi::S32, ffi::S64,
                                ffi::U8,   ffi::U16, ffi::U32, ffi::U64, ffi::F16,
                                ffi::BF16, ffi::F32, ffi::F64, ffi::C64, ffi::C128};
  static_assert(types.size() == kElements.size());
  const auto found = std::find(types.begin(), types.end(), type);
  if (found == types.end()) return std::nullopt;
  return static_cast<Element>(found - types.begin());
}

ffi::Error BadElement(Operation operation, ffi::DataType type) {
  return Invalid(std::string(NameOf(operation)) + " has no MPI type for XLA element type " +
                 std::to_string(static_cast<int>(type)));
}

std::vector<Registration> CollectiveHandlers() {
  return {SiteHandler<Operation::kAlltoall, Alltoall>("pfftjax_alltoall").WithStaging(),
          SiteHandler<Operation::kAllgather, Allgather>("pfftjax_allgather").WithStaging(),
          SiteHandler<Operation::kReduceScatter, ReduceScatter>("pfftjax_reduce_scatter", "op")
              .WithStaging(),
          SiteHandler<Operation::kAllreduce, Allreduce>("pfftjax_allreduce", "op").WithStaging(),
          SiteHandler<Operation::kReduce, Reduce>("pfftjax_reduce", "op", "root").WithStaging(),
          SiteHandler<Operation::kBcast, Bcast>("pfftjax_bcast", "root").WithStaging(),
          SiteHandler<Operation::kGather, Gather>("pfftjax_gather", "root").WithStaging(),
          SiteHandler<Operation::kScatter, Scatter>("pfftjax_scatter", "root").WithStaging(),
          SiteHandler<Operation::kBarrier, Barrier>("pfftjax_barrier").WithStaging(),
          SiteHandler<Operation::kReplicate, CheckReplicated>("pfftjax_replicate").WithStaging()};
}

}  // namespace pfftjax
