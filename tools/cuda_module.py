"""The CUDA module is there wherever nvcc works, with code for what has to run, and XLA's compiler
for GPUs makes of our programs what it should (tests/gpu/compiled.py): `make cuda`.

The build leaves the module out without a word where it cannot be built; here that would show.
"""

import importlib.metadata
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

from tools import launcher

ARCHITECTURES = (80, 90)
SINCE = {(12, 8): (100,)}  # of CUDA
FATBIN = struct.pack("<I", 0xBA55ED50)
PTX, CUBIN = 1, 2


def cuda_version(nvcc: str) -> tuple[int, int] | None:
    """The version of a compiler that can build a program, or None."""
    with tempfile.TemporaryDirectory() as name:
        source = pathlib.Path(name) / "program.cu"
        source.write_text("int main() { return CUDART_VERSION == 0; }\n")
        program = source.with_suffix("")
        command = [nvcc, "--cudart=static", str(source), "-o", str(program)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = text.split("release ")[1].split(",")[0].split(".")
    return int(major), int(minor)


def code_in(path: pathlib.Path) -> set[tuple[int, int]]:
    """(PTX or CUBIN, architecture) of what is in a shared object, as cuobjdump lists it.

    Containers begin with a header (magic number, version, length of the header, length of what
    follows); so does each entry (kind, version, length of the header, length), which has the
    architecture in its eighth word.
    """
    data = path.read_bytes()
    found = set()
    start = data.find(FATBIN)
    while start >= 0:
        _, header, size = struct.unpack_from("<HHQ", data, start + 4)
        at = start + header
        end = at + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            found.add((kind, struct.unpack_from("<I", data, at + 28)[0]))
            at += header + size
        start = data.find(FATBIN, end)
    return found


def compile_programs(cuda: int, ranks: int = 2) -> int:
    """The exit status of tests/gpu/compiled.py, with JAX's plugin for this CUDA.

    The plugin is kept apart, where no other test sees it: two wheels of 130 MB, without the
    libraries of NVIDIA's that they name, which only a GPU needs.
    """
    version = importlib.metadata.version("jax")
    folder = pathlib.Path(sys.prefix) / f"plugin-cuda{cuda}-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        wheels = [f"jax-cuda{cuda}-{part}=={version}" for part in ("plugin", "pjrt")]
        subprocess.run([*pip, "--no-deps", "--target", str(folder), *wheels], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    tests = ("-m", "pytest", "--with-mpi", "-q", "tests/gpu/compiled.py")
    return subprocess.run(
        launcher.command(ranks, *tests),
        cwd=launcher.ROOT,
        env=launcher.environment(PYTHONPATH=os.pathsep.join(paths)),
        check=False,
    ).returncode


def main() -> int:
    """The exit status; says what was found."""
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    version = cuda_version(nvcc) if nvcc else None
    if version is None:
        print("== CUDA: no nvcc that works, nothing to see")
        return 0
    from pfftjax._runtime.ffi import native

    module = pathlib.Path(native.__file__).parent / "_cuda.so"
    if not module.exists():
        print(f"== FAILED: {nvcc} works, but there is no {module}")
        return 1
    found = code_in(module)
    wanted = [*ARCHITECTURES]
    for since, more in SINCE.items():
        wanted += more if version >= since else ()
    missing = {(CUBIN, architecture) for architecture in wanted} | {(PTX, wanted[-1])}
    missing -= found
    print(f"== CUDA {version}: {sorted(found)}, (1: PTX, 2: machine code; architecture)")
    if missing:
        print(f"== FAILED: no {sorted(missing)} in {module}")
        return 1
    status = compile_programs(version[0])
    print("== CUDA: " + ("FAILED: programs" if status else "programs compile") + " for GPUs")
    return status


if __name__ == "__main__":
    sys.exit(main())
