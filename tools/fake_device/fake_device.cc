// A runtime without a device (cpp/gpu/device.h), for tests: memory of the host stands for that of
// a GPU, and nothing runs before it must.
//
// A stream is a queue of work. Work runs only while somebody asks whether an event is done or a
// stream is idle: a few pieces, of streams drawn at random; a stream whose next piece waits for an
// event has to wait. So what is not ordered by events comes in every order sooner or later. Copies
// to and from the host want pinned memory there; memory starts as garbage, and is garbage again
// when it is freed. Memory and events can be opened by other processes; a wait for such an event
// is one for its latest record, also where that was made after the wait.
//
// PFFTJAX_FAKE_SEED=n      another schedule (0)
// PFFTJAX_FAKE_FAIL=n      the n-th call of all since this was set returns an error, or with
//                          copy:n the n-th of `copy`
// PFFTJAX_FAKE_IDENTITY=x  what this process calls its device; by default each has its own
// PFFTJAX_FAKE_BUSY=s      a stream is busy with something else for so many seconds from the time
//                          when it is made
// PFFTJAX_FAKE_LATE=s      a copy to the device runs no sooner than so many seconds after it was
//                          asked for
// PFFTJAX_FAKE_RCCL=1      NCCL is looked for as for AMD's GPUs; by default PFFTJAX_NCCL names it
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "particle_rows.h"
#include "runtime.h"

namespace pfftjax::gpu::fake {
namespace {

// What comes after in the stream waits for as many seconds as the variable says, if it is set.
void Hold(StreamHandle stream, const char* variable) {
  using Clock = std::chrono::steady_clock;
  if (const char* seconds = std::getenv(variable)) {
    const auto end = Clock::now() + std::chrono::duration<double>(std::atof(seconds));
    AsStream(stream).work.push_back({{}, {}, 0, [end] { return Clock::now() >= end; }});
  }
}

// ---- Streams and events ------------------------------------------------------------------------

int MakeStream(StreamHandle* stream) {
  return Call("make_stream", [&](Runtime& runtime) {
    *stream = *runtime.streams.insert(new Stream).first;
    Hold(*stream, "PFFTJAX_FAKE_BUSY");
    return kOk;
  });
}

// Operations in it still run.
int FreeStream(StreamHandle stream) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  AsStream(stream).is_freed = true;
  if (AsStream(stream).work.empty()) {
    runtime.streams.erase(&AsStream(stream));
    delete &AsStream(stream);
  }
  return kOk;
}

int MakeEvent(EventHandle* event) {
  return Call("make_event", [&](Runtime&) {
    *event = new Event(new Counts{});
    return kOk;
  });
}

int FreeEvent(EventHandle event) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  delete &AsEvent(event);
  return kOk;
}

int Record(EventHandle handle, StreamHandle stream) {
  return Call("record", [&](Runtime&) {
    const Event event = AsEvent(handle);
    const std::int64_t record = ++event->recorded;
    // The later of two records in two streams may run first.
    auto run = [event, record] { event->done.store(std::max(event->done.load(), record)); };
    AsStream(stream).work.push_back({std::move(run), {}});
    return kOk;
  });
}

int IsDone(EventHandle event, int* done) {
  return Call("is_done", [&](Runtime& runtime) {
    runtime.RunSome();
    *done = AsEvent(event)->done.load() >= AsEvent(event)->recorded.load();
    return kOk;
  });
}

int IsIdle(StreamHandle stream, int* idle) {
  return Call("is_idle", [&](Runtime& runtime) {
    runtime.RunSome();
    *idle = AsStream(stream).work.empty();
    return kOk;
  });
}

int Wait(StreamHandle stream, EventHandle handle) {
  return Call("wait", [&](Runtime&) {
    const Event event = AsEvent(handle);
    AsStream(stream).work.push_back({{}, event, event->recorded.load(), {}});
    return kOk;
  });
}

// ---- Memory ------------------------------------------------------------------------------------

int Allocate(void** memory, std::int64_t bytes) {
  return Call("allocate", [&](Runtime& runtime) {
    *memory = runtime.Map(bytes, {});
    return *memory ? kOk : kNoMemory;
  });
}

int AllocatePinned(void** memory, std::int64_t bytes) {
  return Call("allocate_pinned", [&](Runtime& runtime) {
    Region pinned;
    pinned.is_pinned = true;
    *memory = runtime.Map(bytes, pinned);
    return *memory ? kOk : kNoMemory;
  });
}

int Free(void* memory) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  return runtime.Unmap(memory);
}

int Pin(void* memory, std::int64_t bytes) {
  return Call("pin", [&](Runtime& runtime) {
    Region pinned;
    pinned.bytes = bytes;
    pinned.is_pinned = true;
    runtime.regions[static_cast<char*>(memory)] = pinned;
    return kOk;
  });
}

int Unpin(void* memory) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  return runtime.regions.erase(static_cast<char*>(memory)) == 1 ? kOk : kUnknown;
}

// body() once it is its turn. What uses memory that has been freed by then ends the process.
template <typename Body>
void Enqueue(Runtime& runtime, StreamHandle stream, std::vector<const void*> uses, Body&& body) {
  auto run = [&runtime, uses = std::move(uses), body = std::forward<Body>(body)]() mutable {
    for (const void* address : uses) {
      const Region* region = runtime.Find(address);
      if (region && region->is_freed) {
        std::fprintf(stderr, "the fake device: %s\n", ErrorText(kFreed));
        std::abort();
      }
    }
    body();
  };
  AsStream(stream).work.push_back({std::move(run), {}});
}

int Copy(void* target, const void* source, std::int64_t bytes, Direction direction,
         StreamHandle stream) {
  return Call("copy", [&](Runtime& runtime) {
    const bool to_host = direction == Direction::kToHost;
    const bool to_device = direction == Direction::kToDevice;
    int code = to_host ? runtime.CheckPinned(target, bytes) : runtime.CheckDevice(target);
    if (code == kOk) {
      code = to_device ? runtime.CheckPinned(source, bytes) : runtime.CheckDevice(source);
    }
    if (code != kOk) return code;
    if (to_device) Hold(stream, "PFFTJAX_FAKE_LATE");
    Enqueue(runtime, stream, {target, source},
            [=] { std::memcpy(target, source, static_cast<std::size_t>(bytes)); });
    return static_cast<int>(kOk);
  });
}

int Clear(void* memory, std::int64_t bytes, StreamHandle stream) {
  return Call("clear", [&](Runtime& runtime) {
    if (const int code = runtime.CheckDevice(memory)) return code;
    Enqueue(runtime, stream, {memory},
            [=] { std::memset(memory, 0, static_cast<std::size_t>(bytes)); });
    return static_cast<int>(kOk);
  });
}

// ---- Kernels -----------------------------------------------------------------------------------

template <typename Each>
int EnqueueBoxes(const char* name, const BoxCopy* copies, int count, bool in_order,
                 StreamHandle stream, Each&& each) {
  return Call(name, [&](Runtime& runtime) {
    std::vector<BoxCopy> all(copies, copies + count);
    std::vector<const void*> uses;
    for (const BoxCopy& copy : all) {
      if (copy.from.count() == 0) continue;
      if (const int code = runtime.CheckDevice(copy.source)) return code;
      if (const int code = runtime.CheckDevice(copy.target)) return code;
      uses.insert(uses.end(), {copy.source, copy.target});
    }
    if (!in_order) std::shuffle(all.begin(), all.end(), runtime.random);
    Enqueue(runtime, stream, std::move(uses), [all, each] {
      for (const BoxCopy& copy : all) each(copy);
    });
    return static_cast<int>(kOk);
  });
}

int CopyBoxes(const BoxCopy* copies, int count, std::int64_t element_bytes, StreamHandle stream) {
  return EnqueueBoxes("copy_boxes", copies, count, false, stream,
                      [element_bytes](const BoxCopy& copy) {
                        CopyBox(copy.source, copy.from, copy.target, copy.to, element_bytes);
                      });
}

int AddBoxes(const BoxCopy* copies, int count, Element element, StreamHandle stream) {
  return EnqueueBoxes("add_boxes", copies, count, true, stream, [element](const BoxCopy& copy) {
    AddBox(copy.source, copy.from, copy.target, copy.to, element);
  });
}

void RunAll(const ParticleCall& call) {
  RunRows(call);
  if (*call.lost == 0) return;
  WithTypes(call, [&](auto zero, auto, auto) {
    using T = decltype(zero);
    std::fill_n(static_cast<T*>(call.result), call.results, std::numeric_limits<T>::quiet_NaN());
  });
}

// Sums are in the order of the rows, in the result itself.
std::int64_t ParticleScratch(const ParticleCall*) { return 0; }

int RunParticles(const ParticleCall* call, StreamHandle stream) {
  return Call("run_particles", [&](Runtime& runtime) {
    std::vector<const void*> uses;
    for (const void* memory :
         {static_cast<const void*>(call->cells), call->offsets,
          static_cast<const void*>(call->used), call->field, call->given,
          static_cast<const void*>(call->result), static_cast<const void*>(call->lost)}) {
      if (!memory) continue;
      if (const int code = runtime.CheckDevice(memory)) return code;
      uses.push_back(memory);
    }
    Enqueue(runtime, stream, std::move(uses), [now = *call] { RunAll(now); });
    return static_cast<int>(kOk);
  });
}

// ---- Between processes -------------------------------------------------------------------------

struct Shared {
  std::int64_t process;
  std::int64_t file;
  std::int64_t bytes;
};
static_assert(sizeof(Shared) <= sizeof(SharedHandle));

SharedHandle HandleOf(int file, std::int64_t bytes) {
  const Shared shared{getpid(), file, bytes};
  SharedHandle handle;
  std::memcpy(handle.bytes, &shared, sizeof shared);
  return handle;
}

// Maps what another process has; its size in `*bytes`.
void* Open(const SharedHandle& handle, std::int64_t* bytes) {
  Shared shared{};
  std::memcpy(&shared, handle.bytes, sizeof shared);
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* memory = mmap(nullptr, static_cast<std::size_t>(shared.bytes), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  close(file);
  *bytes = shared.bytes;
  return memory == MAP_FAILED ? nullptr : memory;
}

int MakeSharedEvent(EventHandle* event, SharedHandle* handle) {
  return Call("make_shared_event", [&](Runtime&) {
    const int file = memfd_create("pfftjax_fake_event", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Counts)) != 0) return kNoMemory;
    void* memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return kNoMemory;
    *handle = HandleOf(file, sizeof(Counts));
    static_cast<Counts*>(memory)->is_shared = true;
    *event = new Event(static_cast<Counts*>(memory), [file](Counts* counts) {
      munmap(counts, sizeof(Counts));
      close(file);
    });
    return kOk;
  });
}

int OpenEvent(const SharedHandle* handle, EventHandle* event) {
  return Call("open_event", [&](Runtime&) {
    std::int64_t bytes = 0;
    void* memory = Open(*handle, &bytes);
    if (!memory) return kUnknown;
    *event = new Event(static_cast<Counts*>(memory),
                       [](Counts* counts) { munmap(counts, sizeof(Counts)); });
    return kOk;
  });
}

int ExportMemory(void* memory, SharedHandle* handle) {
  return Call("export_memory", [&](Runtime& runtime) {
    const auto it = runtime.regions.find(static_cast<char*>(memory));
    if (it == runtime.regions.end() || it->second.file < 0) return kUnknown;
    if (it->second.is_freed) return kFreed;
    *handle = HandleOf(it->second.file, it->second.bytes);
    return kOk;
  });
}

int OpenMemory(const SharedHandle* handle, void** memory) {
  return Call("open_memory", [&](Runtime& runtime) {
    Region region;
    *memory = Open(*handle, &region.bytes);
    if (!*memory) return kUnknown;
    runtime.regions[static_cast<char*>(*memory)] = region;
    return kOk;
  });
}

int CloseMemory(void* memory) {
  Runtime& runtime = The();
  const std::lock_guard lock(runtime.mutex);
  const auto it = runtime.regions.find(static_cast<char*>(memory));
  if (it == runtime.regions.end()) return kUnknown;
  munmap(memory, static_cast<std::size_t>(it->second.bytes));
  runtime.regions.erase(it);
  return kOk;
}

int CurrentDevice(int* device) {
  return Call("current_device", [&](Runtime&) {
    *device = 0;
    return kOk;
  });
}

int UseDevice(int device) {
  return Call("use_device", [&](Runtime&) { return device == 0 ? kOk : kUnknown; });
}

int Identity(int, char* text, std::size_t size) {
  return Call("identity", [&](Runtime&) {
    const char* given = std::getenv("PFFTJAX_FAKE_IDENTITY");
    const std::string own = "fake device of process " + std::to_string(getpid());
    std::snprintf(text, size, "%s", given ? given : own.c_str());
    return kOk;
  });
}

}  // namespace
}  // namespace pfftjax::gpu::fake

// For libraries that enqueue work of their own (fake_nccl.cc): calls `step(state)` whenever the
// stream could go on, until it is not 0.
extern "C" int pfftjax_fake_enqueue(void* stream, int (*step)(void*), void* state) {
  using namespace pfftjax::gpu::fake;
  return Call("enqueue", [&](Runtime&) {
    auto is_ready = [step, state, has_ended = false]() mutable {
      if (!has_ended) has_ended = step(state) != 0;
      return has_ended;
    };
    AsStream(stream).work.push_back({{}, {}, 0, is_ready});
    return static_cast<int>(kOk);
  });
}

extern "C" const pfftjax::gpu::DeviceApi* pfftjax_device_api() {
  using namespace pfftjax::gpu::fake;
  static const pfftjax::gpu::DeviceApi api = [] {
    pfftjax::gpu::DeviceApi table{};
    table.version = pfftjax::gpu::kDeviceApiVersion;
    table.name = "the fake device";
    table.platform = "cpu";
    if (std::getenv("PFFTJAX_FAKE_RCCL")) {
      table.nccl = "RCCL";
      table.nccl_file = "librccl.so.1";
    }
    table.is_host_memory = true;
    table.make_stream = MakeStream;
    table.free_stream = FreeStream;
    table.make_event = MakeEvent;
    table.free_event = FreeEvent;
    table.record = Record;
    table.is_done = IsDone;
    table.is_idle = IsIdle;
    table.wait = Wait;
    table.allocate = Allocate;
    table.free = Free;
    table.allocate_pinned = AllocatePinned;
    table.free_pinned = Free;
    table.pin = Pin;
    table.unpin = Unpin;
    table.copy = Copy;
    table.clear = Clear;
    table.copy_boxes = CopyBoxes;
    table.add_boxes = AddBoxes;
    table.particle_scratch = ParticleScratch;
    table.run_particles = RunParticles;
    table.make_shared_event = MakeSharedEvent;
    table.open_event = OpenEvent;
    table.export_memory = ExportMemory;
    table.open_memory = OpenMemory;
    table.close_memory = CloseMemory;
    table.current_device = CurrentDevice;
    table.use_device = UseDevice;
    table.identity = Identity;
    table.error_text = ErrorText;
    return table;
  }();
  return &api;
}
