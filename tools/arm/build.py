"""Compiles for Arm what runs there: pfftjax, and the tests in C++."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from tests.jobs import test_kernels, test_threads
from tools import simulate
from tools.arm import machine
from tools.launcher import ROOT

WORK = machine.SYSTEM / "work"
CROSS = machine.ARM / "cross"
# By the name of the compiler, which finds MPI's headers and library: those of the system.
WRAPPERS = {"openmpi": {"mpicc": "mpi"}, "mpich": {"mpicc": "mpi", "mpicc_abi": "mpi_abi"}}
JOBS = ["--parallel", "2"]
LISTED = "git ls-files --cached --others --exclude-standard".split()


def copy() -> None:
    """The package and its tests, as they are, into the system's /work; no modules."""
    files = subprocess.run(
        [*LISTED, "pfftjax", "tests", "tools", "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for folder in ("pfftjax", "tests", "tools"):
        shutil.rmtree(WORK / folder, ignore_errors=True)
    for name in filter(None, files):
        if (ROOT / name).exists():
            (WORK / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, WORK / name)
    # As an installation would leave it: pfftjax asks for its version.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = WORK / f"pfftjax-{project['version']}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: pfftjax\nVersion: {project['version']}\n")


def toolchain() -> dict[str, str | pathlib.Path]:
    """How CMake compiles for Arm."""
    return {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "tools" / "arm" / "toolchain.cmake",
        "PFFTJAX_SYSTEM": machine.SYSTEM,
        "CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit": "ON",
    }


def compile_modules() -> None:
    """The package's modules for all MPIs, beside it."""
    for mpi in machine.MPIS:
        folder = machine.ARM / f"build-{mpi}"
        settings = {
            **toolchain(),
            "PFFTJAX_PYTHON": machine.python(),
            "PFFTJAX_CUDA": "OFF",
            "PFFTJAX_WERROR": "ON",
            "Python_EXECUTABLE": sys.executable,
            "MPI_C_COMPILER": wrappers(mpi) / "mpicc",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        _run("cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "--log-level=WARNING", *options)
        # Another MPI has other backends, and nothing else.
        chosen = [] if mpi == "openmpi" else ["--target", "pfftjax_mpi_mpich", "pfftjax_mpi_abi"]
        _run("cmake", "--build", folder, *JOBS, *chosen)
        for module in folder.glob("_*.so"):
            shutil.copy(module, WORK / "pfftjax" / "_runtime")


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def wrappers(mpi: str) -> pathlib.Path:
    """A folder with what CMake takes for this MPI's compilers. Its own are programs for Arm."""
    folder, home = CROSS / mpi, machine.SYSTEM / "opt" / mpi
    folder.mkdir(parents=True, exist_ok=True)
    for name, library in WRAPPERS[mpi].items():
        flags = f"-I{home}/include -L{home}/lib -l{library}"
        if library == "mpi_abi":
            flags = f"-DMPI_ABI {flags}"
        words = f"aarch64-linux-gnu-gcc {flags}"
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\n[ "$1" = -show ] && echo "{words}" || exec {words} "$@"\n')
        wrapper.chmod(0o755)
    return folder


@contextlib.contextmanager
def _compiler() -> Iterator[None]:
    """Let `g++` be the compiler for Arm."""
    folder = CROSS / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "g++"
    if not link.exists():
        link.symlink_to(shutil.which(machine.COMPILER) or machine.COMPILER)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def programs() -> dict[str, list[str]]:
    """The tests in C++ that are programs, compiled: what each must say, and its words."""
    folder = WORK / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    with _compiler():
        for name, (_, _, argument, says) in test_threads.PROGRAMS.items():
            if test_threads.build(folder, name) is None:
                raise RuntimeError(f"{name} does not compile for Arm")
            made[name] = [says, f"programs/{name}", argument]
        for name in test_kernels.SOURCES:
            program = folder / name.replace(" ", "_")
            if not test_kernels.build(name, program):
                raise RuntimeError(f"{name} does not compile for Arm")
            made[name] = ["all data right", f"programs/{program.name}"]
        simulated = simulate.build(folder=machine.ARM / "simulated", jobs=2)
        shutil.copy(simulated, folder)
    return made
