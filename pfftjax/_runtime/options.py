"""What the environment sets, read once when pfftjax is imported.

============================  =====================================================================
``PFFTJAX_CHECK=1``           compare operation, size, dtype and order across ranks before each
                              collective, and verify replicated values
``PFFTJAX_TIMEOUT=SECONDS``   report who waits where once a call waits longer, then end the job;
                              time for which the process is stopped does not count
``PFFTJAX_DEBUG=1``           one line a call on standard error
``PFFTJAX_PROFILE=1``         a table of operations at exit: calls, bytes, seconds, and the share
                              of these in which ranks waited for others; the same on all ranks
``PFFTJAX_MAX_CHUNK_BYTES``   the most bytes that one MPI call moves (1 GiB); small values are for
                              tests
``PFFTJAX_FIRST_CALL_CHECK``  0 leaves out the comparison of programs on their first call
``PFFTJAX_LAZY_WORLD=1``      for jobs in which not every rank imports pfftjax: MPI_COMM_WORLD is
                              not duplicated at import, but at the first collective on it, as any
                              other communicator is
``PFFTJAX_SHARED_MEMORY=0``   exchanges between ranks of one node go through MPI, not through
                              memory that they share
``PFFTJAX_KEEP_BYTES=N``      freed memory that a process keeps for the next call of a program
                              where more than half of the memory is in use (256 MiB), while it
                              keeps all where less is; 0 leaves that to malloc
``PFFTJAX_SIMD=NAME``         the instruction set of the FFT on CPUs: baseline, on x86 avx2 or
                              avx512, on Arm neon, sve256 or sve512; by default the widest that the
                              processor has
``PFFTJAX_GPU_CHUNK_BYTES``   the most bytes of one copy between host and GPU, where messages
                              between GPUs go by way of the host (4 MiB); the same on all ranks
``PFFTJAX_GPU_TRANSPORT``     how GPUs exchange: nccl, ipc, mpi, staging, or auto for the first of
                              these that can be had (mpi by itself with Cray's only)
``PFFTJAX_NCCL=PATH``         the libnccl.so.2 to take, in place of JAX's own
``PFFTJAX_GPU_ARENA_BYTES``   GPU memory that a rank of a communicator keeps for CUDA IPC (256 MiB)
``PFFTJAX_GPU_PROBE_BYTES``   the largest of the messages by which a way between GPUs is tried out
                              before a communicator takes it (1 MiB); 0 leaves the trial out; the
                              same on all ranks
``PFFTJAX_GPU_CHUNKS=N``      how many chunks ``ExchangeMethod.PIPELINED`` makes at most (4); the
                              same on all ranks
``PFFTJAX_DETERMINISTIC=1``   paint on GPUs has the same bits on every run
``PFFTJAX_BIND_GPU=0``        leave it to the user which GPU a rank takes, and how much of its
                              memory
============================  =====================================================================
"""

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

# Result of dataclasses.field(), which stands for a value of the type of the field.
_Field: TypeAlias = Any


def _option(variable: str, default: object, parse: Callable[[str], object], what: str) -> _Field:
    """A field of `Options`: what `variable` sets, which must be `what`."""
    metadata = {"variable": variable, "parse": parse, "what": what}
    return dataclasses.field(default=default, metadata=metadata)


def _flag(variable: str, default: bool) -> _Field:
    return _option(variable, default, {"1": True, "0": False}.__getitem__, "1 or 0")


def _choice(variable: str, *choices: str) -> _Field:
    values = {name: "" if name == "auto" else name for name in choices}
    return _option(variable, "", values.__getitem__, f"one of {', '.join(choices)}")


def _number(variable: str, default: float, least: float, most: float = 1e9) -> _Field:
    """A number of the type of `default`."""

    def parse(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise ValueError
        return type(default)(value)

    return _option(variable, default, parse, f"a number from {least:g} to {most:g}")


@dataclasses.dataclass(frozen=True)
class Options:
    """The values in force; see the module's docstring."""

    max_chunk_bytes: int = _number("PFFTJAX_MAX_CHUNK_BYTES", 1 << 30, 1, 2**31 - 1)
    check: bool = _flag("PFFTJAX_CHECK", False)
    debug: bool = _flag("PFFTJAX_DEBUG", False)
    timeout: float = _number("PFFTJAX_TIMEOUT", 0.0, 0)
    first_call: bool = _flag("PFFTJAX_FIRST_CALL_CHECK", True)
    lazy_world: bool = _flag("PFFTJAX_LAZY_WORLD", False)
    shared_memory: bool = _flag("PFFTJAX_SHARED_MEMORY", True)
    keep_bytes: int = _number("PFFTJAX_KEEP_BYTES", 256 << 20, 0, 2**31 - 1)
    simd: str = _choice("PFFTJAX_SIMD", "baseline", "avx2", "avx512", "neon", "sve256", "sve512")
    gpu_chunk_bytes: int = _number("PFFTJAX_GPU_CHUNK_BYTES", 4 << 20, 1, 2**29)
    gpu_transport: str = _choice("PFFTJAX_GPU_TRANSPORT", "auto", "nccl", "ipc", "mpi", "staging")
    nccl: str = _option("PFFTJAX_NCCL", "", str, "a path")
    gpu_arena_bytes: int = _number("PFFTJAX_GPU_ARENA_BYTES", 256 << 20, 1 << 12, 1 << 40)
    gpu_probe_bytes: int = _number("PFFTJAX_GPU_PROBE_BYTES", 1 << 20, 0, 1 << 26)
    gpu_chunks: int = _number("PFFTJAX_GPU_CHUNKS", 4, 1, 1024)
    deterministic: bool = _flag("PFFTJAX_DETERMINISTIC", False)
    bind_gpu: bool = _flag("PFFTJAX_BIND_GPU", True)
    profile: bool = _flag("PFFTJAX_PROFILE", False)

    def __str__(self) -> str:
        """What differs from the default, as it is set in a shell.

        >>> str(Options(check=True)), str(Options())
        ('PFFTJAX_CHECK=1', 'defaults')
        """
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return " ".join(f"{k}={v}" for k, v in self.as_set(*changed).items()) or "defaults"

    def as_set(self, *names: str) -> dict[str, str]:
        """The variables of the options of these names, with the values that are in force.

        >>> Options().as_set("first_call")
        {'PFFTJAX_FIRST_CALL_CHECK': '1'}
        """
        values = {VARIABLES[name]: getattr(self, name) for name in names}
        return {k: f"{v:d}" if isinstance(v, bool) else str(v) for k, v in values.items()}


VARIABLES = {field.name: field.metadata["variable"] for field in dataclasses.fields(Options)}


def read(environment: Mapping[str, str]) -> Options:
    """Options from environment variables; `ValueError` for what makes no sense.

    >>> read({"PFFTJAX_TIMEOUT": "60"}).timeout
    60.0
    """
    values = {}
    for field in dataclasses.fields(Options):
        variable, parse, what = (field.metadata[k] for k in ("variable", "parse", "what"))
        text = environment.get(variable, "")
        if text == "":
            continue
        try:
            values[field.name] = parse(text)
        except (ValueError, KeyError):
            raise ValueError(f"{variable}={text!r}: set it to {what}") from None
    return Options(**values)


# Tests and the device that stands for a GPU in them have variables of their own.
_OF_TESTS = ("PFFTJAX_TEST_", "PFFTJAX_FAKE_")


def unknown(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that begin like an option and are none.

    >>> unknown({"PFFTJAX_CHEKC": "1", "PFFTJAX_CHECK": "1", "HOME": "/root"})
    ('PFFTJAX_CHEKC',)
    """
    ours = (name for name in environment if name.startswith("PFFTJAX_"))
    known = VARIABLES.values()
    return tuple(n for n in ours if n not in known and not n.startswith(_OF_TESTS))


def warning_of(variable: str) -> str:
    """What to say of an unknown variable.

    >>> warning_of("PFFTJAX_CHEKC")
    'PFFTJAX_CHEKC in the environment means nothing to pfftjax; did you mean PFFTJAX_CHECK?'
    """
    alike = difflib.get_close_matches(variable, VARIABLES.values(), 1, 0.8)
    advice = f"did you mean {alike[0]}?" if alike else "`pfftjax options` lists what does"
    return f"{variable} in the environment means nothing to pfftjax; {advice}"


options = read(os.environ)
