"""The layers of the design: each imports only from those before it, and JAX's insides from one
place only."""

import ast

from tests.launcher import ROOT

LAYERS = ["collectives", "pencils", "autodiff", "fft", "spectral", "pm", "io"]


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


def _modules():
    return sorted((ROOT / "pfftjax").rglob("*.py"))


def test_layers_import_only_from_those_before():
    assert _modules()
    for path in _modules():
        parts = path.relative_to(ROOT).parts
        if parts[1] not in LAYERS:
            continue
        later = LAYERS[LAYERS.index(parts[1]) + 1 :]
        for name in _imports(path):
            assert not any(name.startswith(f"pfftjax.{layer}") for layer in later), (path, name)


def test_only_one_module_imports_the_extension_and_one_the_insides_of_jax():
    for path in _modules():
        for name in _imports(path):
            if "_native" in name:
                assert path.name == "_ffi.py", (path, name)
            if name.startswith("jax._src"):
                assert path.name == "_ordering.py", (path, name)


def test_files_are_short():
    sources = [path for end in ("cc", "cu", "h") for path in (ROOT / "cpp").rglob(f"*.{end}")]
    sources += _modules()
    for path in sources:
        assert len(path.read_text().splitlines()) <= 600, path
