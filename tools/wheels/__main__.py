"""Builds the source distribution and wheels into dist/, checks and tries them: `make wheels`.

    python -m tools.wheels [--cuda ON | OFF | AUTO] [--only build | check | try] [--seconds 60]
    python -m tools.wheels --machine aarch64 --define CMAKE_TOOLCHAIN_FILE=... --only build check

Pythons are looked for on PATH and among pyenv's; wheels are built by 3.11 and 3.12 and tried on
all that are there. A trial that takes longer than --seconds from an empty environment to its first
transform fails. `make arm` builds those for aarch64 beside them, and tries one.
"""

import argparse
import pathlib
import platform
import shutil
import subprocess
import sys

from tools import launcher
from tools.wheels import build, contents, trial

BUILT_BY = ("3.11", "3.12")
TRIED_ON = ("3.11", "3.12", "3.13", "3.14")


def find_python(version: str) -> pathlib.Path | None:
    """An interpreter of that version that runs; a pyenv shim may exist and fail.

    In an activated environment it is the Python below it: `pip wheel` would see what is installed
    there.
    """
    pyenv = pathlib.Path.home() / ".pyenv" / "versions"
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"{version}.*/bin/python3")),
    ]
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)"
    for candidate in filter(None, candidates):
        asked = subprocess.run(
            [str(candidate), "-c", code], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.startswith(f"{version} "):
            prefix = pathlib.Path(asked.stdout.split(maxsplit=1)[1].strip())
            found = prefix / "bin" / f"python{version}"
            if found.is_file():
                return found
    return None


def build_all(work: pathlib.Path, dist: pathlib.Path, cuda: str, target: build.Target) -> None:
    """The source distribution, and the wheels from it."""
    dist.mkdir(exist_ok=True)
    for old in (*dist.glob("*.tar.gz"), *wheels_for(dist, target)):
        old.unlink()
    source = build.unpack(build.sdist(work, dist), work)
    for version in BUILT_BY:
        python = find_python(version)
        if python is None:
            raise RuntimeError(f"no Python {version} on PATH or in ~/.pyenv/versions")
        wheel = build.wheel(source, python, work, dist, cuda, target)
        print(f"== built: {wheel.name}", flush=True)


def wheels_for(dist: pathlib.Path, target: build.Target, pattern: str = "*") -> list[pathlib.Path]:
    """Those for a machine, of which the rest of the name fits."""
    return sorted(dist.glob(f"{pattern}_{target.machine}.whl"))


def check_all(dist: pathlib.Path, target: build.Target) -> list[str]:
    """What is wrong with what is there."""
    (source,) = dist.glob("*.tar.gz")
    wheels = wheels_for(dist, target)
    wrong = [f"{source.name} {text}" for text in contents.of_sdist(source)]
    print(f"== {source.name}: {source.stat().st_size / 1e6:.1f} MB")
    for wheel in wheels:
        with_cuda = "with" if contents.has_cuda(wheel) else "without"
        print(f"== {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {with_cuda} CUDA")
        wrong += [f"{wheel.name} {text}" for text in contents.of_wheel(wheel)]
        build.run("auditwheel", "show", wheel)
        if "abi3" in wheel.name:
            build.run("abi3audit", "--strict", wheel)
    build.run("twine", "check", "--strict", source, *wheels)
    return wrong


def wheel_for(dist: pathlib.Path, version: str) -> pathlib.Path:
    """The one that pip takes for this Python on this machine."""
    pattern = "*-cp311-cp311-*" if version == "3.11" else "*-abi3-*"
    (wheel,) = wheels_for(dist, build.Target(), pattern)
    return wheel


def try_all(work: pathlib.Path, dist: pathlib.Path, seconds: float) -> list[str]:
    """What went wrong: the oldest and the newest Python under every MPI, others under one."""
    pythons = {version: find_python(version) for version in TRIED_ON}
    there = {version: python for version, python in pythons.items() if python}
    print(
        f"== Pythons: {', '.join(there)}; not here: {', '.join({*pythons} - {*there}) or 'none'}"
    )
    mpis = [mpi for mpi in trial.MPIS if platform.machine() in mpi.machines]
    wrong = []
    for version, python in there.items():
        ends = version in (min(there), max(there, key=TRIED_ON.index))
        for mpi in mpis if ends else mpis[:1]:
            try:
                took = trial.trial(wheel_for(dist, version), python, mpi, work)
            except (RuntimeError, subprocess.SubprocessError) as error:
                wrong.append(f"Python {version}, {mpi.name}: {error}")
                continue
            if took > seconds:
                wrong.append(f"Python {version}, {mpi.name}: {took:.0f} s to a first transform")
    return wrong


def main() -> int:
    """The exit status: 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuda", choices=["ON", "OFF", "AUTO"], default="AUTO")
    parser.add_argument("--machine", default=platform.machine())
    parser.add_argument("--define", action="append", default=[], help="for CMake: NAME=VALUE")
    steps = ["build", "check", "try"]
    parser.add_argument("--only", nargs="+", choices=steps, default=steps)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    target = build.Target(arguments.machine, tuple(arguments.define))
    if "try" in arguments.only and not target.is_here:
        parser.error(f"wheels for {target.machine} cannot be tried on {platform.machine()}")
    work, dist = launcher.ROOT / "build" / "wheels", launcher.ROOT / "dist"
    work.mkdir(parents=True, exist_ok=True)
    wrong = []
    if "build" in arguments.only:
        build_all(work, dist, arguments.cuda, target)
    if "check" in arguments.only:
        wrong += check_all(dist, target)
    if "try" in arguments.only:
        wrong += try_all(work, dist, arguments.seconds)
    for text in wrong:
        print(f"== FAILED: {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
