"""What the package says of itself, and the headers of others that are beside its source."""

import importlib.metadata
import importlib.util
import io
import pathlib
import re
import tarfile
import tomllib

import pytest

import pfftjax
from tools import release
from tools.launcher import ROOT
from tools.wheels import build

pytestmark = pytest.mark.ranks(1)
HEADERS = ROOT / "third_party" / "xla" / "ffi" / "api"


def _oldest_jax():
    (jax,) = [name for name in release.project()["dependencies"] if re.match(r"jax\b", name)]
    return jax.removeprefix("jax>=")


def _number(text, name):
    return int(re.search(rf"#define {name} (\d+)", text)[1])


def test_files_agree_on_version_urls_and_authors():
    assert list(release.inconsistencies()) == []


def test_an_inconsistency_is_found(monkeypatch):
    read = release.read
    monkeypatch.setattr(
        release, "read", lambda name: re.sub(r'version: ("?)', r"version: \g<1>9", read(name))
    )
    citation, recipe = release.inconsistencies()
    assert citation.startswith("CITATION.cff has version 9")
    assert recipe.startswith("packaging/conda/recipe.yaml has version 9")


def test_a_release_is_written(tmp_path, monkeypatch):
    """The version, in every file that has it, and the date; twice is as good as once."""
    for name in (*release.VERSIONS, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(release.read(name))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    for _ in range(2):
        release.write("9.8.7")
        assert release.project()["version"] == "9.8.7"
        assert list(release.inconsistencies()) == []
        assert release.CHECKS["the version has its date, and its part of CHANGELOG.md"]() is None
        assert release.read("CITATION.cff").count("date-released") == 1
        assert release.read("CHANGELOG.md").count("9.8.7") == 1
        # The day of the tag is the one that counts.
        earlier = re.sub(r"## 9.8.7 - .*", "## 9.8.7 - 2001-01-01", release.read("CHANGELOG.md"))
        (tmp_path / "CHANGELOG.md").write_text(earlier)
    with pytest.raises(SystemExit, match="no version"):
        release.write("v9.8")


def test_the_oldest_jax_is_the_one_whose_headers_are_here():
    """A binary runs on the jaxlib whose headers it was built with, and on newer ones."""
    assert f"jaxlib {_oldest_jax()}," in (ROOT / "third_party" / "README.md").read_text()
    installed = (
        pathlib.Path(importlib.util.find_spec("jaxlib").origin).parent / "include/xla/ffi/api"
    )
    is_oldest = importlib.metadata.version("jaxlib") == _oldest_jax()
    for header in HEADERS.iterdir():
        ours, theirs = header.read_text(), (installed / header.name).read_text()
        assert not is_oldest or ours == theirs
    ours, theirs = [(folder / "c_api.h").read_text() for folder in (HEADERS, installed)]
    major, minor = "XLA_FFI_API_MAJOR", "XLA_FFI_API_MINOR"
    assert _number(ours, major) == _number(theirs, major)
    assert _number(ours, minor) <= _number(theirs, minor)


def test_types_are_declared():
    """What `Typing :: Typed` says to users is what type checkers look for."""
    assert "Typing :: Typed" in release.project()["classifiers"]
    assert (pathlib.Path(pfftjax.__file__).parent / "py.typed").exists()


def test_licences_of_all_that_is_compiled_in():
    files = release.project()["license-files"]
    found = {path for pattern in files for path in ROOT.glob(pattern)}
    assert found == {ROOT / "LICENSE", *(ROOT / "third_party").glob("*/LICENSE")}
    assert {path.parent.name for path in found} >= {"nanobind", "xla"}
    words = {
        "Apache-2.0": "Apache License",
        "BSD-3-Clause": "Redistribution",
        "MIT": "MIT License",
    }
    texts = [path.read_text() for path in found]
    for licence in release.project()["license"].split(" AND "):
        assert any(words[licence] in text for text in texts), licence


def test_the_source_distribution_has_what_the_readme_shows():
    included = tomllib.loads(release.read("pyproject.toml"))["tool"]["scikit-build"]["sdist"]
    shown = set(re.findall(r"!\[[^]]*\]\((?!https?:)([^)]+)\)", release.read("README.md")))
    pictures = {path for path in included["include"] if path.startswith("/docs")}
    assert pictures == {f"/{path}" for path in shown}


def test_a_build_sees_what_has_changed(tmp_path):
    """Archives give all their files one time: a build by times would keep what was there."""

    def unpack(**files):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"a-1/{name}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        folder = build.unpack(tmp_path / "a.tar", tmp_path / "work")
        return {
            path.name: (path.read_text(), path.stat().st_mtime_ns) for path in folder.iterdir()
        }

    first = unpack(same="1", other="2", gone="3")
    second = unpack(same="1", other="4", new="5")
    assert sorted(second) == ["new", "other", "same"]
    assert second["same"] == first["same"]
    assert second["other"][0] == "4"
    assert second["other"][1] > first["other"][1]


def test_the_page_on_pypi_has_addresses():
    """Relative links and pictures lead to the tag; addresses and links to headlines stay."""
    page = build.with_addresses("[a](docs/a.md) ![b](c.png) [d](#e) [f](https://g.org/h)")
    place, version = release.project()["urls"]["Source"], release.project()["version"]
    links = f"[a]({place}/blob/v{version}/docs/a.md) ![b]({place}/raw/v{version}/c.png)"
    assert page == f"{links} [d](#e) [f](https://g.org/h)"
    readme = release.read("README.md")
    assert build.RELATIVE.search(readme)
    assert not build.RELATIVE.search(build.with_addresses(readme))
