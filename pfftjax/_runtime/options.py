"""What the environment sets, read once when pfftjax is imported.

============================  =====================================================================
``PFFTJAX_CHECK=1``           compare operation, size, dtype and order across ranks before each
                              collective, and verify replicated values
``PFFTJAX_TIMEOUT=SECONDS``   report who waits where once a call waits longer, then end the job;
                              time for which the process is stopped does not count
``PFFTJAX_DEBUG=1``           one line a call on standard error
``PFFTJAX_MAX_CHUNK_BYTES``   the most bytes that one MPI call moves (1 GiB); small values are for
                              tests
``PFFTJAX_FIRST_CALL_CHECK``  0 leaves out the comparison of programs on their first call
``PFFTJAX_LAZY_WORLD=1``      for jobs in which not every rank imports pfftjax: MPI_COMM_WORLD is
                              not duplicated at import, but at the first collective on it, as any
                              other communicator is
``PFFTJAX_SHARED_MEMORY=0``   exchanges between ranks of one node go through MPI, not through
                              memory that they share
``PFFTJAX_SIMD=NAME``         the instruction set of the FFT on CPUs: baseline, avx2 or avx512; by
                              default the widest that the processor has
``PFFTJAX_GPU_CHUNK_BYTES``   the most bytes of one copy between host and GPU, where messages
                              between GPUs go by way of the host (4 MiB); the same on all ranks
``PFFTJAX_GPU_TRANSPORT``     how GPUs exchange: nccl, ipc, mpi, staging, or auto for the first of
                              these that can be had (mpi by itself with Cray's only)
``PFFTJAX_NCCL=PATH``         the libnccl.so.2 to take, in place of JAX's own
``PFFTJAX_GPU_ARENA_BYTES``   GPU memory that a rank of a communicator keeps for CUDA IPC (256 MiB)
``PFFTJAX_GPU_CHUNKS=N``      how many chunks ``ExchangeMethod.PIPELINED`` makes at most (4); the
                              same on all ranks
``PFFTJAX_BIND_GPU=0``        leave it to the user which GPU a rank takes, and how much of its
                              memory
============================  =====================================================================
"""

import dataclasses
import os
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Options:
    """The values in force; see the module's docstring."""

    max_chunk_bytes: int = 1 << 30
    check: bool = False
    debug: bool = False
    timeout: float = 0.0
    first_call: bool = True
    lazy_world: bool = False
    shared_memory: bool = True
    simd: str = ""
    gpu_chunk_bytes: int = 4 << 20
    gpu_transport: str = ""
    nccl: str = ""
    gpu_arena_bytes: int = 256 << 20
    gpu_chunks: int = 4
    bind_gpu: bool = True

    def set_by_hand(self) -> dict[str, str]:
        """The variables whose values are not the default ones.

        >>> Options(check=True).set_by_hand()
        {'PFFTJAX_CHECK': '1'}
        """
        return {
            VARIABLES[field.name]: f"{value:d}" if isinstance(value, bool) else str(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


VARIABLES = {
    "max_chunk_bytes": "PFFTJAX_MAX_CHUNK_BYTES",
    "check": "PFFTJAX_CHECK",
    "debug": "PFFTJAX_DEBUG",
    "timeout": "PFFTJAX_TIMEOUT",
    "first_call": "PFFTJAX_FIRST_CALL_CHECK",
    "lazy_world": "PFFTJAX_LAZY_WORLD",
    "shared_memory": "PFFTJAX_SHARED_MEMORY",
    "simd": "PFFTJAX_SIMD",
    "gpu_chunk_bytes": "PFFTJAX_GPU_CHUNK_BYTES",
    "gpu_transport": "PFFTJAX_GPU_TRANSPORT",
    "nccl": "PFFTJAX_NCCL",
    "gpu_arena_bytes": "PFFTJAX_GPU_ARENA_BYTES",
    "gpu_chunks": "PFFTJAX_GPU_CHUNKS",
    "bind_gpu": "PFFTJAX_BIND_GPU",
}


def _flag(environment: Mapping[str, str], name: str, default: bool) -> bool:
    text = environment.get(name, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{name}={text!r}: set it to 1 or 0")
    return default if text == "" else text == "1"


def _choice(environment: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = environment.get(name, "")
    if text not in ("", *choices):
        raise ValueError(f"{name}={text!r}: set it to one of {', '.join(choices)}")
    return text


def _number(
    environment: Mapping[str, str], name: str, default: float, least: float, most: float = 1e9
) -> float:
    text = environment.get(name, "")
    if text == "":
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ValueError(f"{name}={text!r}: set it to a number from {least:g} to {most:g}")
    return value


def read(environment: Mapping[str, str]) -> Options:
    """Options from environment variables; `ValueError` for what makes no sense.

    >>> read({"PFFTJAX_TIMEOUT": "60"}).timeout
    60.0
    """
    default = Options()
    return Options(
        max_chunk_bytes=int(
            _number(environment, "PFFTJAX_MAX_CHUNK_BYTES", default.max_chunk_bytes, 1, 2**31 - 1)
        ),
        check=_flag(environment, "PFFTJAX_CHECK", default.check),
        debug=_flag(environment, "PFFTJAX_DEBUG", default.debug),
        timeout=_number(environment, "PFFTJAX_TIMEOUT", default.timeout, 0),
        first_call=_flag(environment, "PFFTJAX_FIRST_CALL_CHECK", default.first_call),
        lazy_world=_flag(environment, "PFFTJAX_LAZY_WORLD", default.lazy_world),
        shared_memory=_flag(environment, "PFFTJAX_SHARED_MEMORY", default.shared_memory),
        simd=_choice(environment, "PFFTJAX_SIMD", ("baseline", "avx2", "avx512")),
        gpu_chunk_bytes=int(
            _number(environment, "PFFTJAX_GPU_CHUNK_BYTES", default.gpu_chunk_bytes, 1, 2**29)
        ),
        gpu_transport=_choice(
            environment, "PFFTJAX_GPU_TRANSPORT", ("auto", "nccl", "ipc", "mpi", "staging")
        ).replace("auto", default.gpu_transport),
        nccl=environment.get("PFFTJAX_NCCL", default.nccl),
        gpu_arena_bytes=int(
            _number(
                environment, "PFFTJAX_GPU_ARENA_BYTES", default.gpu_arena_bytes, 1 << 12, 1 << 40
            )
        ),
        gpu_chunks=int(_number(environment, "PFFTJAX_GPU_CHUNKS", default.gpu_chunks, 1, 1024)),
        bind_gpu=_flag(environment, "PFFTJAX_BIND_GPU", default.bind_gpu),
    )


options = read(os.environ)


def ranks_on_node(default: int) -> int:
    """Ranks of this job on this node, as far as the launcher says."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return default
