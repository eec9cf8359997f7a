"""Files of choices that were made by measurement, as FFTW's wisdom.

One JSON file for any number of plans and machines. A choice is found by everything that it depends
on, so that what was measured elsewhere is never taken for the truth here.
"""

import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import re
import secrets
import stat
from collections.abc import Sequence
from typing import TypeAlias, TypedDict

import jax
from mpi4py import MPI

from pfftjax._runtime.agreement import on_root
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.ffi import library_version, native
from pfftjax._runtime.machine import cores, read
from pfftjax._runtime.options import options
from pfftjax._runtime.primitive import as_on_gpus
from pfftjax.pencils import ExchangeMethod

_FORMAT, _VERSION = "pfftjax tuning", 1

# All that a choice depends on, by name, as JSON has it.
Key: TypeAlias = dict[str, object]


class Entry(TypedDict):
    """A choice, and the timings (dims, method, seconds) of which it is the best."""

    dims: list[int]
    method: str
    timings: Sequence[tuple[list[int], str, float | None]]  # lists, where they come from JSON


class _Choice(Entry):
    key: Key


def machine(comm: MPI.Intracomm) -> Key:
    """All that a measurement depends on besides the plan; the same on all ranks. Collective."""
    device = jax.local_devices()[0].device_kind
    processor = _model(read("/proc/cpuinfo") or "") or platform.processor() or platform.machine()
    here = (processor, native.simd(), len(cores()), device, MPI.Get_processor_name())
    everybody = comm.allgather(here)
    names = [name for *_, name in everybody]
    # These variables of the environment decide how GPUs exchange.
    gpus = {"gpu_transport": options.gpu_transport, "gpu_chunks": options.gpu_chunks}
    in_a_row = [len(list(ranks)) for _, ranks in itertools.groupby(names)]
    return {
        "ranks": comm.size,
        "nodes": len(set(names)),
        # How many ranks in a row are on a node.
        "placement": _runs(in_a_row),
        "processors": sorted({processor for processor, *_ in everybody}),
        "simd": sorted({simd for _, simd, *_ in everybody}),
        "cores": sorted({cores for _, _, cores, *_ in everybody}),
        "devices": sorted({device for *_, device, _ in everybody}),
        "mpi": library_version,
        "shared_memory": options.shared_memory,
        **(gpus if as_on_gpus(jax.default_backend()) else {}),
        "pfftjax": importlib.metadata.version("pfftjax"),
    }


def _model(cpuinfo: str) -> str:
    r"""What Linux says of a processor: on x86 its name, on Arm the numbers of maker and model.

    >>> _model("model name      : AMD EPYC 9654\nflags   : sse2\n")
    'AMD EPYC 9654'
    >>> _model("CPU implementer : 0x41\nCPU variant     : 0x1\nCPU part        : 0xd40\n")
    'implementer 0x41 variant 0x1 part 0xd40'
    """
    lines = dict(re.findall(r"^([\w ]*\w)\s*:[ \t]*(.*)$", cpuinfo, re.MULTILINE))
    numbers = [f"{name} {lines[f'CPU {name}']}" for name in _NUMBERS if f"CPU {name}" in lines]
    return lines.get("model name") or " ".join(numbers)


_NUMBERS = ("implementer", "variant", "part")


def _runs(lengths: list[int]) -> str:
    """Equal numbers in a row, counted.

    >>> _runs([128, 128, 64])
    '2 x 128, 1 x 64'
    """
    equal = itertools.groupby(lengths)
    return ", ".join(f"{len(list(times))} x {length}" for length, times in equal)


def load(
    path: str | os.PathLike[str], key: Key, comm: Communicator, operation: str
) -> Entry | None:
    """The entry of the file for `key`; None if there is none, or no file. Collective.

    Without an entry, an error if one could not be written: before minutes of measuring, not after.
    """

    def found() -> Entry | None:
        entry = next((c for c in _read(path) if c["key"] == key), None)
        folder = pathlib.Path(path).parent
        if entry is None and not os.access(folder, os.W_OK | os.X_OK):
            raise OSError(f"the choice could not be kept: {folder} is no folder to write to")
        return entry

    return on_root(found, comm.mpi, operation)


def save(
    path: str | os.PathLike[str], key: Key, entry: Entry, comm: Communicator, operation: str
) -> None:
    """Put the entry for `key` into the file, in the place of an older one. Collective."""

    def write() -> None:
        choices = [c for c in _read(path) if c["key"] != key]
        choices.append({"key": key, **entry})
        content = {"format": _FORMAT, "version": _VERSION, "choices": choices}
        target = pathlib.Path(path)
        # Nobody ever sees half a file. Who may read it is for the umask to say, as for any new
        # file, or for whoever has changed that of the old one.
        name = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with open(name, "x") as file:
                json.dump(content, file, indent=1)
                file.write("\n")
            if target.exists():
                os.chmod(name, stat.S_IMODE(target.stat().st_mode))
            os.replace(name, target)
        except BaseException:
            name.unlink(missing_ok=True)
            raise

    on_root(write, comm.mpi, operation)


def _read(path: str | os.PathLike[str]) -> list[_Choice]:
    """The choices in a file, checked; none if there is no such file."""
    try:
        text = pathlib.Path(path).read_text()
    except FileNotFoundError:
        return []
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise ValueError("it is of another format")
        if content["version"] != _VERSION:
            raise ValueError(f"it is of version {content['version']}, this reads {_VERSION}")
        for choice in content["choices"]:
            rows, columns = choice["dims"]
            if min(rows, columns) < 1:
                raise ValueError(f"a grid of {rows} x {columns} is none")
            if rows * columns != choice["key"]["machine"]["ranks"]:
                raise ValueError(f"a grid of {rows} x {columns} is for another number of ranks")
            ExchangeMethod[choice["method"].upper()]
            for dims, method, seconds in choice["timings"]:
                _, _ = dims
                ExchangeMethod[method.upper()]
                if not (seconds is None or seconds > 0):
                    raise ValueError(f"something took {seconds} s")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no file of choices that this pfftjax can read ({error}); "
            "remove it, or give another name"
        ) from error
    return content["choices"]
