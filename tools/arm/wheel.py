"""Wheels for aarch64: compiled by the compiler for Arm of this machine, tried on the one there."""

import pathlib
import shutil
import subprocess
import sys

from tools.arm import build, machine
from tools.launcher import ROOT

# `make arm` makes this environment, as `make wheels` does.
BUILDER = ROOT / ".venv" / "wheels" / "bin" / "python"


def make() -> list[pathlib.Path]:
    """The wheels in dist/, built and checked."""
    compilers = [
        build.wrappers(mpi) / name for mpi, names in build.WRAPPERS.items() for name in names
    ]
    defines = {**build.toolchain(), "PFFTJAX_MPI_COMPILERS": ";".join(map(str, compilers))}
    command = [BUILDER, "-m", "tools.wheels", "--machine", "aarch64", "--cuda", "OFF"]
    command += ["--only", "build", "check"]
    command += [f"--define={name}={value}" for name, value in defines.items()]
    subprocess.run([str(word) for word in command], cwd=ROOT, check=True)
    return sorted((ROOT / "dist").glob("*_aarch64.whl"))


def install(wheel: pathlib.Path) -> None:
    """Put it where the system's Python looks, by pip, which goes by its name."""
    python = machine.python()
    site = machine.SYSTEM / "usr" / "local" / "lib" / python / "dist-packages"
    shutil.rmtree(site, ignore_errors=True)
    version = python.removeprefix("python")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    pip += ["--no-deps", "--no-compile", "--only-binary=:all:", "--implementation=cp"]
    pip += [f"--python-version={version}"]
    pip += [f"--platform={platform}_aarch64" for platform in machine.PLATFORMS]
    subprocess.run([*pip, f"--target={site}", str(wheel)], check=True)


def tried(mpi: str) -> str:
    """What every layer of the installed wheel says on two ranks; raises where one is wrong."""
    script = "tmp/layers.py"
    shutil.copy(ROOT / "tools" / "wheels" / "layers.py", machine.SYSTEM / script)
    said = _said(mpi, f"/{script}", "/tmp")
    right = [line for line in said.splitlines() if line.startswith("all layers are right")]
    if not right or not right[0].endswith(f"({mpi})"):
        raise RuntimeError(f"the layers did not say that all are right on {mpi}: {said}")
    _said(mpi, "-m", "pfftjax", "self-test")
    return right[0]


def _said(mpi: str, *words: str) -> str:
    # Not the checkout in /work, nor its modules.
    only_this = {"PYTHONPATH": "/opt/site", "PYTHONSAFEPATH": "1"}
    settings = machine.environment(mpi, 0, **only_this, JAX_ENABLE_X64="0")
    ended = machine.run(*machine.mpirun(mpi, 2, *words), settings=settings, capture=True)
    if ended.returncode != 0:
        text = f"{ended.stdout[-1500:]}{ended.stderr[-3000:]}"
        raise RuntimeError(f"{' '.join(words)}: status {ended.returncode}, {text}")
    return ended.stdout
