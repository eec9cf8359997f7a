"""The module for AMD's GPUs compiles for all that it is meant for, warnings as errors: `make hip`.

No GPU of AMD's has run it. What can be seen without one is looked at: for which of them there
is code, that no thread keeps registers in memory, that paint adds by single instructions, and that
the module loads and its table answers.

This needs HIP's headers and a clang that knows the architectures: ROCm's, or Debian 12's, whose
packages have no device library for gfx942. It differs from that of gfx940 by a number.

    apt-get install hipcc libamdhip64-dev rocm-device-libs \\
      clang-tools-19 libclang-rt-19-dev lld-19 llvm-19
"""

import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from tools import gpu_runtime, launcher

ARCHITECTURES = ("gfx90a", "gfx942")
BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
DEBIAN = pathlib.Path("/usr/lib/llvm-19/bin")
DEBIAN_BITCODE = pathlib.Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
ROCM = pathlib.Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
BUILD = launcher.ROOT / "build" / "hip"
# Memory that a kernel's threads would have of their own, and registers that would be kept there.
WITHOUT = ("private_segment_fixed_size", "vgpr_spill_count")


def run(*command: str | os.PathLike[str], text: str | None = None) -> str:
    """The output of a command that is given `text`; it must succeed."""
    return subprocess.run(
        command, stdout=subprocess.PIPE, input=text, text=True, check=True, cwd=launcher.ROOT
    ).stdout


def compiler() -> pathlib.Path | None:
    """The folder of a clang with HIP: of ROCm, or of Debian's packages."""
    for folder in (ROCM / "llvm" / "bin", ROCM / "lib" / "llvm" / "bin", DEBIAN):
        if (folder / "clang++").exists():
            return folder
    return None


def debian_flags(tools: pathlib.Path) -> list[str]:
    """Options for Debian's HIP, with a device library for gfx942 beside those that it has."""
    bitcode = BUILD / "bitcode"
    bitcode.mkdir(parents=True, exist_ok=True)
    for path in DEBIAN_BITCODE.glob("*.bc"):
        shutil.copy(path, bitcode)
    text = run(tools / "llvm-dis", bitcode / "oclc_isa_version_940.bc", "-o", "-")
    assert text.count("i32 9400") == 1
    target = bitcode / "oclc_isa_version_942.bc"
    run(tools / "llvm-as", "-o", target, text=text.replace("i32 9400", "i32 9402"))
    return [f"-DCMAKE_HIP_FLAGS=--rocm-device-lib-path={bitcode}"]


def build(tools: pathlib.Path) -> pathlib.Path:
    """The module, as a user's build makes it."""
    command = ["cmake", "-S", launcher.ROOT, "-B", BUILD, "-G", "Ninja"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", "-DPFFTJAX_WERROR=ON"]
    command += ["-DPFFTJAX_HIP=ON", f"-DCMAKE_HIP_COMPILER={tools / 'clang++'}"]
    run(*command, *(debian_flags(tools) if tools == DEBIAN else []))
    run("cmake", "--build", BUILD, "--target", "pfftjax_hip")
    return BUILD / "_hip.so"


def code_in(path: pathlib.Path) -> dict[str, list[bytes]]:
    """The code objects of a shared object, by architecture.

    A bundle begins with a magic text and the number of entries; each has where it lies in the
    bundle, how many bytes it has, the length of its name and the name, which ends in the
    architecture. There is a bundle for each source with kernels.
    """
    data = path.read_bytes()
    found: dict[str, list[bytes]] = {}
    for start in (match.start() for match in re.finditer(BUNDLE, data)):
        at = start + len(BUNDLE)
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", data, at)
            name = data[at + 24 : at + 24 + length].decode()
            at += 24 + length
            if size and not name.startswith("host"):
                code = data[start + offset : start + offset + size]
                found.setdefault(name.rsplit("-", 1)[1], []).append(code)
    return found


def look_at_kernels(tools: pathlib.Path, architecture: str, objects: list[bytes]) -> list[str]:
    """What is wrong with the kernels of an architecture; says what they are."""
    wrong, kernels, added = [], 0, 0
    for code in objects:
        with tempfile.NamedTemporaryFile() as file:
            file.write(code)
            file.flush()
            notes = run(tools / "llvm-readelf", "--notes", file.name)
            listing = run(tools / "llvm-objdump", "-d", file.name)
        names = re.findall(r"^\s+\.name:\s+(_Z\w+)$", notes, re.MULTILINE)
        kernels += len(names)
        for field in WITHOUT:
            values = re.findall(rf"\.{field}:\s+(\d+)", notes)
            wrong += [
                f"{field} of {name} is {value}"
                for name, value in zip(names, values, strict=True)
                if value != "0"
            ]
        added += len(re.findall(r"\b(?:global|flat)_atomic_add_f(?:32|64)\b", listing))
        loops = re.findall(r"\b\w+_atomic_cmpswap\w*", listing)
        wrong += [f"{name} adds in a loop" for name in sorted(set(loops))]
    if not kernels:
        wrong.append("there are no kernels")
    if not added:
        wrong.append("no floating-point number is added to memory")
    print(f"== HIP {architecture}: {kernels} kernels; {added} instructions that add to memory")
    return [f"{architecture}: {what}" for what in wrong]


def look_at_table(path: pathlib.Path) -> list[str]:
    """What is wrong with the table that a process without a GPU finds."""
    runtime = gpu_runtime.Runtime(path)
    named = [runtime.api.platform, runtime.api.nccl, runtime.api.nccl_file]
    wrong = [] if named == [b"ROCM", b"RCCL", b"librccl.so.1"] else [f"it names {named}"]
    device = ctypes.c_int()
    try:
        runtime.call("current_device", ctypes.byref(device))
        print(f"== {runtime.name}: device {device.value}")
    except RuntimeError as error:
        print(f"== {error}")
    return wrong


def main() -> int:
    """The exit status; says what was found."""
    tools = compiler()
    if tools is None:
        print(f"== HIP: no clang with HIP in {ROCM} or {DEBIAN}, nothing to see")
        return 0
    module = build(tools)
    found = code_in(module)
    wrong = [f"no code for {a}" for a in ARCHITECTURES if a not in found]
    for architecture, objects in sorted(found.items()):
        wrong += look_at_kernels(tools, architecture, objects)
    wrong += look_at_table(module)
    print("== FAILED: " + "; ".join(wrong) if wrong else f"== HIP: {module} is as it should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
