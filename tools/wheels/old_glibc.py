"""Lets the GCC of this machine link for an old glibc, as manylinux asks of wheels.

A linker binds each function to the version of it that the C library beside it has, and the wheel
then runs with that C library and newer ones only. pip's `ziglang` makes libraries to link with
for any glibc: all of its names and versions, and no code. GCC compiles: code of clang has other
bits, where both may fuse a multiplication and an addition, and was slower.

libstdc++ goes into each module, as that of an old system lacks what GCC uses, and stays invisible
there (exported.map), as a process may have another one. What it asks of the C library, and an old
one lacks, is in old_glibc.c. Anything else that a module asks for, and is in no library, is found
by contents.py.
"""

import os
import pathlib
import shutil
import subprocess
import sys

GLIBC = "2.28"
_ZIG = (sys.executable, "-m", "ziglang")
_HERE = pathlib.Path(__file__).parent
# All that a module may be linked with; the rest of a C library is for programs.
_LIBRARIES = {"m": "libm.so.6", "dl": "libdl.so.2", "pthread": "libpthread.so.0"}
_LIBRARIES |= {"rt": "librt.so.1"}


def _run(*command: str | pathlib.Path, **variables: str) -> None:
    subprocess.run([str(word) for word in command], env={**os.environ, **variables}, check=True)


def _of_zig(folder: pathlib.Path, architecture: str) -> list[pathlib.Path]:
    """The folders in which zig leaves the libraries of that glibc."""
    cache = folder / "zig"
    source = folder / "empty.c"
    source.write_text("")
    _run(
        *(*_ZIG, "cc", "-target", f"{architecture}-linux-gnu.{GLIBC}"),
        *("-shared", "-o", folder / "empty.so", source, *(f"-l{name}" for name in _LIBRARIES)),
        ZIG_GLOBAL_CACHE_DIR=str(cache),
        ZIG_LOCAL_CACHE_DIR=str(cache),
    )
    found = [next(cache.rglob(name)) for name in ("libc.so.6", "libc_nonshared.a")]
    return [path.parent for path in found]


def make(folder: pathlib.Path, architecture: str, compiler: str = "gcc") -> pathlib.Path:
    """The folder of libraries to link with for that glibc, made on first use."""
    if (folder / "libc.so").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shared, nonshared = _of_zig(folder, architecture)
    for path in (*shared.glob("*.so.*"), nonshared / "libc_nonshared.a"):
        shutil.copy(path, folder)
    for name, library in _LIBRARIES.items():
        (folder / f"lib{name}.so").symlink_to(library)
    _run(compiler, "-O2", "-fPIC", "-c", _HERE / "old_glibc.c", "-o", folder / "old_glibc.o")
    _run(*_ZIG, "ar", "rcs", folder / "libold_glibc.a", folder / "old_glibc.o")
    # What has moved into libc.so.6 since is beside it in an old one.
    beside = f"{' '.join(_LIBRARIES.values())} libld.so.2"
    text = f"GROUP ( libc.so.6 libc_nonshared.a libold_glibc.a AS_NEEDED ( {beside} ) )\n"
    (folder / "libc.so").write_text(text)
    shutil.rmtree(folder / "zig")
    return folder


def link_flags(folder: pathlib.Path) -> list[str]:
    """Flags of GCC that link a module with the libraries of `make`."""
    exported = _HERE / "exported.map"
    return [f"-L{folder}", "-static-libstdc++", f"-Wl,--version-script={exported}", "-Wl,-s"]
