"""A libnccl.so.2 for the fake device (fake_nccl.cc)."""

import fcntl
import hashlib
import pathlib
import subprocess

from tools import fake_device
from tools.launcher import ROOT

SOURCE = ROOT / "tools/fake_device/fake_nccl.cc"


def build() -> str:
    """The path of the library, compiled where no process has done so yet."""
    texts = [SOURCE.read_bytes(), (ROOT / "cpp/gpu/nccl_api.h").read_bytes()]
    name = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
    folder = pathlib.Path(fake_device.build()).parent
    library = folder / f"nccl-{name}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".part")
            command = ["g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-shared"]
            command += ["-I", ROOT / "cpp", SOURCE, "-o", unfinished, "-ldl", "-lrt"]
            subprocess.run(command, check=True)
            unfinished.rename(library)
    return str(library)
