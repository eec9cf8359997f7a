// Blocks of one size between all ranks, and reductions over them, on GPUs.
#include "../reductions.h"
#include "context.h"
#include "handlers.h"
#include "mirror.h"
#include "transport.h"

namespace pfftjax::gpu {
namespace {

// One block of `bytes` for each rank, one after the other; or the same one for all.
std::vector<Block> Apart(const Communicator& comm, std::int64_t bytes) {
  std::vector<Block> blocks(static_cast<std::size_t>(comm.size));
  for (int rank = 0; rank < comm.size; ++rank) blocks[rank] = {rank * bytes, bytes};
  return blocks;
}
std::vector<Block> Same(const Communicator& comm, std::int64_t bytes) {
  return std::vector<Block>(static_cast<std::size_t>(comm.size), Block{0, bytes});
}

template <typename Body>
ffi::Error RunOn(const CallSite& site, const Operand& x, Body&& body) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(site.operation, x.element_type());
  const auto count = static_cast<std::int64_t>(x.element_count());
  return Run(site, Payload{*element, count}, std::forward<Body>(body));
}

ffi::Error Alltoall(Queue queue, std::int64_t number, std::int64_t ranks, std::int64_t signature,
                    std::string_view program, Operand x, Token, Result y, TokenResult) {
  return RunOn({Operation::kAlltoall, number, ranks, signature, program}, x,
               [&](Communicator& comm) {
                 const auto all = static_cast<std::int64_t>(x.size_bytes());
                 if (all == 0) return 0;
                 const void* send = x.untyped_data();
                 if (send == y->untyped_data()) {
                   void* const copy = queue.Allocate(all);
                   queue.Copy(copy, send, all, Direction::kOnDevice);
                   send = copy;
                 }
                 const std::vector<Block> blocks = Apart(comm, all / comm.size);
                 return ExchangeBytes(comm, send, blocks, y->untyped_data(), blocks, queue);
               });
}

ffi::Error Allgather(Queue queue, std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, Operand x, Token, Result y, TokenResult) {
  return RunOn({Operation::kAllgather, number, ranks, signature, program}, x,
               [&](Communicator& comm) {
                 const auto bytes = static_cast<std::int64_t>(x.size_bytes());
                 if (bytes == 0) return 0;
                 return ExchangeBytes(comm, x.untyped_data(), Same(comm, bytes), y->untyped_data(),
                                      Apart(comm, bytes), queue);
               });
}

// By way of the host, as any operation goes that has no handler of its own (staged.h).
int ReduceOnHost(Communicator& comm, const void* x, void* y, std::int64_t count, Element element,
                 Reduction reduction, Queue& queue) {
  const std::int64_t bytes = count * InfoOf(element).bytes;
  Mirror mirror(2 * bytes);
  char* const mine = mirror.data();
  char* const all = mine + bytes;
  queue.Copy(mine, x, bytes, Direction::kToHost);
  queue.Synchronize(comm.control);
  if (const int code = AllreduceInChunks(comm, mine, all, count, element, reduction)) return code;
  queue.Copy(y, all, bytes, Direction::kToDevice);
  mirror.GiveBackAfter(queue);
  return 0;
}

ffi::Error Allreduce(Queue queue, std::int64_t number, std::int64_t ranks, std::int64_t signature,
                     std::string_view program, std::int32_t op, Operand x, Token, Result y,
                     TokenResult) {
  const std::optional<Element> element = ElementOf(x.element_type());
  if (!element) return BadElement(Operation::kAllreduce, x.element_type());
  const CallSite site{Operation::kAllreduce, number, ranks, signature, program};
  const auto count = static_cast<std::int64_t>(x.element_count());
  const auto reduction = static_cast<Reduction>(op);
  return Run(site, Payload{*element, count, Detail{op, -1}.Say()}, [&](Communicator& comm) {
    if (count == 0) return 0;
    std::string why;
    Transport* const transport = TransportOf(comm, &why);
    if (!transport) throw std::runtime_error(why);
    const void* const send = x.untyped_data();
    void* const recv = y->untyped_data();
    return transport->CanReduce(*element, reduction)
               ? transport->Allreduce(comm, send, recv, count, *element, reduction, queue)
               : ReduceOnHost(comm, send, recv, count, *element, reduction, queue);
  });
}

auto OneToOne() {
  return BindSite(ffi::Ffi::Bind().Ctx<Queue>())
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::Token>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::Token>();
}

XLA_FFI_DEFINE_HANDLER(kAlltoall, Alltoall, OneToOne());
XLA_FFI_DEFINE_HANDLER(kAllgather, Allgather, OneToOne());
XLA_FFI_DEFINE_HANDLER(kAllreduce, Allreduce,
                       BindSite(ffi::Ffi::Bind().Ctx<Queue>())
                           .Attr<std::int32_t>("op")
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Token>()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::Token>());

}  // namespace

std::vector<Registration> CollectiveHandlers() {
  return {{"pfftjax_alltoall", nullptr, reinterpret_cast<void*>(kAlltoall)},
          {"pfftjax_allgather", nullptr, reinterpret_cast<void*>(kAllgather)},
          {"pfftjax_allreduce", nullptr, reinterpret_cast<void*>(kAllreduce)}};
}

}  // namespace pfftjax::gpu
