// Any operation for arrays on a GPU, by its handler for arrays on CPUs: its operands are copied to
// pinned memory of the host, and its results back. Nothing is known of the operation, so all of
// them are there at once; those that move most have handlers of their own (gpu_collectives.cc,
// gpu_pencils.cc, gpu_rows.cc). Such a handler finds no threads of XLA's to help it.
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "base/alignment.h"
#include "gpu/context.h"
#include "gpu/mirror.h"
#include "runtime/handlers.h"

namespace pfftjax::gpu {
namespace {

std::int64_t BytesOf(const XLA_FFI_Buffer& buffer) {
  // Tokens have none.
  auto bytes = static_cast<std::int64_t>(ffi::ByteWidth(static_cast<ffi::DataType>(buffer.dtype)));
  for (std::int64_t d = 0; d < buffer.rank; ++d) bytes *= buffer.dims[d];
  return bytes;
}

// The buffers of a call, each with its place in the mirror.
struct Mirrored {
  struct Entry {
    void* device;
    std::int64_t bytes;
    std::int64_t offset;
  };
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void*> pointers;
  std::vector<Entry> entries;

  Mirrored(void** originals, std::int64_t count, std::int64_t* total) {
    constexpr std::int64_t kAlign = 256;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& original = *static_cast<const XLA_FFI_Buffer*>(originals[i]);
      const std::int64_t bytes = BytesOf(original);
      buffers.push_back(original);
      entries.push_back({original.data, bytes, *total});
      *total += RoundUp(bytes, kAlign);
    }
    for (XLA_FFI_Buffer& buffer : buffers) pointers.push_back(&buffer);
  }
  void PointTo(char* mirror) {
    static char nothing;  // buffers without bytes have an address, too: memset wants one
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].data = entries[i].bytes > 0 ? mirror + entries[i].offset : &nothing;
    }
  }
};

XLA_FFI_Error* Run(XLA_FFI_Handler* host, XLA_FFI_CallFrame* frame) {
  ffi::DiagnosticEngine diagnostic;
  std::optional<Queue> queue = ffi::CtxDecoding<Queue>::Decode(frame->api, frame->ctx, diagnostic);
  if (!queue) throw std::runtime_error(diagnostic.Result());

  std::int64_t total = 0;
  Mirrored args(frame->args.args, frame->args.size, &total);
  Mirrored rets(frame->rets.rets, frame->rets.size, &total);
  Mirror mirror(total);
  args.PointTo(mirror.data());
  rets.PointTo(mirror.data());
  for (const Mirrored::Entry& entry : args.entries) {
    queue->Copy(mirror.data() + entry.offset, entry.device, entry.bytes, Direction::kToHost);
  }
  // Operands of no bytes need it as well: a barrier is one for what the device has been given,
  // too.
  if (frame->args.size > 0) queue->Synchronize();

  XLA_FFI_CallFrame on_host = *frame;
  on_host.args.args = args.pointers.data();
  on_host.rets.rets = rets.pointers.data();
  XLA_FFI_Error* const error = host(&on_host);
  frame->future = on_host.future;
  if (error) {
    mirror.GiveBack();
    return error;
  }
  for (const Mirrored::Entry& entry : rets.entries) {
    queue->Copy(entry.device, mirror.data() + entry.offset, entry.bytes, Direction::kToDevice);
  }
  mirror.GiveBackAfter(*queue);
  return nullptr;
}

const Communicator* CommunicatorOf(const XLA_FFI_Attrs& attributes) {
  constexpr std::string_view name = "comm";
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->ptr, attributes.names[i]->len) != name) continue;
    if (attributes.types[i] != XLA_FFI_AttrType_SCALAR) return nullptr;
    const auto& scalar = *static_cast<const XLA_FFI_Scalar*>(attributes.attrs[i]);
    if (scalar.dtype != XLA_FFI_DataType_S64) return nullptr;
    return FindCommunicator(*static_cast<const std::int64_t*>(scalar.value));
  }
  return nullptr;
}

bool AsksForMetadata(const XLA_FFI_CallFrame& frame) {
  // The type of `e` has another name in older headers.
  for (const auto* e = frame.extension_start; e; e = e->next) {
    if (e->type == XLA_FFI_Extension_Metadata) return true;
  }
  return false;
}

XLA_FFI_Error* CallStaged(XLA_FFI_Handler* host, const char* name, XLA_FFI_CallFrame* frame) {
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE || AsksForMetadata(*frame)) {
    return host(frame);
  }
  try {
    return Run(host, frame);
  } catch (const std::exception& error) {
    const Communicator* comm = CommunicatorOf(frame->attrs);
    const std::string text = comm ? FailureText(name, *comm, error.what())
                                  : "pfftjax: " + std::string(name) + " failed: " + error.what();
    XLA_FFI_Error_Create_Args args{};
    args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
    args.message = text.c_str();
    args.errc = XLA_FFI_Error_Code_INTERNAL;
    return frame->api->XLA_FFI_Error_Create(&args);
  }
}

[[maybe_unused]] const bool is_there = (run_staged = &CallStaged) != nullptr;

}  // namespace
}  // namespace pfftjax::gpu
