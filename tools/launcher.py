"""How this MPI starts ranks; shared by run.py and by the tests that start jobs of their own.

python -m tools.launcher RANKS PROGRAM ARGUMENTS    runs a program so, as `make demo` does
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def family() -> str:
    """The MPI family that mpi4py runs on here, asked of another process: this one stays free."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    text = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    ).stdout
    return "openmpi" if "Open MPI" in text else "mpich"


@functools.cache
def _scratch(parent: str | None = None) -> tempfile.TemporaryDirectory[str]:
    """Where jobs keep their files; removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="pfftjax-", dir=parent)


def environment(**extra: str) -> dict[str, str]:
    """The environment of a test job, the same on every machine.

    Each has a folder for temporary files of its own: Open MPI's mpirun keeps a session there under
    its process number, leaves it behind when it is killed, and where it finds one of an earlier
    process of the same number it does not start ("listener thread failed to start"). Its ranks
    share memory in files that are called by 16 bits of a hash of that number: two jobs at a time
    that have the same ones crash, unless each has a folder for them, too.
    """
    here = str(pathlib.Path(sys.executable).parent)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return {
        **os.environ,
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # More ranks than cores: yield instead of spinning.
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "0",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # Looking for a fabric, which no test needs, sleeps for a second of each job's start.
        "OMPI_MCA_btl": "^ofi",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": tempfile.mkdtemp(dir=_scratch().name),
        "OMPI_MCA_btl_sm_backing_directory": tempfile.mkdtemp(dir=_scratch(memory).name),
        **extra,
    }


def kept_programs(folder: pathlib.Path) -> dict[str, str]:
    """Settings by which JAX keeps what it compiles there, however small."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def command(
    ranks: int, *arguments: str, bind: bool = False, python: str = sys.executable
) -> list[str]:
    """The command that runs `python arguments` on `ranks` ranks.

    Tests run unbound, more ranks than cores; benchmarks with the launcher's own binding, and peers
    with the Python and the MPI of their own environment.
    """
    here = pathlib.Path(python).parent
    local = here / "mpirun"
    mpirun = str(local) if local.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise RuntimeError("no mpirun found; MPI=openmpi and MPI=mpich install one")
    unbound = ["--oversubscribe", "--bind-to", "none"]
    options = unbound if _is_open_mpi(mpirun) and not bind else []
    return [mpirun, *options, "-n", str(ranks), python, *arguments]


@functools.cache
def _is_open_mpi(mpirun: str) -> bool:
    version = subprocess.run(
        [mpirun, "--version"], env=environment(), capture_output=True, text=True, check=False
    )
    return "Open MPI" in version.stdout


def rebuild(*settings: str) -> None:
    """Build and install this checkout again, in this environment; `settings` are CMake's.

    What has not changed since the last time with the same settings is not compiled again. Each
    source is compiled alone, so that a change takes few of them, and none lacks a header that
    another one includes.
    """
    folder = ROOT / "build" / ("-".join(re.sub(r"\W+", "-", s) for s in settings) or "tests")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    alone = "CMAKE_UNITY_BUILD=OFF"
    options = [f"--config-settings=cmake.define.{setting}" for setting in (alone, *settings)]
    subprocess.run(
        [
            *(*pip, "--no-build-isolation", "--no-deps", *options),
            *(f"--config-settings=build-dir={folder}", "--editable", str(ROOT)),
        ],
        env=environment(),
        check=True,
    )


if __name__ == "__main__":
    ranks = int(sys.argv[1])
    sys.exit(
        subprocess.run(
            command(ranks, *sys.argv[2:]), env=environment(JAX_ENABLE_X64="0"), check=False
        ).returncode
    )
