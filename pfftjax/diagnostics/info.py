"""Where a program runs, and on what: the first thing to look at, and to send with a question."""

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping

import jax.numpy as jnp
from mpi4py import MPI

from pfftjax._runtime import launcher, machine, transports
from pfftjax._runtime.communicators import world
from pfftjax._runtime.device import Binding, binding
from pfftjax._runtime.ffi import family, implementation_of, library_version, native, platforms
from pfftjax._runtime.options import Options, options
from pfftjax._runtime.support import mpi_takes_cuda_pointers

_PACKAGES = ("pfftjax", "jax", "jaxlib", "mpi4py", "numpy")


@dataclasses.dataclass(frozen=True)
class Info:
    """The result of `info` for this rank, as text with `str`. None stands for unknown.

    Attributes:
        versions: of packages and Python, by name.
        mpi_family: openmpi, mpich for all that share MPICH's ABI, or abi for the standard ABI of
            MPI 5: what MPI's handles are, and so which backend is loaded.
        mpi_implementation: openmpi, or mpich for its kin too, by the library's own words: whose
            launcher and variables apply.
        mpi_library: name and version, in the words of the library.
        mpi_standard: version of the standard that the library implements.
        thread_level: of MPI; always multiple where pfftjax could be imported.
        rank: of this process in MPI_COMM_WORLD.
        size: of MPI_COMM_WORLD.
        host: name of the node.
        local_ranks: of the job on this node, as the launcher or MPI has said.
        launched_ranks: processes that the launcher has started as one job.
        launched_rank: the launcher's number of this process.
        cores: those that this process may use.
        node_cores: number of cores of the node.
        simd: instruction set of the FFT on CPUs.
        options: what ``PFFTJAX_*`` set.
        x64: whether JAX has 64-bit numbers.
        huge_pages: the kernel's setting: always, madvise or never.
        ptrace_scope: the kernel's restriction on reading other processes' memory.
        xpmem: whether the node has XPMEM.
        gpus: those that JAX has.
        visible_gpus: CUDA_VISIBLE_DEVICES.
        gpu_binding: which GPU this rank takes, and how much of its memory.
        platforms: XLA's platforms whose arrays this pfftjax communicates.
        mpi_takes_cuda_pointers: whether the MPI calls itself CUDA-aware.
        gpu_transport: how GPUs exchange on the first communicator on which they have, and why not
            otherwise; None before that.
        gpu_device: the device of this rank there, and which of its ranks share it.

    """

    versions: Mapping[str, str]
    mpi_family: str
    mpi_implementation: str | None
    mpi_library: str
    mpi_standard: str
    thread_level: str
    rank: int
    size: int
    host: str
    local_ranks: int | None
    launched_ranks: int | None
    launched_rank: int | None
    cores: tuple[int, ...]
    node_cores: int | None
    simd: str
    options: Options
    x64: bool
    huge_pages: str | None
    ptrace_scope: int | None
    xpmem: bool
    gpus: tuple[str, ...] | None
    visible_gpus: str | None
    gpu_binding: Binding
    platforms: tuple[str, ...]
    mpi_takes_cuda_pointers: bool | None
    gpu_transport: str | None
    gpu_device: str | None

    def __str__(self) -> str:
        rows = {
            "versions": ", ".join(f"{name} {v}" for name, v in self.versions.items()),
            "MPI": f"{self.mpi_library} ({self.mpi_family}), standard {self.mpi_standard}, "
            f"thread level {self.thread_level}",
            "rank": f"{self.rank} of {self.size} on {self.host}; "
            f"{_known(self.local_ranks)} on this node",
            "cores": f"{len(self.cores)} of the node's {_known(self.node_cores)}: "
            f"{machine.ranges(self.cores)}",
            "FFT": f"code for {self.simd}",
            "options": str(self.options),
            "64 bits": _known(self.x64),
            "shared memory": _shared_memory(self),
            "huge pages": _HUGE_PAGES.get(self.huge_pages or "", "unknown"),
            "single copy": _single_copy(self),
            "GPUs": f"{_gpus(self)}; pfftjax communicates arrays on "
            f"{', '.join(self.platforms)}; MPI takes CUDA pointers: "
            f"{_known(self.mpi_takes_cuda_pointers)}",
            "GPU of a rank": str(self.gpu_binding),
        }
        if self.gpu_transport is not None:
            rows["between GPUs"] = f"{self.gpu_transport}; this rank's is {self.gpu_device}"
        elif self.platforms != ("cpu",):
            rows["between GPUs"] = "not known before arrays on GPUs are exchanged"
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {text}" for name, text in rows.items())


_HUGE_PAGES = {
    "always": "always: large arrays have them",
    "madvise": "madvise: large results of pfftjax have them",
    "never": "never: large exchanges are slower",
}
_PTRACE_SCOPE = {
    0: "by CMA among all processes of a user (ptrace_scope 0)",
    1: "by CMA where MPI asks for it (ptrace_scope 1)",
    2: "by CMA for privileged processes only (ptrace_scope 2)",
    3: "no CMA (ptrace_scope 3)",
}


def _shared_memory(info: Info) -> str:
    if not info.options.shared_memory:
        return "not used (PFFTJAX_SHARED_MEMORY=0)"
    return (
        "within a node, by transforms on any number of ranks, by alltoall and allgather on up to "
        f"{native.most_ranks_with_slots} (beyond, MPI's own algorithms)"
    )


def _known(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)


def _single_copy(info: Info) -> str:
    scope = info.ptrace_scope
    cma = "CMA not restricted by Yama" if scope is None else _PTRACE_SCOPE.get(scope, str(scope))
    return f"XPMEM; {cma}" if info.xpmem else cma


def _gpus(info: Info) -> str:
    if info.gpus is None:
        return "JAX has a plugin for devices, which has not been asked"
    return ", ".join(info.gpus) or "none in JAX"


def info(*, devices: bool = False) -> Info:
    """Versions, MPI, cores, options and devices of this rank. No communication.

    Args:
        devices: let JAX start its backends, where that is what it takes to name the GPUs.

    Returns:
        An `Info`; `print(pfftjax.info())` shows it. ``python -m pfftjax doctor`` goes on to
        compare ranks and to measure.

    Example:
        >>> import pfftjax
        >>> from mpi4py import MPI
        >>> pfftjax.info().size == MPI.COMM_WORLD.size
        True

    """
    launch = launcher.here
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    between = next(iter(transports.chosen()), None)
    return Info(
        versions={**versions, "Python": platform.python_version()},
        mpi_family=family,
        mpi_implementation=implementation_of(library_version),
        mpi_library=library_version,
        mpi_standard="{}.{}".format(*MPI.Get_version()),
        thread_level="multiple",
        rank=world.rank,
        size=world.size,
        host=platform.node(),
        local_ranks=launch.local_ranks,
        launched_ranks=launch.ranks,
        launched_rank=launch.rank,
        cores=machine.cores(),
        node_cores=os.cpu_count(),
        simd=native.simd(),
        options=options,
        x64=jnp.result_type(float) == jnp.float64,
        huge_pages=machine.huge_pages(),
        ptrace_scope=machine.ptrace_scope(),
        xpmem=machine.has_xpmem(),
        gpus=machine.gpus(ask=devices),
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpu_binding=binding,
        platforms=tuple(sorted(platforms)),
        mpi_takes_cuda_pointers=mpi_takes_cuda_pointers(),
        gpu_transport=between.transport if between else None,
        gpu_device=between.device if between else None,
    )
