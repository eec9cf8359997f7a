"""``python -m pfftjax doctor``: looks at a job, and says what to change."""

import dataclasses
import os
import shutil
import subprocess

import jax
from mpi4py import MPI

from pfftjax._runtime import machine
from pfftjax._runtime.ffi import implementation_of
from pfftjax._runtime.options import unknown

from .exchange_times import ExchangeTime, exchange_time
from .findings import Job, Observed, differences, findings, hints
from .info import Info, info
from .network import network
from .self_test import wrong_operations
from .single_copy import can_read_neighbour

_SMALL_BLOCK = 2
_LARGE_BYTES = 16 << 20


def doctor() -> int:
    """Show, measure and judge; the status to end with. Collective over MPI_COMM_WORLD.

    Returns:
        1 if a result is wrong, the launcher has started several jobs instead of one, or ranks
        differ in x64 or in whether they have GPUs; else 0. It is the same on all ranks.

    """
    comm = MPI.COMM_WORLD.Dup()
    here = info(devices=True)
    # One of several jobs that should have been one: the first speaks for all.
    speaks = comm.rank == 0 and not here.launched_rank
    if speaks:
        print(here, flush=True)
    with jax.default_device(_cpu()):
        wrong = wrong_operations(comm)
        small = exchange_time(_SMALL_BLOCK, 64, comm)
        large = exchange_time(_LARGE_BYTES // 4 // comm.size, 4, comm)
    if comm.allreduce(here.platforms != ("cpu",) and bool(here.gpus), op=MPI.LAND):
        with jax.default_device(jax.local_devices(backend="gpu")[0]):
            wrong += [f"{name} on GPUs" for name in wrong_operations(comm)]
    # Its first exchange has chosen how GPUs exchange.
    now = info()
    here = dataclasses.replace(here, gpu_transport=now.gpu_transport, gpu_device=now.gpu_device)
    observed = Observed(
        wrong=tuple(wrong),
        xla_threads=machine.xla_threads(),
        reads_neighbour=can_read_neighbour(comm),
        unknown_variables=unknown(os.environ),
        yields=_yields(here),
        network=network(),
        ucx_remembers_memory=os.environ.get("UCX_MEMTYPE_CACHE", "") not in ("n", "no", "0"),
    )
    ranks = comm.gather((here, observed))
    status = 0
    if ranks is not None:
        job = Job(
            ranks=ranks,
            small=small,
            large=large,
            mpirun_implementation=_mpirun_implementation(here),
            has_compilation_cache=bool(jax.config.values["jax_compilation_cache_dir"]),
        )
        status = int(any(finding.wrong for finding in findings(job)))
        if speaks:
            print(_report(job), flush=True)
    status = comm.bcast(status)
    comm.Free()
    return status


def _cpu() -> object:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        platforms = jax.config.values["jax_platforms"]
        raise RuntimeError(
            f"the doctor computes on CPUs, too, which JAX_PLATFORMS={platforms} leaves out: set "
            f"JAX_PLATFORMS={platforms},cpu"
        ) from None


def _report(job: Job) -> str:
    infos = [info for info, _ in job.ranks]
    wrong = any(observed.wrong for _, observed in job.ranks)
    lines = [
        "",
        f"Operations, transforms and their gradient: {'WRONG' if wrong else 'right'}",
        f"alltoall of {_size(job.small.bytes)}: {job.small.jitted * 1e6:.1f} us in a jitted "
        f"program, {job.small.raw * 1e6:.1f} us by MPI alone",
        f"alltoall of {_size(job.large.bytes)}: {_speed(job.large, job.large.jitted)} in a jitted "
        f"program, {_speed(job.large, job.large.raw)} by MPI alone",
    ]
    if infos[0].gpu_transport is not None:
        lines.append(f"Between GPUs: {infos[0].gpu_transport}")
    if len(infos) > 1:
        lines += ["", "Between ranks:", *_between(job)]
    found = [str(finding) for finding in findings(job)] or ["nothing"]
    lines += ["", "Findings:", *(f"  {line}" for line in found)]
    lines += [f"  hint: {line}" for line in hints(job)]
    return "\n".join(lines)


_MOST_SHOWN = 8


def _between(job: Job) -> list[str]:
    lines = [f"  {line}" for line in differences([info for info, _ in job.ranks])]
    for here, observed in job.ranks[:_MOST_SHOWN]:
        threads = observed.xla_threads
        lines.append(
            f"  rank {here.rank} on {here.host}: cores {machine.ranges(here.cores)}, "
            f"{'unknown' if threads is None else threads} threads of XLA"
            + (f", device {here.gpu_device}" if here.gpu_device else "")
        )
    if len(job.ranks) > _MOST_SHOWN:
        lines.append(f"  and {len(job.ranks) - _MOST_SHOWN} more ranks")
    return lines


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1 << 20 else f"{count / (1 << 20):.0f} MiB"


def _speed(exchange: ExchangeTime, seconds: float) -> str:
    return f"{exchange.bytes / seconds * 1e-9:.2f} GB/s"


def _yields(here: Info) -> bool:
    if here.mpi_implementation == "openmpi":
        return os.environ.get("OMPI_MCA_mpi_yield_when_idle") in ("1", "true")
    return os.environ.get("MPIR_CVAR_POLLS_BEFORE_YIELD") == "0"


def _mpirun_implementation(here: Info) -> str | None:
    """Asked of a job that was started without it: one that was has shown what it does."""
    mpirun = shutil.which("mpirun")
    if mpirun is None or here.size > 1 or here.launched_ranks is not None:
        return None
    try:
        asked = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return implementation_of(asked.stdout)
