"""The recipes in packaging/ want what pyproject.toml wants, in the versions that it says."""

import re
import runpy
import sys
import tomllib
import types

import pytest
import yaml

from tools.container import DEFINITION, release_of, sections
from tools.launcher import ROOT

pytestmark = pytest.mark.ranks(1)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGING = ROOT / "packaging"
# pip finds these in the other dependencies; a recipe that is built without isolation names them.
BUILD = {"scikit-build-core", "nanobind"}


def bounds(requirements):
    """The least version of each package, by requirements as pip writes them."""
    found = (re.fullmatch(r"([\w-]+)\s*[>=]=([\d.]+)", text) for text in requirements)
    return {match[1]: match[2] for match in found if match}


RUN = bounds(PROJECT["project"]["dependencies"])
IO = bounds(PROJECT["project"]["optional-dependencies"]["io"])
TOOLS = {
    name: v for name, v in bounds(PROJECT["build-system"]["requires"]).items() if name in BUILD
}
PYTHON = PROJECT["project"]["requires-python"].removeprefix(">=")


def test_there_is_something_to_compare():
    assert {"jax", "mpi4py", "numpy"} <= set(RUN)
    assert "h5py" in IO
    assert {"scikit-build-core", "nanobind"} <= set(TOOLS)


def test_conda():
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == PROJECT["project"]["version"]
    wanted = recipe["requirements"]
    assert bounds(wanted["run"]) == RUN
    assert bounds(wanted["run_constraints"]) == IO
    assert TOOLS.items() <= bounds(wanted["host"]).items()
    variants = yaml.safe_load((PACKAGING / "conda" / "variants.yaml").read_text())
    assert set(variants["mpi"]) == {"openmpi", "mpich"}
    for mpi in ("host", "run"):
        assert "${{ mpi }}" in wanted[mpi]


@pytest.fixture
def dependencies_of_spack(monkeypatch):
    """What the class of the recipe says to Spack: {specification: the rest}."""
    found = {}
    spack = types.ModuleType("spack.package")
    spack.depends_on = lambda spec, **more: found.update({spec: more})
    spack.license = spack.variant = spack.version = lambda *_, **__: None
    python = types.ModuleType("spack_repo.builtin.build_systems.python")
    python.PythonPackage = object
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for module in (spack, python):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    names = runpy.run_path(str(PACKAGING / "spack" / "py-pfftjax" / "package.py"))
    assert names["PyPfftjax"].__doc__
    return found


def test_spack(dependencies_of_spack):
    found = {}
    for spec, more in dependencies_of_spack.items():
        name, _, least = spec.removeprefix("py-").partition("@")
        found[name] = (least.rstrip(":"), more)
    assert found["python"][0] == PYTHON
    for name, least in {**RUN, **IO}.items():
        assert found[name][0] == least, name
        assert "run" in found[name][1]["type"], name
    for name, least in TOOLS.items():
        assert found[name][0] == least, name
        assert "build" in found[name][1]["type"], name
    assert found["h5py"][1]["when"] == "+io"


def test_container():
    """`make container` carries out the sections."""
    found = sections(DEFINITION.read_text())
    assert {"header", "files", "post", "environment", "runscript", "test"} <= set(found)
    assert release_of(found["header"]) == "trixie"
    for line in found["files"].split("\n"):
        assert not line.strip() or (ROOT / line.split()[0]).exists(), line
    extras = re.search(r"/opt/source\[([\w,]+)\]", found["post"])[1].split(",")
    assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])


def test_the_container_gets_what_is_built():
    """The source distribution, but for what it only shows."""
    settings = PROJECT["tool"]["scikit-build"]
    shown = {"CHANGELOG.md", "CITATION.cff", "docs"}
    built = {path.split("/")[1] for path in settings["sdist"]["include"]} - shown
    files = sections(DEFINITION.read_text())["files"]
    assert built == {line.split()[0] for line in files.splitlines() if line.strip()}
