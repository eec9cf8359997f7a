// The one interface between pfftjax and an MPI library.
//
// mpi_backend.cc implements it and is compiled once per MPI family (Open MPI, MPICH ABI) into its
// own shared object; module.cc loads the one that matches the MPI that mpi4py has loaded. Nothing
// else in pfftjax includes <mpi.h>, so one installation can hold several families.
//
// Counts are in elements and at most INT_MAX (chunks.h sees to it). Every function that talks to
// MPI returns MPI's error code, 0 for success.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/element.h"

namespace pfftjax {

// An MPI_Comm or an MPI_Request, whichever way the library represents it.
using MpiHandle = std::intptr_t;

inline constexpr int kMpiApiVersion = 7;

// Says where a message came from, and how many elements it had; -1 if they are not whole.
struct Envelope {
  int source = -1;
  int tag = -1;
  std::int64_t count = 0;
};

// Is told, once, that one half of a sendrecv has ended while the other still waits.
struct HalfEnded {
  void (*tell)(void* state, bool is_receive) = nullptr;
  void* state = nullptr;
};

struct MpiApi {
  int version;

  // Neutral forms of the special ranks and tags, for callers that cannot see <mpi.h>.
  int proc_null;
  int any_source;
  int any_tag;

  int (*alltoall)(const void* send, void* recv, std::int64_t count, Element, MpiHandle comm);
  int (*allgather)(const void* send, void* recv, std::int64_t count, Element, MpiHandle comm);
  int (*reduce_scatter)(const void* send, void* recv, std::int64_t count, Element, Reduction,
                        MpiHandle comm);
  int (*allreduce)(const void* send, void* recv, std::int64_t count, Element, Reduction,
                   MpiHandle comm);
  int (*reduce)(const void* send, void* recv, std::int64_t count, Element, Reduction, int root,
                MpiHandle comm);
  // The sum over the ranks up to this one, or over those before it.
  int (*scan)(const void* send, void* recv, std::int64_t count, Element, Reduction,
              MpiHandle comm);
  int (*exscan)(const void* send, void* recv, std::int64_t count, Element, Reduction,
                MpiHandle comm);
  // inout = in (op) inout.
  int (*reduce_local)(const void* in, void* inout, std::int64_t count, Element, Reduction);
  int (*bcast)(void* buffer, std::int64_t count, Element, int root, MpiHandle comm);
  int (*gather)(const void* send, void* recv, std::int64_t count, Element, int root,
                MpiHandle comm);
  int (*scatter)(const void* send, void* recv, std::int64_t count, Element, int root,
                 MpiHandle comm);
  int (*sendrecv)(const void* send, std::int64_t send_count, Element send_element, int dest,
                  int send_tag, void* recv, std::int64_t recv_count, Element recv_element,
                  int source, int recv_tag, MpiHandle comm, Envelope* envelope,
                  const HalfEnded& half_ended);
  int (*barrier)(MpiHandle comm);

  // The number of the user's MPI_Op at `address`, to be used as a Reduction; -1 if there is no
  // room for more.
  int (*add_op)(const void* address);
  // Writes an envelope to the user's MPI_Status at `status`.
  int (*write_status)(void* status, const Envelope& envelope, Element element);

  // Communicators. `address` points to the user's MPI_Comm.
  int (*from_address)(const void* address, MpiHandle* comm);
  // `*duplicate` is valid, and wants return_errors, once the request is done.
  int (*duplicate_start)(MpiHandle comm, MpiHandle* duplicate, MpiHandle* request);
  int (*return_errors)(MpiHandle comm);
  int (*rank_and_size)(MpiHandle comm, int* rank, int* size);
  int (*tag_limit)(int* limit);

  // Messages of bytes, at most INT_MAX.
  int (*send_start)(const void* data, std::int64_t bytes, int dest, int tag, MpiHandle comm,
                    MpiHandle* request);
  int (*receive_start)(void* data, std::int64_t bytes, int source, int tag, MpiHandle comm,
                       MpiHandle* request);
  // Waits for a receive or a send, whichever is first; one of them may be null. `*received` says
  // which it was, and `*bytes` how much came.
  int (*wait_either)(MpiHandle* receive, MpiHandle* send, int* received, std::int64_t* bytes);

  // Lets MPI see to messages that other calls have begun.
  int (*progress)(MpiHandle comm);

  // Whether a request is done. `*bytes` says how much came by a receive; null for all others.
  int (*test)(MpiHandle* request, int* done, std::int64_t* bytes);
  int (*barrier_start)(MpiHandle comm, MpiHandle* request);
  // Receives a message of 64-bit words, from whichever rank, where one has come.
  int (*receive_words)(std::int64_t* words, int count, int tag, MpiHandle comm, int* source,
                       int* found);

  // Whether a message has come that was not received, and which; its `count` is in bytes.
  int (*probe)(MpiHandle comm, Envelope* envelope, int* found);

  void (*error_text)(int code, char* text, std::size_t size);
  int (*finalized)();
  void (*abort)(int status);
  // Calls `callback` at the start of MPI_Finalize.
  int (*on_finalize)(void (*callback)());
};

}  // namespace pfftjax

// The symbol that each backend exports.
extern "C" const pfftjax::MpiApi* pfftjax_mpi_api();
