"""How GPUs exchange: what the C++ core is told of this job, and what it has chosen."""

import dataclasses
import importlib.util
import os
import pathlib

from .ffi import library_version, native, platforms
from .options import options
from .support import mpi_takes_cuda_pointers


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The transport of one communicator.

    Attributes:
        comm: number of the communicator.
        transport: name and reason, the same on all ranks; or why there is none.
        device: of this rank, and which ranks share it.

    """

    comm: int
    transport: str
    device: str


def chosen() -> tuple[Chosen, ...]:
    """The transports that exchanges have chosen so far, in that order. No communication.

    Example:
        >>> all("nccl" not in one.transport for one in chosen())  # on CPUs there are none
        True

    """
    return tuple(Chosen(*one) for one in native.gpu_transports())


def nccl_of_the_wheel() -> str:
    """The path of the NCCL that was installed beside JAX's plugin for CUDA; empty for none.

    Example:
        >>> nccl_of_the_wheel() == "" or nccl_of_the_wheel().endswith("libnccl.so.2")
        True

    """
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return ""
    for folder in (spec and spec.submodule_search_locations) or ():
        path = pathlib.Path(folder) / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return ""


def settings() -> dict[str, str | int]:
    """The settings that the core takes.

    Example:
        >>> settings()["arena_bytes"] == options.gpu_arena_bytes
        True

    """
    takes = mpi_takes_cuda_pointers() if "CUDA" in platforms else None
    return {
        "name": options.gpu_transport,
        "nccl": options.nccl,
        "nccl_wheel": nccl_of_the_wheel() if "CUDA" in platforms else "",
        "arena_bytes": options.gpu_arena_bytes,
        "chunk_bytes": options.gpu_chunk_bytes,
        "probe_bytes": options.gpu_probe_bytes,
        "does_mpi_say": takes is not None,
        "does_mpi_take_pointers": bool(takes),
        "is_cray": "CRAY MPICH" in library_version,
        "is_cray_enabled": os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1",
    }


def configure(**changed: str | int) -> None:
    """Tell the core; once, when pfftjax is imported, and by tests with other settings."""
    native.configure_transports(**{**settings(), **changed})
