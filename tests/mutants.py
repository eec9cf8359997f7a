"""Removes each remedy in turn and sees that a test fails: `make mutants`.

Edits the files of this checkout and puts them back, so it wants a clean one. Each test must pass
on the code as it is before it is believed to have caught anything.
"""

import dataclasses
import functools
import subprocess
import sys

from tests import launcher

PYTHON = launcher.ROOT / "pfftjax" / "collectives"
PENCILS = launcher.ROOT / "pfftjax" / "pencils"
FFT = launcher.ROOT / "pfftjax" / "fft"
SPECTRAL = launcher.ROOT / "pfftjax" / "spectral"
PM = launcher.ROOT / "pfftjax" / "pm"
CXX = launcher.ROOT / "cpp"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`old` in `file` becomes `new`; then `test` must fail on `ranks` ranks (0: a job test)."""

    what: str
    file: object
    old: str
    new: str
    test: str
    ranks: int = 2


MUTANTS = [
    Mutant(
        "no order: every operation takes a token of its own",
        PYTHON / "_ordering.py",
        "before = ctx.tokens_in.get(communication)",
        "from jax._src.lib.mlir.dialects import hlo; before = hlo.CreateTokenOp().result",
        "tests/collectives/test_ordering.py::test_ten_independent_exchanges_of_equal_size",
    ),
    Mutant(
        "trap 1: no second effect",
        PYTHON / "_ordering.py",
        "frozenset({communication, SlowDispatch()})",
        "frozenset({communication})",
        "tests/collectives/test_transforms.py::test_ahead_of_time_compiled_and_called_twice",
    ),
    Mutant(
        "trap 2: JAX's own rule for vmap of while",
        PYTHON / "_while_loop.py",
        "batching.fancy_primitive_batchers[while_p] = _carry_the_predicate",
        "",
        "tests/collectives/test_while_loop.py::test_rows_that_are_done_stay_as_they_are",
    ),
    Mutant(
        "trap 3: checkpoint saves every collective",
        PYTHON / "_primitive.py",
        "    recompute(primitive)\n",
        "",
        "tests/collectives/test_checkpoint.py::test_a_scan_with_checkpoint_needs_less_memory",
    ),
    Mutant(
        "trap 3: policies are not heard",
        PYTHON / "_checkpoint.py",
        'if verdict is True or type(verdict).__name__ == "SaveableType":',
        "if False:",
        "tests/collectives/test_checkpoint.py::test_what_is_saved_is_not_exchanged_again",
    ),
    Mutant(
        "trap 4: JAX copies the token",
        PYTHON / "_ordering.py",
        "    tokens.get_token_input = get_token_input\n",
        "",
        "tests/collectives/test_ordering.py::test_calls_are_asynchronous",
    ),
    Mutant(
        "trap 5: the transpose of allreduce returns its argument",
        PYTHON / "_allreduce.py",
        "lambda cotangent, _, *, op, comm: replicate_p.bind(cotangent, comm=comm)",
        "lambda cotangent, _, *, op, comm: cotangent",
        "tests/collectives/test_adjoint.py::test_hessian_of_a_squared_total",
    ),
    Mutant(
        "trap 6: a rank whose cotangent is zero does not take part",
        PYTHON / "_primitive.py",
        "        return [adjoint(ad.instantiate_zeros(cotangent), x.aval, **params)]",
        "        if isinstance(cotangent, ad.Zero): return [ad.Zero(x.aval)]\n"
        "        return [adjoint(cotangent, x.aval, **params)]",
        "tests/collectives/test_adjoint.py::test_loss_on_one_rank_only",
    ),
    Mutant(
        "trap 7: two threads on one communicator",
        CXX / "call.cc",
        "if (comm->busy.exchange(true)) {",
        "if (false) {",
        "tests/jobs/test_failures.py::test_two_threads_on_one_communicator",
        0,
    ),
    Mutant(
        "trap 8: global arrays outside shard_map",
        PYTHON / "_ordering.py",
        "        _refuse_global_arrays(ctx)\n",
        "",
        "tests/jobs/test_shard_map.py",
        0,
    ),
    Mutant(
        "trap 9: effects compared by identity",
        PYTHON / "_ordering.py",
        "return type(self) is type(other)",
        "return self is other",
        "tests/collectives/test_transforms.py::test_export",
    ),
    Mutant(
        "trap 9: results without the mesh of their operands",
        PYTHON / "_alltoall.py",
        "lambda x, **_: x.update(weak_type=False)",
        "lambda x, **_: __import__('jax').core.ShapedArray(x.shape, x.dtype)",
        "tests/jobs/test_shard_map.py",
        0,
    ),
    Mutant(
        "trap 10: no hook for exceptions",
        PYTHON / "_job.py",
        "    sys.excepthook = on_exception\n",
        "",
        "tests/jobs/test_failures.py::test_a_rank_that_raises",
        0,
    ),
    Mutant(
        "trap 10: no hook for exceptions in threads",
        PYTHON / "_job.py",
        "    threading.excepthook = on_thread_exception\n",
        "",
        "tests/jobs/test_failures.py::test_a_rank_that_raises_in_a_thread",
        0,
    ),
    Mutant(
        "trap 10: nobody looks at the error",
        PYTHON / "_job.py",
        "        jax.effects_barrier()\n",
        "        pass\n",
        "tests/jobs/test_failures.py::test_an_error_that_nobody_looks_at",
        0,
    ),
    Mutant(
        "trap 10: nobody says that a rank has ended",
        CXX / "watch.cc",
        "void AnnounceLeaving() { is_leaving = true; }",
        "void AnnounceLeaving() {}",
        "tests/jobs/test_failures.py::test_a_rank_that_exits",
        0,
    ),
    Mutant(
        "trap 11: the extension before mpi4py",
        PYTHON / "_ffi.py",
        "    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:",
        "    if False:",
        "tests/jobs/test_import.py::test_thread_level",
        0,
    ),
    Mutant(
        "no first-call check",
        PYTHON / "_options.py",
        "    first_call: bool = True\n",
        "    first_call: bool = False\n",
        "tests/jobs/test_first_call.py::test_programs_that_differ",
        0,
    ),
    Mutant(
        "the first-call check sees only the first collective",
        PYTHON / "_first_call.py",
        "        collectives.write()\n",
        "        if len(collectives.lines) == 1: collectives.write()\n",
        "tests/jobs/test_first_call.py::test_programs_that_differ",
        0,
    ),
    Mutant(
        "programs name ranks",
        PYTHON / "_partner.py",
        "return (rank - comm.rank) % comm.size",
        "return rank",
        "tests/collectives/test_sendrecv.py::test_the_program_of_a_ring_is_the_same_on_every_rank",
    ),
    Mutant(
        "a chunk starts where the last one did",
        CXX / "exchange.h",
        "At(send, out.offset + (sent > 0 ? offset : 0), element)",
        "At(send, out.offset, element)",
        "chunks",
    ),
    Mutant(
        "sums of small integers are the MPI's",
        CXX / "mpi_backend.cc",
        "reduction == Reduction::kSum && IsSmallInteger(element)",
        "false",
        "tests/collectives/test_values.py::test_small_integers_wrap_around",
    ),
    Mutant(
        "bfloat16 is cut off, not rounded",
        CXX / "half.h",
        "(f + 0x7fffu + ((f >> 16) & 1u)) >> 16",
        "f >> 16",
        "tests/collectives/test_values.py::test_half_precision_rounds_like_jax",
    ),
    Mutant(
        "overflow is not noticed",
        CXX / "exchange.cc",
        "if (all[kTooMany]) {",
        "if (false) {",
        "tests/collectives/test_alltoallv.py::"
        "test_overflow_is_an_error_on_every_rank_with_the_capacity_that_would_do",
    ),
    Mutant(
        "the adjoint of a halo forgets what the ghosts have gathered",
        PENCILS / "_halo.py",
        "    adjoint=lambda cotangent, _, **params: halo_reduce_p.bind(cotangent, **params),",
        "    adjoint=lambda cotangent, x, **params: jax.lax.dynamic_slice_in_dim(\n"
        "        cotangent, params['before'], x.shape[params['axis']], params['axis']),",
        "tests/pencils/test_halo.py::test_derivatives_are_each_other",
    ),
    Mutant(
        "the adjoint of a redistribution keeps the memory order",
        PENCILS / "_transpose.py",
        "        order=_inverse(order),\n        scatter",
        "        order=order,\n        scatter",
        "tests/pencils/test_transpose.py::test_adjoint_and_transformations",
    ),
    Mutant(
        "coordinates are constants of the program",
        PENCILS / "_pencil.py",
        "coordinate(self.grid.along(dimension)).astype(dtype)",
        "jnp.asarray(self.grid.coords[dimension], dtype)",
        "tests/fft/test_values.py::test_the_program_is_the_same_on_all_ranks",
    ),
    Mutant(
        "the transpose of a real transform has no Hermitian weights",
        FFT / "_local.py",
        "Kind.COMPLEX_TO_REAL: Kind.COMPLEX_TO_REAL_TRANSPOSED",
        "Kind.COMPLEX_TO_REAL: Kind.REAL_TO_COMPLEX",
        "tests/fft/test_values.py::test_hermitian_weights_against_dense_matrices",
    ),
    Mutant(
        "the plane k2 = n2 / 2 has the weight of the others",
        CXX / "fft" / "lanes.cc",
        "const bool once = k == 0 || 2 * k == n;",
        "const bool once = k == 0;",
        "tests/fft/test_values.py::test_hermitian_weights_against_dense_matrices",
    ),
    Mutant(
        "a buffer is used again while its piece is on its way",
        CXX / "stream.cc",
        "const int slot = static_cast<int>(sent++ % kInFlight);",
        "const int slot = 0 * static_cast<int>(sent++ % kInFlight);",
        "tests/fft/test_values.py",
    ),
    Mutant(
        "ghosts from at most one turn around the axis",
        CXX / "halo.h",
        "owned.start + shift < end; shift += n)",
        "owned.start + shift < end && shift == n; shift += n)",
        "tests/pencils/test_halo.py::test_any_halo",
    ),
    Mutant(
        "halos overwrite where they should add",
        CXX / "pencils.cc",
        "kToGhosts ? Arrival::kStore : Arrival::kAdd",
        "Arrival::kStore",
        "tests/pencils/test_halo.py::test_any_halo",
    ),
    Mutant(
        "the last line of a group is taken for a lane to fill",
        CXX / "fft" / "lanes.cc",
        "lines[l] = in.data + 2 * in.line * (l < count ? l : 0);",
        "lines[l] = in.data + 2 * in.line * (l < count - 1 ? l : 0);",
        "tests/fft/test_local.py::test_a_line_has_the_same_bits_alone_and_among_others",
        1,
    ),
    Mutant(
        "noise by the cell's place in the block",
        PM / "_noise.py",
        "high, low = _global_index(pencil)",
        "high, low = _global_index(pencil); low = low - low.reshape(-1)[0]",
        "tests/pm/test_noise.py",
    ),
    Mutant(
        "what is painted beyond the block is lost",
        PM / "_painting.py",
        "field = halo_reduce(padded, pencil, (width, width))",
        "a, (m, n, _) = form.before, pencil.local_shape; field = padded[:, a : a + m, a : a + n]",
        "tests/pm/test_painting.py",
    ),
    Mutant(
        "the adjoint of the exchange sends forward",
        PM / "_exchange.py",
        "_linear_in_rows(move_rows_p, return_rows_p)",
        "_linear_in_rows(move_rows_p, move_rows_p)",
        "tests/pm/test_exchange.py",
    ),
    Mutant(
        "the derivative of readout in positions is left out",
        PM / "_painting.py",
        "if isinstance(offset_dot, ad.Zero) or not higher:",
        "if True:",
        "tests/pm/test_painting.py",
    ),
    Mutant(
        "first derivatives keep the Nyquist frequency",
        SPECTRAL / "_operands.py",
        "signed = jnp.where(index == n // 2, 0, signed)",
        "pass",
        "tests/spectral/test_derivatives.py",
        1,
    ),
    Mutant(
        "the components of a gradient share nothing",
        SPECTRAL / "_derivatives.py",
        "        return _late(x, plan, lengths)",
        """        spectra = gradient(x, plan, box_size, from_spectrum=True, to_spectrum=True)
        return tuple(plan.inverse(y) for y in spectra)""",
        "tests/spectral/test_derivatives.py::test_the_bytes_that_move",
    ),
    Mutant(
        "the top hat without its series",
        SPECTRAL / "_multipliers.py",
        "_SERIES_UP_TO = 1.5**2",
        "_SERIES_UP_TO = 1e-30",
        "tests/spectral/test_multipliers.py",
        1,
    ),
    Mutant(
        "particles pull the other way",
        PM / "_gravity.py",
        "potential = -inverse_k2(",
        "potential = inverse_k2(",
        "tests/pm/test_gravity.py",
    ),
    Mutant(
        "FastPM's kick by the force at the middle of the step",
        PM / "_integrators.py",
        "first = (middle.momentum - ends.momentum[:-1]) / ends.momentum_rate[:-1]",
        "first = (middle.momentum - ends.momentum[:-1]) / middle.momentum_rate",
        "tests/pm/test_integrators.py",
        1,
    ),
    Mutant(
        "the field is not divided by D1 today",
        PM / "_lpt.py",
        "source = plan.forward(delta / today.d1.astype(dtype))",
        "source = plan.forward(delta)",
        "tests/pm/test_lpt.py",
    ),
    Mutant(
        "the second order has the sign of the first",
        PM / "_lpt.py",
        "psi2 = displacement(-second,",
        "psi2 = displacement(second,",
        "tests/pm/test_lpt.py",
    ),
    Mutant(
        "the second derivative of TSC is flat",
        CXX / "pm" / "painting.cc",
        "      w[1] = -2;\n",
        "      w[1] = -1;\n",
        "tests/pm/test_painting.py",
    ),
    Mutant(
        "particles at the end of a box stay outside",
        CXX / "pm" / "mesh.h",
        "return rest < 0 ? rest + n : rest;",
        "return rest < 0 ? rest + n - 1 : rest;",
        "tests/pm/test_painting.py",
    ),
    Mutant(
        "shared memory: a window is written while others read it",
        CXX / "window.cc",
        "load(std::memory_order_acquire) < round - 1)",
        "load(std::memory_order_acquire) < round - 99)",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "fused: what is for a rank lies at its place in the array",
        CXX / "fft" / "passage.h",
        "place[s] = begin[s] - block.start;",
        "place[s] = begin[s];",
        "tests/fft/test_values.py",
    ),
    Mutant(
        "fused: the components of a gradient in another order",
        CXX / "fft" / "terms.h",
        "{Term<T>{1, nullptr, k1}}, {Term<T>{1, nullptr, k2}}",
        "{Term<T>{1, nullptr, k2}}, {Term<T>{1, nullptr, k1}}",
        "tests/spectral/test_derivatives.py::test_against_numpy",
        1,
    ),
    Mutant(
        "fused: both arrays of a gradient in one place of the window",
        CXX / "fft" / "fused.cc",
        "static_cast<std::int64_t>(i) * parcels.MostBytes()",
        "0 * parcels.MostBytes()",
        "tests/spectral/test_derivatives.py::test_against_numpy",
    ),
    Mutant(
        "fused: the terms of a divergence replace each other",
        CXX / "fft" / "terms.h",
        "      to[2 * j] -= k(j) * from[2 * j + 1];",
        "      to[2 * j] = -k(j) * from[2 * j + 1];",
        "tests/spectral/test_derivatives.py::test_against_numpy",
        1,
    ),
    Mutant(
        "fused: the transpose of a gradient keeps its axes",
        FFT / "_gradient.py",
        '"along": tuple(order.index(lead + axis) - lead for axis in along)',
        '"along": along',
        "tests/spectral/test_derivatives.py::test_adjoints",
        1,
    ),
    Mutant(
        "shared memory: parts of a window for other ranks overlap",
        CXX / "stream.cc",
        "{ return dest < source ? dest : dest - 1; }",
        "{ return dest < source ? dest : 0; }",
        "tests/pencils/test_transpose.py",
        3,
    ),
    Mutant(
        "a method is not part of what ranks compare",
        FFT / "_fused.py",
        "{what} {method.name.lower()}",
        "{what}",
        "tests/fft/test_tuning.py::test_a_method_is_part_of_a_plan",
    ),
    Mutant(
        "the rule's choice is given up for nothing",
        FFT / "_tuning.py",
        "_WORTH_A_CHANGE = 0.97",
        "_WORTH_A_CHANGE = 1.0",
        "tests/fft/test_tuning.py",
    ),
    Mutant(
        "fused: the transpose keeps the kinds",
        FFT / "_local.py",
        "return self._replace(kind=TRANSPOSED[self.kind])",
        "return self",
        "tests/fft/test_derivatives.py",
    ),
    Mutant(
        "shared memory: a slot is read without acquiring it",
        CXX / "node.cc",
        "note.round.load(std::memory_order_acquire)",
        "note.round.load(std::memory_order_relaxed)",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "a ticket is taken by whatever comes with it",
        CXX / "progress.cc",
        " || found->second->comm != comm || found->second->about != about",
        "",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "the way out does not wait for calls under way",
        CXX / "departure.cc",
        "if (comm->busy) return comm;",
        "",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "a private communicator is not released to the watch",
        CXX / "communicator.cc",
        "is_private.store(true, std::memory_order_release)",
        "is_private.store(true, std::memory_order_relaxed)",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "the watch believes a single answer",
        CXX / "watch.cc",
        "kRounds = 2;",
        "kRounds = 1;",
        "tests/jobs/test_threads.py",
        0,
    ),
    Mutant(
        "a kernel does not look where a line of a square ends",
        CXX / "gpu" / "kernels.cu",
        "      if (x0 + lane < move.width && y < move.height) {",
        "      if (y < move.height) {",
        "tests/jobs/test_kernels.py",
        0,
    ),
    Mutant(
        "a square is read before it is there",
        CXX / "gpu" / "kernels.cu",
        "  __syncthreads();  // the square is there\n",
        "",
        "tests/jobs/test_kernels.py",
        0,
    ),
    Mutant(
        "a square is overwritten while others read it",
        CXX / "gpu" / "kernels.cu",
        "  __syncthreads();  // and is done with, before the next one\n",
        "",
        "tests/jobs/test_kernels.py",
        0,
    ),
    Mutant(
        "boxes are added in another order",
        CXX / "gpu" / "kernels.cu",
        "for (int i = 0; i < count; ++i) {",
        "for (int i = count - 1; i >= 0; --i) {",
        "tests/jobs/test_kernels.py",
        0,
    ),
    Mutant(
        "checkpoint repeats messages",
        PYTHON / "_send.py",
        "never_repeat(send_p)\n",
        "from ._checkpoint import recompute; recompute(send_p)\n",
        "tests/collectives/test_messages.py::test_checkpoint_sends_once",
    ),
    Mutant(
        "the adjoint of a scan is the scan",
        PYTHON / "_scan.py",
        "reverse=not reverse",
        "reverse=reverse",
        "tests/collectives/test_adjoint.py",
    ),
    Mutant(
        "staging sends what the device has not copied yet",
        CXX / "gpu" / "staging.cc",
        " && out_[sent_].copied.IsDone()",
        "",
        "tests/jobs/test_fake_device.py::test_schedules",
        0,
    ),
    Mutant(
        "staging receives into a slot that is still being read",
        CXX / "gpu" / "staging.cc",
        " && in_[in_.freed()].copied.IsDone()",
        "",
        "tests/jobs/test_fake_device.py::test_schedules",
        0,
    ),
    Mutant(
        "XLA's stream does not wait for the last copy to the device",
        CXX / "gpu" / "staging.cc",
        "if (code == 0) LetWait(queue, to_device_);\n",
        "",
        "tests/jobs/test_fake_device.py::test_schedules",
        0,
    ),
    Mutant(
        "staging writes to memory from which another GPU still copies",
        CXX / "gpu" / "staging.cc",
        "is_free = slots_->IsFree(piece.rank, piece.number);",
        "is_free = true;",
        "tests/jobs/test_fake_device.py::test_schedules",
        0,
    ),
    Mutant(
        "staging sends again what it has copied in the exchange before",
        CXX / "gpu" / "staging.cc",
        "    out_.Forget();\n",
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "a rank without traffic does not say that it has read",
        CXX / "gpu" / "staging.cc",
        "(!slots_ || in_.freed() == in_.taken())",
        "true",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "a rank leaves while a sender needs the room of what it reads",
        CXX / "gpu" / "staging.cc",
        "if (piece.number >= 0 && slots_->NeedsRoom(piece.rank, exchange_)) return false;",
        "if (piece.number < -1) return false;",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "nobody hears that another rank has given up an exchange between GPUs",
        CXX / "gpu" / "staging.cc",
        "if (!found.data) return has_failed ? GivenUp(comm, piece.rank) : 0;",
        "if (!found.data) return 0 * has_failed;",
        "tests/jobs/test_gpu_transports.py::test_what_cannot_be_had",
        0,
    ),
    Mutant(
        "the host reads its mirrors at once",
        CXX / "gpu" / "staged.cc",
        "if (frame->args.size > 0) queue->Synchronize();",
        "",
        "tests/jobs/test_fake_device.py::test_schedules",
        0,
    ),
    Mutant(
        "XLA's stream does not wait for the exchange beside it",
        CXX / "gpu" / "beside.cc",
        "    queue.WaitFor(exchange.has_come);\n",
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "an exchange beside XLA's stream does not wait for the packing",
        CXX / "gpu" / "beside.cc",
        "  stream_.WaitFor(exchange.is_packed);\n",
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "NCCL has another order on each rank",
        CXX / "gpu" / "nccl.cc",
        "    queue.WaitFor(last_);\n",
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "an arena of another GPU is read before it is written",
        CXX / "gpu" / "ipc.cc",
        "Device()->wait(queue.stream(), peers_[source].written[half])",
        "0",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "an arena is written again while another GPU reads it",
        CXX / "gpu" / "ipc.cc",
        "Device()->wait(queue.stream(), peers_[rank].read[Half()])",
        "0",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "a stream waits for an event that is not yet recorded",
        CXX / "gpu" / "ipc.cc",
        "return theirs.written.load(std::memory_order_acquire) >= round_;",
        "return theirs.written.load(std::memory_order_acquire) >= round_ - 1;",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "a group of NCCL is not ended",
        CXX / "gpu" / "nccl.cc",
        'nccl_.Check(nccl_.api_.group_end(), "ncclGroupEnd");',
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "MPI sends what the GPU has not computed yet",
        CXX / "gpu" / "gpu_mpi.cc",
        "queue.Synchronize(comm.control);",
        "",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "a broadcast in parts ends with the root's own",
        CXX / "gpu" / "transport.cc",
        "if (code != 0 || is_direct) return code;",
        "return code;",
        "tests/jobs/test_gpu_transports.py::test_the_same_by_each",
        0,
    ),
    Mutant(
        "partners of a sendrecv of all ranks are not compared",
        CXX / "messages.h",
        "if (sum == 0) return",
        "return",
        "tests/collectives/test_sendrecv.py::test_partners_that_do_not_fit",
        3,
    ),
    Mutant(
        "roots are not compared where NCCL runs ahead",
        CXX / "gpu" / "collectives.cc",
        "detail.Words()",
        "detail.Say()",
        "tests/jobs/test_gpu_transports.py::test_nccl_with_calls_in_another_order",
        0,
    ),
    Mutant(
        "what a GPU computes before an exchange counts as its time",
        CXX / "gpu" / "in_flight.cc",
        " || !IsDone(first.events.before)",
        "",
        "tests/jobs/test_threads.py::test_ranks_as_threads",
        0,
    ),
]


def passes(test, ranks):
    """Whether the test does, on the code as it is now."""
    extra, options = {}, ["-q", "-x", "--timeout=25"]
    if ranks == 0:
        command = [sys.executable, "-m", "pytest", *options, test]
    else:
        if test == "chunks":
            test, extra = "tests/collectives/test_values.py", {"PFFTJAX_MAX_CHUNK_BYTES": "64"}
        command = launcher.command(ranks, "-m", "pytest", "--with-mpi", *options, test)
    ended = subprocess.run(
        command,
        cwd=launcher.ROOT,
        env=launcher.environment(**extra),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return ended.returncode == 0


def main():
    changed = subprocess.run(
        ["git", "status", "--porcelain", "pfftjax", "cpp"],
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if changed:
        print("commit first: this edits files and puts them back\n" + changed)
        return 1
    survivors = []
    chosen = [m for m in MUTANTS if len(sys.argv) < 2 or sys.argv[1] in m.what]
    # A test that fails in any case, or takes too long here, has caught nothing.
    healthy = functools.cache(passes)
    for mutant in chosen:
        original = mutant.file.read_text()
        unfit = None
        if original.count(mutant.old) != 1:
            unfit = "STALE    "
        elif not healthy(mutant.test, mutant.ranks):
            unfit = "UNSOUND  "
        if unfit:
            print(f"{unfit} {mutant.what}", flush=True)
            survivors.append(mutant)
            continue
        compiled = CXX in mutant.file.parents
        try:
            mutant.file.write_text(original.replace(mutant.old, mutant.new))
            if compiled:
                launcher.rebuild()
            alive = passes(mutant.test, mutant.ranks)
        finally:
            mutant.file.write_text(original)
            if compiled:
                launcher.rebuild()
        print(f"{'SURVIVED ' if alive else 'caught   '} {mutant.what}", flush=True)
        if alive:
            survivors.append(mutant)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
