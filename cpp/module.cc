// The Python face of the C++ core, and the only file that uses nanobind.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_in_use.h"
#include "base/options.h"
#include "base/pages.h"
#include "collectives/messages.h"
#include "collectives/same.h"
#include "fft/codes.h"
#include "fft/lanes.h"
#include "fft/select.h"
#include "fft/terms.h"
#include "gpu/boxes.h"
#include "gpu/device.h"
#include "gpu/mirror.h"
#include "gpu/transport.h"
#include "pencils/redistribute.h"
#include "pencils/stream.h"
#include "pm/friends.h"
#include "pm/mesh.h"
#include "runtime/abort.h"
#include "runtime/agreement.h"
#include "runtime/call_sites.h"
#include "runtime/crossing.h"
#include "runtime/departure.h"
#include "runtime/handlers.h"
#include "runtime/node.h"
#include "runtime/profile.h"
#include "runtime/window.h"

namespace nb = nanobind;
using namespace pfftjax;  // NOLINT: this file only binds what is in it

namespace {

std::vector<Registration> AllHandlers() {
  std::vector<Registration> all;
  for (const auto& handlers :
       {CollectiveHandlers(), MessageHandlers(), ScanHandlers(), SplitHandlers(), SameHandlers(),
        RowHandlers(), PencilHandlers(), FftHandlers(), FusedHandlers(), OwnerHandlers(),
        RouteHandlers(), PaintingHandlers(), LightHandlers(), NufftHandlers()}) {
    all.insert(all.end(), handlers.begin(), handlers.end());
  }
  return all;
}

nb::dict Registrations() {
  nb::dict result;
  for (const Registration& entry : AllHandlers()) result[entry.name] = nb::capsule(entry.handler);
  return result;
}

nb::dict DeviceRegistrations() {
  nb::dict result;
  for (const Registration& entry : AllHandlers()) {
    if (entry.device) result[entry.name] = nb::capsule(entry.device);
  }
  for (const auto& handlers : {gpu::CollectiveHandlers(), gpu::PaintingHandlers(),
                               gpu::PencilHandlers(), gpu::RowHandlers()}) {
    for (const Registration& entry : handlers) result[entry.name] = nb::capsule(entry.device);
  }
  return result;
}

// While it lives, no call runs on the communicator.
class Alone {
 public:
  explicit Alone(Communicator& comm) : comm_(comm) {
    if (comm.busy.exchange(true)) {
      throw std::runtime_error("pfftjax: another thread is in a call on this communicator");
    }
    if (Finalized()) {  // looked at after `busy` is set, as calls do
      comm.busy.store(false, std::memory_order_release);
      throw std::runtime_error("pfftjax: this was called after MPI_Finalize");
    }
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone() { comm_.busy.store(false, std::memory_order_release); }

 private:
  Communicator& comm_;
};

Communicator& Known(std::int64_t number) {
  Communicator* comm = FindCommunicator(number);
  if (!comm) throw nb::index_error("no such communicator");
  return *comm;
}

void ThrowOn(int code, const char* what) {
  if (code == 0) return;
  throw std::runtime_error(std::string(what) + ": " + MpiErrorText(code));
}

using Positions = nb::ndarray<const double, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using RowNumbers = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void LinkFriends(Positions positions, std::array<double, 3> sides, double length,
                 RowNumbers group) {
  if (group.shape(0) != positions.shape(0)) {
    throw nb::value_error("link_friends: positions and group must have as many rows");
  }
  const auto rows = static_cast<std::int64_t>(positions.shape(0));
  const nb::gil_scoped_release released;
  if (!pm::LinkFriends(positions.data(), rows, sides, length, group.data())) {
    throw std::invalid_argument("link_friends: a linking length that does not fit the box");
  }
}

// An enum.IntEnum of Python's with these values.
template <typename Enum>
void AddEnum(nb::module_& m, const char* name,
             std::initializer_list<std::pair<const char*, Enum>> values) {
  nb::dict members;
  for (const auto& [member, value] : values) members[member] = static_cast<std::int64_t>(value);
  m.attr(name) = nb::module_::import_("enum").attr("IntEnum")(
      name, members, nb::arg("module") = m.attr("__name__"));
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("registrations", &Registrations, "FFI handlers by name, as capsules.");
  m.def("device_registrations", &DeviceRegistrations,
        "FFI handlers for arrays on GPUs by name, as capsules; for use after load_device.");
  m.def("load_device", &gpu::LoadDevice, nb::arg("path"), "Loads the runtime of the GPUs.");
  m.def("share_mpi", &ShareMpi, nb::arg("user"),
        "Lets backends find the MPI that a loaded module is linked with.");
  m.def("load_mpi", &LoadMpi, nb::arg("path"), "Loads the backend of one MPI family.");
  m.def("prepare_to_finalize", &PrepareToFinalize, nb::call_guard<nb::gil_scoped_release>(),
        "Waits for the other ranks to end, and ends the threads that call MPI.");
  m.def(
      "prepare_to_finalize_at_exit",
      [] {
        static const pid_t process = getpid();  // a child of fork must not speak MPI
        // Python has room for 32. Where there is none left, MPI_Finalize calls it.
        Py_AtExit([] {
          if (getpid() == process) PrepareToFinalize();
        });
      },
      "Lets Python do so after its own exit handlers, before what was registered earlier.");
  m.def("finalized", [] { return !Mpi() || Finalized() || Mpi()->finalized(); });
  m.def(
      "configure",
      [](std::int64_t max_chunk_bytes, bool check, bool debug, double timeout, bool first_call,
         bool shared_memory, int local_ranks, bool profile, bool deterministic) {
        Options& options = GetOptions();
        options.max_chunk_bytes = max_chunk_bytes;
        options.check = check;
        options.debug = debug;
        options.timeout = timeout;
        options.first_call = first_call;
        options.shared_memory = shared_memory;
        options.local_ranks = local_ranks;
        options.deterministic = deterministic;
        if (profile) StartProfile();
      },
      nb::arg("max_chunk_bytes"), nb::arg("check"), nb::arg("debug"), nb::arg("timeout"),
      nb::arg("first_call"), nb::arg("shared_memory"), nb::arg("local_ranks") = 0,
      nb::arg("profile") = false, nb::arg("deterministic") = false);

  m.def(
      "set_node",
      [](std::int64_t number) {
        GetOptions().node = number;
        GetOptions().least_spared = 1;
        GetOptions().least_piece = 256;
      },
      nb::arg("number"),
      "For tests: ranks of different numbers share no memory, as if they were on several nodes, "
      "and exchange as many nodes of many ranks do.");
  m.def("keep_freed_memory", &KeepFreedMemory, nb::arg("bytes"), nb::arg("most_in_use") = 0.5,
        "Lets malloc keep so much for the next call of a program, and everything while less than "
        "a share of the memory is in use.");
  m.def(
      "memory_in_use",
      [](const std::string& processes, const std::string& groups) {
        return MemoryInUse(processes, groups).Share();
      },
      nb::arg("processes") = "/proc", nb::arg("groups") = "/sys/fs/cgroup",
      "The share of the memory of this machine, or of a control group, that is in use.");
  m.def(
      "configure_transports",
      [](const std::string& name, const std::string& nccl, const std::string& nccl_wheel,
         std::int64_t arena_bytes, std::int64_t chunk_bytes, std::int64_t probe_bytes,
         bool does_mpi_say, bool does_mpi_take_pointers, bool is_cray, bool is_cray_enabled) {
        gpu::GetTransportOptions() = {
            name,        nccl,           nccl_wheel,   arena_bytes,
            chunk_bytes, probe_bytes,    does_mpi_say, does_mpi_take_pointers,
            is_cray,     is_cray_enabled};
      },
      nb::arg("name"), nb::arg("nccl"), nb::arg("nccl_wheel"), nb::arg("arena_bytes"),
      nb::arg("chunk_bytes"), nb::arg("probe_bytes"), nb::arg("does_mpi_say"),
      nb::arg("does_mpi_take_pointers"), nb::arg("is_cray"), nb::arg("is_cray_enabled"));
  m.def(
      "gpu_transports",
      [] {
        nb::list result;
        for (const gpu::Chosen& one : gpu::ChosenTransports()) {
          result.append(nb::make_tuple(one.comm, one.text, one.device));
        }
        return result;
      },
      "Of each communicator on which GPUs have exchanged: its number, the transport with the "
      "reason, and this rank's device.");
  m.def(
      "choose_simd",
      [](const std::string& name) {
        if (!fft::ChooseLanes(name)) {
          throw std::runtime_error("PFFTJAX_SIMD=" + name + ": this processor cannot run that");
        }
      },
      nb::arg("name"), "Chooses the code of the FFT by name, or the widest for an empty one.");
  m.def("simd", [] { return fft::ChosenLanes().name; });
  m.def("runnable_simd", &fft::RunnableLanes);

  m.def(
      "add_communicator",
      [](std::uintptr_t address, std::vector<int> world_ranks) {
        return AddCommunicator(reinterpret_cast<const void*>(address),  // NOLINT
                               std::move(world_ranks));
      },
      nb::arg("address"), nb::arg("world_ranks"),
      "Registers the communicator whose MPI_Comm is at `address`.");
  m.def(
      "duplicate_start",
      [](std::int64_t number, const std::string& operation, const std::string& line) {
        Communicator& comm = Known(number);
        if (comm.is_freed) throw nb::value_error(FreedText(operation, comm).c_str());
        ThrowOn(MakePrivateStart(comm, operation, line), "duplicate");
      },
      nb::arg("number"), nb::arg("operation"), nb::arg("line"),
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "note_freed", [](std::int64_t number) { Known(number).is_freed = true; }, nb::arg("number"),
      "Says that the caller's own communicator is no more.");
  m.def(
      "duplicate_poll",
      [](std::int64_t number) {
        bool done = false;
        ThrowOn(MakePrivatePoll(Known(number), &done), "duplicate");
        return done;
      },
      nb::arg("number"),
      // Another thread may have the lock, in a call of MPI's that runs callbacks of mpi4py's.
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "add_op",
      [](std::uintptr_t address) {
        const int number = Mpi()->add_op(reinterpret_cast<const void*>(address));  // NOLINT
        if (number < 0) throw std::runtime_error("too many user-defined operations; reuse them");
        return number;
      },
      nb::arg("address"), "Registers the user's MPI_Op at `address`; its number.");
  m.def(
      "add_status",
      [](std::uintptr_t address) {
        return AddStatus(reinterpret_cast<void*>(address));  // NOLINT
      },
      nb::arg("address"), "Registers the user's MPI_Status at `address`; its number.");
  m.def("max_tag", &MaxTag);
  m.def("note_call", &NoteCall, nb::arg("comm"), nb::arg("key"), nb::arg("before"),
        nb::arg("signature"), nb::arg("program"), nb::arg("line"),
        "Says in which line of the user's program a call was made that carries `key`.");
  m.def(
      "note_eager_call",
      [](std::int64_t comm, const std::string& operation, const std::string& line) {
        NoteEagerCall(Known(comm), operation, line);
      },
      nb::arg("comm"), nb::arg("operation"), nb::arg("line"), "The same outside of jit.");
  m.def(
      "calls", [](std::int64_t number) { return Known(number).progress.entered.load(); },
      "Operations that this rank has begun on a communicator.");

  m.def("link_friends", &LinkFriends, nb::arg("positions"), nb::arg("sides"), nb::arg("length"),
        nb::arg("group"), "Sets `group` to the lowest row in the group of friends of each row.");

  // Numbers that programs carry, and limits that Python tells users.
  nb::list elements;
  for (const ElementInfo& element : kElements) elements.append(element.name);
  m.attr("elements") = nb::tuple(elements);
  AddEnum<Expected>(m, "Expected",
                    {{"SAME_BITS", Expected::kSameBits},
                     {"SAME", Expected::kSame},
                     {"SAME_TOTAL", Expected::kSameTotal},
                     {"DIFFERENT", Expected::kDifferent}});
  AddEnum<Method>(m, "Method",
                  {{"AUTOMATIC", Method::kAutomatic},
                   {"FUSED", Method::kFused},
                   {"SHARED", Method::kShared},
                   {"MESSAGES", Method::kMessages},
                   {"ALLTOALL", Method::kAlltoall},
                   {"PIPELINED", Method::kPipelined},
                   {"HIERARCHICAL", Method::kHierarchical}});
  m.def(
      "row_bytes",
      [](std::int64_t numbers, bool is_double, std::int64_t precision) {
        const auto of = static_cast<fft::Precision>(precision);
        return (is_double ? fft::RowBytes<double>(of) : fft::RowBytes<float>(of))(numbers);
      },
      nb::arg("numbers"), nb::arg("is_double"), nb::arg("precision"),
      "Bytes of a row of complex numbers on its way between ranks.");
  AddEnum<fft::Precision>(m, "Precision",
                          {{"FULL", fft::Precision::kFull}, {"HALF", fft::Precision::kHalf}});
  AddEnum<fft::Kind>(m, "Kind",
                     {{"FORWARD", fft::Kind::kForward},
                      {"BACKWARD", fft::Kind::kBackward},
                      {"REAL_TO_COMPLEX", fft::Kind::kRealToComplex},
                      {"COMPLEX_TO_REAL", fft::Kind::kComplexToReal},
                      {"REAL_TO_COMPLEX_TRANSPOSED", fft::Kind::kRealToComplexTransposed},
                      {"COMPLEX_TO_REAL_TRANSPOSED", fft::Kind::kComplexToRealTransposed}});
  AddEnum<fft::What>(m, "What",
                     {{"TRANSFORM", fft::What::kTransform},
                      {"GRADIENT", fft::What::kGradient},
                      {"DIVERGENCE", fft::What::kDivergence}});
  AddEnum<Reduction>(m, "Reduction",
                     {{"SUM", Reduction::kSum},
                      {"PROD", Reduction::kProd},
                      {"MIN", Reduction::kMin},
                      {"MAX", Reduction::kMax},
                      {"LAND", Reduction::kLand},
                      {"LOR", Reduction::kLor},
                      {"LXOR", Reduction::kLxor},
                      {"BAND", Reduction::kBand},
                      {"BOR", Reduction::kBor},
                      {"BXOR", Reduction::kBxor}});
  m.attr("shift_to_nobody") = kShiftToNobody;
  m.attr("shift_to_anybody") = kShiftToAnybody;
  m.attr("any_tag") = kAnyTag;
  m.attr("default_tag") = kDefaultTag;
  m.attr("most_dimensions") = kMaxDims;
  m.attr("most_cells") = pm::kMostCells;
  m.attr("most_link_cells") = pm::kMostLinkCells;
  m.attr("packed_alignment") = gpu::kPackedAlignment;
  m.attr("device_api_version") = gpu::kDeviceApiVersion;
  m.attr("raised_by_all") = kRaisedByAll;
  m.attr("most_ranks_with_slots") = kMostRanksWithSlots;
  m.def(
      "shares_memory",
      [](std::int64_t number) {
        const Alone alone(Known(number));
        return SharesMemory(Known(number));
      },
      nb::arg("number"), nb::call_guard<nb::gil_scoped_release>(),
      "Whether the ranks of a communicator share memory. Collective, and while it makes no "
      "calls.");
  m.def(
      "nodes",
      [](std::int64_t number) {
        const Alone alone(Known(number));
        return NodesOf(Known(number)).of();
      },
      nb::arg("number"), nb::call_guard<nb::gil_scoped_release>(),
      "The node of each rank of a communicator, numbered in the order of their first ranks. "
      "Collective, and while it makes no calls.");
  m.def(
      "release_memory",
      [](std::int64_t number) {
        const Alone alone(Known(number));
        ReleaseWindow(Known(number));
        ReleaseAlltoall();
        if (gpu::Device()) gpu::Mirror::Release();
      },
      nb::arg("number"),
      "Gives back what exchanges have kept. On all ranks alike, while they make no calls.");

  m.def("leave_is_stuck", &LeaveIsStuck, "Whether a call under way here may never end.");
  m.def("leave_start", &LeaveStart, "Says that this rank makes no further calls.");
  m.def("leave_poll", &LeavePoll, "Whether every rank has said so.");
  m.def(
      "compare",
      [](std::int64_t number, const std::string& text) {
        const auto hash = static_cast<std::int64_t>(Hash(text.data(), text.size()));
        Communicator& comm = Known(number);
        const Alone alone(comm);
        return Disagreement(comm, hash, text);
      },
      nb::arg("number"), nb::arg("text"), nb::call_guard<nb::gil_scoped_release>(),
      "Empty if `text` is the same on all ranks, else how it differs. Collective.");
  m.def("note_thread", &NoteThread,
        "Says that this process has another thread of Python's, which may communicate.");
  m.def("abort_job", &AbortJob, nb::arg("text"));
}
