// Blocks of one size between all ranks, on GPUs.
#include "../exchange.h"
#include "context.h"
#include "handlers.h"
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

auto OneToOne() {
  return BindSite(ffi::Ffi::Bind().Ctx<Queue>())
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::Token>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::Token>();
}

XLA_FFI_DEFINE_HANDLER(kAlltoall, Alltoall, OneToOne());
XLA_FFI_DEFINE_HANDLER(kAllgather, Allgather, OneToOne());

}  // namespace

std::vector<Registration> CollectiveHandlers() {
  return {{"pfftjax_alltoall", nullptr, reinterpret_cast<void*>(kAlltoall)},
          {"pfftjax_allgather", nullptr, reinterpret_cast<void*>(kAllgather)}};
}

}  // namespace pfftjax::gpu
