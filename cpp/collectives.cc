// The collectives that MPI has and sendrecv, as FFI handlers: one function an operation.
#include <cstring>
#include <string>

#include "agreement.h"
#include "exchange.h"
#include "handlers.h"

namespace pfftjax {
namespace {

// What else than the operand the ranks must agree on; put into words only where that is checked.
struct Detail {
  int op = -1;
  int root = -1;

  std::string Say() const {
    if (!GetOptions().check) return {};
    return (op < 0 ? "" : " reduced by operation " + std::to_string(op)) +
           (root < 0 ? "" : " with root " + std::to_string(root));
  }
};

// Decodes the operand, prepares the result and runs `body(comm, element)` with MPI's code back.
template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, Result& y, Detail detail, Body&& body) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  return Run(site, Payload{*element, count, detail.Say()},
             [&](Communicator& comm) { return body(comm, *element); });
}

ffi::Error Alltoall(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                    std::string_view program, Operand x, Token, Result y, TokenResult) {
  const CallSite site{Operation::kAlltoall, number, ranks, signature, program};
  return RunOn(site, x, y, {}, [&](Communicator& comm, Element element) {
    const auto total = static_cast<std::int64_t>(x.element_count());
    const std::int64_t block = total / comm.size;
    if (total <= ChunkElements(element)) {
      return block == 0
                 ? 0
                 : Mpi()->alltoall(x.untyped_data(), y->untyped_data(), block, element, comm.data);
    }
    const auto place = [block](int rank) { return Block{rank * block, block}; };
    return ExchangeBlocks(comm, x.untyped_data(), place, y->untyped_data(), place, element);
  });
}

ffi::Error Allgather(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, Operand x, Token, Result y, TokenResult) {
  const CallSite site{Operation::kAllgather, number, ranks, signature, program};
  return RunOn(site, x, y, {}, [&](Communicator& comm, Element element) {
    const auto block = static_cast<std::int64_t>(x.element_count());
    if (block * comm.size <= ChunkElements(element)) {
      return block == 0 ? 0
                        : Mpi()->allgather(x.untyped_data(), y->untyped_data(), block, element,
                                           comm.data);
    }
    const auto whole = [block](int) { return Block{0, block}; };
    const auto place = [block](int rank) { return Block{rank * block, block}; };
    return ExchangeBlocks(comm, x.untyped_data(), whole, y->untyped_data(), place, element);
  });
}

ffi::Error ReduceScatter(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                         std::string_view program, std::int32_t op, Operand x, Token, Result y,
                         TokenResult) {
  const CallSite site{Operation::kReduceScatter, number, ranks, signature, program};
  return RunOn(site, x, y, {op, -1}, [&](Communicator& comm, Element element) {
    const auto reduction = static_cast<Reduction>(op);
    const auto block = static_cast<std::int64_t>(y->element_count());
    const std::int64_t limit = ChunkElements(element);
    if (block * comm.size <= limit) {
      return block == 0 ? 0
                        : Mpi()->reduce_scatter(x.untyped_data(), y->untyped_data(), block,
                                                element, reduction, comm.data);
    }
    // A chunk of every block is not contiguous: one reduction to each rank instead of a copy.
    for (int root = 0; root < comm.size; ++root) {
      const int code = ForEachChunk(block, limit, [&](std::int64_t offset, std::int64_t count) {
        return Mpi()->reduce(At(x.untyped_data(), root * block + offset, element),
                             At(y->untyped_data(), offset, element), count, element, reduction,
                             root, comm.data);
      });
      if (code != 0) return code;
    }
    return 0;
  });
}

ffi::Error Allreduce(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, std::int32_t op, Operand x, Token, Result y,
                     TokenResult) {
  const CallSite site{Operation::kAllreduce, number, ranks, signature, program};
  return RunOn(site, x, y, {op, -1}, [&](Communicator& comm, Element element) {
    return ForEachChunk(static_cast<std::int64_t>(x.element_count()), ChunkElements(element),
                        [&](std::int64_t offset, std::int64_t count) {
                          return Mpi()->allreduce(At(x.untyped_data(), offset, element),
                                                  At(y->untyped_data(), offset, element), count,
                                                  element, static_cast<Reduction>(op), comm.data);
                        });
  });
}

// The sum on the root, zeros elsewhere: the adjoint of Bcast.
ffi::Error Reduce(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                  std::string_view program, std::int32_t op, std::int32_t root, Operand x, Token,
                  Result y, TokenResult) {
  const CallSite site{Operation::kReduce, number, ranks, signature, program};
  return RunOn(site, x, y, {op, root}, [&](Communicator& comm, Element element) {
    if (comm.rank != root) std::memset(y->untyped_data(), 0, y->size_bytes());
    return ForEachChunk(static_cast<std::int64_t>(x.element_count()), ChunkElements(element),
                        [&](std::int64_t offset, std::int64_t count) {
                          return Mpi()->reduce(At(x.untyped_data(), offset, element),
                                               At(y->untyped_data(), offset, element), count,
                                               element, static_cast<Reduction>(op), root,
                                               comm.data);
                        });
  });
}

ffi::Error Bcast(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                 std::string_view program, std::int32_t root, Operand x, Token, Result y,
                 TokenResult) {
  const CallSite site{Operation::kBcast, number, ranks, signature, program};
  return RunOn(site, x, y, {-1, root}, [&](Communicator& comm, Element element) {
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

ffi::Error Barrier(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                   std::string_view program, Token, TokenResult) {
  const CallSite site{Operation::kBarrier, number, ranks, signature, program};
  return Run(site, Payload{}, [](Communicator& comm) { return Mpi()->barrier(comm.data); });
}

// The identity, with proof: only lowered under PFFTJAX_CHECK=1.
ffi::Error CheckReplicated(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                           std::string_view program, Operand x, Token, Result y, TokenResult) {
  const CallSite site{Operation::kReplicate, number, ranks, signature, program};
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

// Ranks come as shifts from one's own rank (modulo the size), so that the program of a ring is the
// same on every rank; kNoRank stands for MPI_PROC_NULL.
constexpr std::int32_t kNoRank = -1;

ffi::Error Sendrecv(std::int64_t number, std::int64_t ranks, std::int64_t signature,
                    std::string_view program, std::int32_t source_shift, std::int32_t dest_shift,
                    std::int32_t send_tag, std::int32_t recv_tag, Operand x, Token, Result y,
                    TokenResult) {
  const std::optional<Element> element = ElementOf(x.element_type());
  const std::optional<Element> recv_element = ElementOf(y->element_type());
  if (!element) return BadElement(Operation::kSendrecv, x.element_type());
  if (!recv_element) return BadElement(Operation::kSendrecv, y->element_type());
  const Communicator* registered = FindCommunicator(number);
  const int here = registered ? registered->rank : 0;
  const auto rank_at = [&](std::int32_t shift) {
    return shift == kNoRank ? Mpi()->proc_null : static_cast<int>((here + shift) % ranks);
  };
  const int source = rank_at(source_shift);
  const int dest = rank_at(dest_shift);

  AdviseHugePages(y->untyped_data(), y->size_bytes());
  const CallSite site{Operation::kSendrecv, number, ranks, signature, program};
  const auto sent_total = static_cast<std::int64_t>(x.element_count());
  const auto recv_total = static_cast<std::int64_t>(y->element_count());
  const auto partner = [here](std::int32_t shift, int rank) {
    return shift == kNoRank || rank == here ? -1 : rank;
  };
  const Payload payload{
      *element, sent_total, {}, partner(source_shift, source), partner(dest_shift, dest)};
  return Run(site, payload, [&](Communicator& comm) {
    Channel channel;
    if (!PointToPoint(comm, send_tag, recv_tag, &channel)) {
      return Failed(site.operation, comm,
                    "recvtag=MPI.ANY_TAG on a communicator that pfftjax has no private duplicate "
                    "of would take other libraries' messages; give recvtag, or call "
                    "pfftjax.collectives.duplicate(comm) once on all ranks of the communicator");
    }
    // Nothing is received from nobody; Python puts recvbuf in its place.
    if (source_shift == kNoRank) std::memset(y->untyped_data(), 0, y->size_bytes());
    const std::int64_t to_send = dest_shift == kNoRank ? 0 : sent_total;
    const std::int64_t to_recv = source_shift == kNoRank ? 0 : recv_total;
    const std::int64_t send_limit = ChunkElements(*element);
    const std::int64_t recv_limit = ChunkElements(*recv_element);
    // At least one message even for no elements, so that both sides meet as in MPI.
    const auto pieces = [](std::int64_t count, std::int64_t limit, std::int32_t shift) {
      return shift == kNoRank ? 0 : std::max<std::int64_t>(1, (count + limit - 1) / limit);
    };
    const std::int64_t sends = pieces(to_send, send_limit, dest_shift);
    const std::int64_t recvs = pieces(to_recv, recv_limit, source_shift);
    for (std::int64_t i = 0; i < std::max(sends, recvs); ++i) {
      const std::int64_t sent = i < sends ? std::min(send_limit, to_send - i * send_limit) : 0;
      const std::int64_t expected = i < recvs ? std::min(recv_limit, to_recv - i * recv_limit) : 0;
      std::int64_t arrived = expected;
      const int code =
          Mpi()->sendrecv(At(x.untyped_data(), i < sends ? i * send_limit : 0, *element), sent,
                          *element, i < sends ? dest : Mpi()->proc_null, channel.send_tag,
                          At(y->untyped_data(), i < recvs ? i * recv_limit : 0, *recv_element),
                          expected, *recv_element, i < recvs ? source : Mpi()->proc_null,
                          channel.recv_tag, channel.comm, &arrived);
      if (code != 0) return MpiFailed(site.operation, comm, *element, sent_total, code);
      if (i < recvs && arrived != expected) {
        return Failed(site.operation, comm,
                      "rank " + std::to_string(source) + " sent " + std::to_string(arrived) +
                          " elements where recvbuf has " + std::to_string(recv_total) + " " +
                          InfoOf(*recv_element).name + "; give recvbuf the shape that is sent");
      }
    }
    return ffi::Error::Success();
  });
}

// Bindings: the attributes of the site, those of the operation, then operands and results.
auto Site() { return BindSite(ffi::Ffi::Bind()); }

template <typename Binding>
auto OneToOne(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::Token>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::Token>();
}

XLA_FFI_DEFINE_HANDLER(kAlltoall, Alltoall, OneToOne(Site()));
XLA_FFI_DEFINE_HANDLER(kAllgather, Allgather, OneToOne(Site()));
XLA_FFI_DEFINE_HANDLER(kReduceScatter, ReduceScatter, OneToOne(Site().Attr<std::int32_t>("op")));
XLA_FFI_DEFINE_HANDLER(kAllreduce, Allreduce, OneToOne(Site().Attr<std::int32_t>("op")));
XLA_FFI_DEFINE_HANDLER(kReduce, Reduce,
                       OneToOne(Site().Attr<std::int32_t>("op").Attr<std::int32_t>("root")));
XLA_FFI_DEFINE_HANDLER(kBcast, Bcast, OneToOne(Site().Attr<std::int32_t>("root")));
XLA_FFI_DEFINE_HANDLER(kBarrier, Barrier, Site().Arg<ffi::Token>().Ret<ffi::Token>());
XLA_FFI_DEFINE_HANDLER(kCheckReplicated, CheckReplicated, OneToOne(Site()));
XLA_FFI_DEFINE_HANDLER(kSendrecv, Sendrecv,
                       OneToOne(Site()
                                    .Attr<std::int32_t>("source")
                                    .Attr<std::int32_t>("dest")
                                    .Attr<std::int32_t>("sendtag")
                                    .Attr<std::int32_t>("recvtag")));

}  // namespace

std::optional<Element> ElementOf(ffi::DataType type) {
  switch (type) {
    case ffi::PRED:
      return Element::kBool;
    case ffi::S8:
      return Element::kS8;
    case ffi::S16:
      return Element::kS16;
    case ffi::S32:
      return Element::kS32;
    case ffi::S64:
      return Element::kS64;
    case ffi::U8:
      return Element::kU8;
    case ffi::U16:
      return Element::kU16;
    case ffi::U32:
      return Element::kU32;
    case ffi::U64:
      return Element::kU64;
    case ffi::F16:
      return Element::kF16;
    case ffi::BF16:
      return Element::kBF16;
    case ffi::F32:
      return Element::kF32;
    case ffi::F64:
      return Element::kF64;
    case ffi::C64:
      return Element::kC64;
    case ffi::C128:
      return Element::kC128;
    default:
      return std::nullopt;
  }
}

ffi::Error BadElement(Operation operation, ffi::DataType type) {
  return ffi::Error::InvalidArgument(std::string("pfftjax: ") + NameOf(operation) +
                                     " has no MPI type for XLA element type " +
                                     std::to_string(static_cast<int>(type)));
}

std::vector<Registration> CollectiveHandlers() {
  const auto entry = [](const char* name, auto* handler) {
    return Registration{name, reinterpret_cast<void*>(handler)};
  };
  return {
      entry("pfftjax_alltoall", kAlltoall),
      entry("pfftjax_allgather", kAllgather),
      entry("pfftjax_reduce_scatter", kReduceScatter),
      entry("pfftjax_allreduce", kAllreduce),
      entry("pfftjax_reduce", kReduce),
      entry("pfftjax_bcast", kBcast),
      entry("pfftjax_barrier", kBarrier),
      entry("pfftjax_replicate", kCheckReplicated),
      entry("pfftjax_sendrecv", kSendrecv),
  };
}

}  // namespace pfftjax
