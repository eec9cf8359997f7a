"""A runtime of GPUs without a GPU, and what drives pfftjax with it.

With PFFTJAX_FAKE_DEVICE set to what `build` returns, operations on CPU arrays take the handlers
and transports for GPUs. fake_device.cc says how it makes mistakes show.
"""

import fcntl
import hashlib
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Sequence

from tools.launcher import ROOT

FOLDER = ROOT / "tools" / "fake_device"
SOURCES = (FOLDER / "fake_device.cc", ROOT / "cpp/pencils/box.cc")
HEADERS = (
    *("base/element.h", "base/half.h", "base/host_device.h", "pencils/box.h"),
    *("pm/assignment.h", "pm/coordinate.h"),
    *("gpu/device.h", "gpu/particle_row.h", "gpu/particles.h"),
)


def build() -> str:
    """The path of the runtime, compiled where no process has done so yet."""
    headers = [FOLDER / "runtime.h", FOLDER / "particle_rows.h"]
    headers += [ROOT / "cpp" / name for name in HEADERS]
    return _compiled("runtime", SOURCES, headers)


def build_nccl() -> str:
    """The path of a libnccl.so.2 for the fake device, compiled as `build` does it."""
    sources, headers = [FOLDER / "fake_nccl.cc"], [ROOT / "cpp/gpu/nccl_api.h"]
    return _compiled("nccl", sources, headers, "-ldl", "-lrt")


def _compiled(
    name: str,
    sources: Sequence[pathlib.Path],
    headers: Sequence[pathlib.Path],
    *libraries: str,
) -> str:
    """The path of a shared library made of `sources`: compiled once for each text of all files."""
    texts = [path.read_bytes() for path in (*sources, *headers)]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    folder = pathlib.Path(tempfile.gettempdir()) / f"pfftjax-fake-device-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{name}-{digest}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            command = ["g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-shared"]
            unfinished = library.with_suffix(".part")
            command += ["-I", ROOT / "cpp", *sources, "-o", unfinished, *libraries]
            subprocess.run(command, check=True)
            unfinished.rename(library)
    return str(library)


def environment(seed: int = 0, **extra: object) -> dict[str, str]:
    """What a job's environment must have in order to run on it, by one of many schedules; by
    staging unless another transport is named, which is tried out by small messages.
    """
    return {
        "PFFTJAX_FAKE_DEVICE": build(),
        "PFFTJAX_FAKE_SEED": str(seed),
        "PFFTJAX_GPU_TRANSPORT": "staging",
        "PFFTJAX_GPU_PROBE_BYTES": "2000",
        **{name: str(value) for name, value in extra.items()},
    }
