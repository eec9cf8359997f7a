"""The layers of the design: each imports only from those before it, and JAX's insides from one
place only. And what tools take for granted of the sources."""

import ast
import collections
import re

import pytest

from tools.launcher import ROOT
from tools.mutants.__main__ import MUTANTS

CPP_LAYERS = ["base", "mpi", "runtime", "collectives", "pencils", "fft", "pm", "nufft", "gpu"]
# These are not in cpp/: a header of XLA's, and two that tests put in the place of something.
ELSEWHERE = {"xla/ffi/api/ffi.h", "simulated/process.h", "cuda_emulator.h"}
LAYERS = [
    "_runtime",
    "collectives",
    "pencils",
    "autodiff",
    "fft",
    "spectral",
    "pm",
    "nufft",
    "observables",
    "sampling",
    "io",
]
LAYERS += ["diagnostics"]


def _imports(path):
    """Absolute names of what a module of the package imports."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _modules(folder="pfftjax"):
    return sorted((ROOT / folder).rglob("*.py"))


def test_layers_import_only_from_those_before():
    assert _modules()
    for path in _modules():
        parts = path.relative_to(ROOT).parts
        if parts[1] not in LAYERS:
            continue
        later = LAYERS[LAYERS.index(parts[1]) + 1 :]
        for name in _imports(path):
            assert not any(name.startswith(f"pfftjax.{layer}") for layer in later), (path, name)


def private_imports(path, names):
    """What a module of the package may not import: private modules of other folders."""
    folder = ".".join(path.relative_to(ROOT).parts[:-1])
    wanted = re.compile(rf"(?!{re.escape(folder)}\._)pfftjax(\.[a-z]\w*)*\._(?!runtime\b)\w+")
    return sorted(name for name in names if wanted.match(name) and "__" not in name)


def test_no_folder_imports_private_modules_of_another():
    for path in _modules():
        assert private_imports(path, _imports(path)) == [], path
    planted = ROOT / "pfftjax" / "pm" / "_field.py"
    assert private_imports(planted, ["pfftjax.fft._plan.run"]) == ["pfftjax.fft._plan.run"]


# Benchmarks start ranks as the tests do, and use the same stand-ins for a GPU.
SHARED_TOOLS = r"tools(\.(launcher|fake_device|gpu_runtime)(\.\w+)*)?"


def imports_of_tests(folder, names):
    """Which of the names that a module of this folder imports belong to the tests or the tools."""
    allowed = SHARED_TOOLS if folder == "benchmarks" else r"(?!)"
    ours = [name for name in names if re.match(r"(tests|tools)(\.|$)", name)]
    return [name for name in ours if not re.fullmatch(allowed, name)]


@pytest.mark.parametrize("folder", ["pfftjax", "examples", "benchmarks"])
def test_what_users_see_imports_nothing_of_the_tests(folder):
    assert _modules(folder)
    for path in _modules(folder):
        assert imports_of_tests(folder, _imports(path)) == [], path
    planted = ["tests.helpers", "tools.run", "tools.launcher.ROOT", "jax"]
    refused = planted[:2] if folder == "benchmarks" else planted[:3]
    assert imports_of_tests(folder, planted) == refused


def test_only_one_module_imports_the_extension_and_one_the_insides_of_jax():
    for path in _modules():
        for name in _imports(path):
            if "_native" in name:
                assert path.name == "ffi.py", (path, name)
            if name.startswith("jax._src"):
                assert path.name == "ordering.py", (path, name)


def _sources():
    return sorted(path for end in ("cc", "cu", "h") for path in (ROOT / "cpp").rglob(f"*.{end}"))


def upward_includes(path, text):
    """What a file of the C++ core, with this text, may not include."""
    folder = path.relative_to(ROOT / "cpp").parent.name
    allowed = CPP_LAYERS[: CPP_LAYERS.index(folder) + 1] if folder else CPP_LAYERS
    included = set(re.findall(r'#include "([^"]+)"', text)) - ELSEWHERE
    return sorted(name for name in included if name.split("/")[0] not in allowed)


def test_a_folder_of_the_core_includes_only_from_those_before():
    assert {path.parent.name for path in _sources()} == {"cpp", *CPP_LAYERS}
    for path in _sources():
        assert upward_includes(path, path.read_text()) == [], path
    planted = ROOT / "cpp" / "runtime" / "call.cc"
    assert upward_includes(planted, '#include "gpu/queue.h"\n') == ["gpu/queue.h"]


def test_no_two_files_of_the_core_have_one_name():
    names = collections.Counter(path.name for path in (ROOT / "cpp").rglob("*.*"))
    assert [name for name, count in names.items() if count > 1] == []


def test_what_mutants_change_is_there():
    """Once in its file, or `make mutants` has nothing to break and calls it stale."""
    stale = [m.what for m in MUTANTS if m.file.read_text().count(m.old) != 1]
    assert stale == []


def _all_files():
    folders = ("pfftjax", "tests", "tools", "examples", "benchmarks")
    return [*(path for folder in folders for path in _modules(folder)), *_sources()]


def test_files_are_short():
    for path in _all_files():
        assert len(path.read_text().splitlines()) <= 500, path


FRAGMENTS = ("Of", "Whose")


def without_subject(text):
    """Comments and docstrings that only add to a name, with "of each row", and say nothing."""
    return re.findall(rf'(?:#|//|""") ?(?:{"|".join(FRAGMENTS)}) .*', text)


def test_comments_have_a_subject():
    for path in _all_files():
        assert without_subject(path.read_text()) == [], path
    for word in FRAGMENTS:
        assert without_subject(f"x = 1  # {word} each row\n") == [f"# {word} each row"]
