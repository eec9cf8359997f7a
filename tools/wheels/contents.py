"""What is in a wheel and in the source distribution, and what the modules ask of a system."""

import pathlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from io import BytesIO

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tools import launcher
from tools.release import project
from tools.wheels import build, old_glibc

# The minor version of glibc and the machine in a wheel's name.
PLATFORM = re.compile(r"manylinux_2_(\d+)_(\w+)")
LARGEST = 25e6  # bytes of a wheel
RUNTIME = "pfftjax/_runtime"
FAMILIES = ("abi", "mpich", "openmpi")
# Every glibc system has these; no MPI is among them, as mpi4py brings it.
LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
LIBRARIES |= {"libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# What the process has before a module is loaded: Python, and for backends the MPI.
OF_PYTHON = ("Py", "_Py")
OF_MPI = ("MPI_", "ompi_", "OMPI_")
EXPORTED = {"_native": "PyInit__native", "_cuda": "pfftjax_device_api", "_mpi": "pfftjax_mpi_api"}


def expected_sdist() -> set[str]:
    """The source, and what the README shows; the metadata."""
    files = "CHANGELOG.md CITATION.cff CMakeLists.txt LICENSE README.md pyproject.toml".split()
    pictures = {f"docs/pictures/{name}.png" for name in ("fft", "nbody")}
    return {*files, *pictures, "PKG-INFO", *build.tracked("cpp", "pfftjax", "third_party")}


def expected_wheel(native: str, has_cuda: bool) -> set[str]:
    """The package, its modules and the metadata."""
    about = f"pfftjax-{project()['version']}.dist-info"
    metadata = {"METADATA", "RECORD", "WHEEL", "entry_points.txt"}
    licences = {
        name for name in build.tracked("LICENSE", "third_party") if name.endswith("LICENSE")
    }
    modules = {native, *(f"_mpi_{family}.so" for family in FAMILIES)}
    modules |= {"_cuda.so"} if has_cuda else set()
    return {
        *build.tracked("pfftjax"),
        *(f"{RUNTIME}/{name}" for name in modules),
        *(f"{about}/{name}" for name in metadata),
        *(f"{about}/licenses/{name}" for name in licences),
    }


def _differences(found: set[str], expected: set[str]) -> Iterator[str]:
    yield from (f"has {name}" for name in sorted(found - expected))
    yield from (f"lacks {name}" for name in sorted(expected - found))


def of_sdist(path: pathlib.Path) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(path) as archive:
        found = {name.split("/", 1)[1] for name in archive.getnames()}
    return list(_differences(found, expected_sdist()))


def _is_allowed(symbol: str, module: str) -> bool:
    return symbol.startswith(OF_PYTHON if module == "_native" else OF_MPI)


def has_cuda(path: pathlib.Path) -> bool:
    """Whether the CUDA module is in a wheel: it was built where nvcc works."""
    with zipfile.ZipFile(path) as archive:
        return f"{RUNTIME}/_cuda.so" in archive.namelist()


def of_module(name: str, content: bytes) -> Iterator[str]:
    """What is wrong with a shared object of this name."""
    kind = next(kind for kind in EXPORTED if name.startswith(kind))
    elf = ELFFile(BytesIO(content))
    for tag in next(s for s in elf.iter_sections() if isinstance(s, DynamicSection)).iter_tags():
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in LIBRARIES:
            yield f"{name} needs {tag.needed}"
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
            yield f"{name} looks for libraries in {getattr(tag, 'runpath', None) or tag.rpath}"
    versions = elf.get_section_by_name(".gnu.version")
    symbols = elf.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    exported = set()
    for number, symbol in enumerate(symbols.iter_symbols()):
        binding = symbol["st_info"]["bind"]
        if not symbol.name:  # a section, which linkers for Arm list
            continue
        if symbol["st_shndx"] != "SHN_UNDEF":
            exported.add(symbol.name)
        elif binding == "STB_GLOBAL":
            # Numbers from 2 on are those of versions, of which a library above is known to be one.
            has_version = versions is not None and versions.get_symbol(number)["ndx"] not in (
                "VER_NDX_LOCAL",
                "VER_NDX_GLOBAL",
            )
            if not has_version and not _is_allowed(symbol.name, kind):
                yield f"{name} wants {symbol.name}, and no library of glibc has it"
    if exported != {EXPORTED[kind]}:
        yield f"{name} exports {sorted(exported)}"
    if str(launcher.ROOT).encode() in content:
        yield f"{name} names {launcher.ROOT}"


def of_wheel(path: pathlib.Path) -> list[str]:
    """What is wrong with a wheel."""
    python, abi, platforms = path.stem.split("-")[-3:]
    is_stable = abi == "abi3"
    systems = PLATFORM.findall(platforms)
    machine = systems[0][1] if systems else "unknown"
    native = "_native.abi3.so" if is_stable else f"_native.{_suffix(python, machine)}"
    wrong = [] if path.stat().st_size < LARGEST else [f"has {path.stat().st_size} bytes"]
    newest = int(old_glibc.GLIBC.split(".")[1])
    if not any(int(minor) <= newest for minor, _ in systems):
        wrong.append(f"is for {platforms}, and not for glibc {old_glibc.GLIBC}")
    with zipfile.ZipFile(path) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
        wrong += _differences(files, expected_wheel(native, has_cuda(path)))
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        page = archive.read(metadata).decode()
        wrong += [f"has a link to {found[3]}" for found in build.RELATIVE.finditer(page)]
        for name in archive.namelist():
            if name.endswith(".so"):
                wrong += of_module(pathlib.Path(name).name, archive.read(name))
    return wrong


def _suffix(python: str, machine: str) -> str:
    """The name's end of a module for one Python: cp311 on x86_64."""
    return f"cpython-{python.removeprefix('cp')}-{machine}-linux-gnu.so"
