"""Every entry of the gallery runs, small, and what it checks holds; its page is made of it."""

import importlib.util
import json
import re

import pytest

from tests.jobs.job import assert_succeeds, compiling_once
from tools import launcher

pytestmark = pytest.mark.timeout(300)

FOLDER = launcher.ROOT / "examples" / "gallery"
# Small enough to take a second or two each.
SIZES = {
    "gradients": 12,
    "haloes": 16,
    "layouts": 6,
    "light_cone": 12,
    "nested": 16,
    "paired": 12,
    "poisson": 20,
    "posterior": 12,
    "reconstruction": 12,
    "redshift": 12,
    "schroedinger": 128,
    "sizes": 23,
    "turbulence": 16,
    "universe": 16,
    "vorticity": 32,
}

# Two jobs for all: importing and starting would else be most of it.
SCRIPT = """
import importlib, pathlib, sys, time
sys.path.insert(0, "examples/gallery")
import common
out = pathlib.Path(sys.argv[1])
for argument in sys.argv[2:]:
    name, size = argument.split("=")
    begin = time.perf_counter()
    facts = importlib.import_module(name).main(int(size), None)
    seconds = time.perf_counter() - begin
    if common.FIRST:
        print(f"{name}: {[f.holds for f in facts]} in {seconds:.1f} s, {list(map(str, facts))}")
"""


def _page():
    spec = importlib.util.spec_from_file_location("gallery_page", FOLDER / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("half", [0, 1])
def test_every_entry_runs_and_its_facts_hold(tmp_path, half):
    names = sorted(SIZES)[half::2]
    arguments = [str(tmp_path), *(f"{name}={SIZES[name]}" for name in names)]
    how = compiling_once(tmp_path / "programs")
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # most of the time is that of compiling
    ended = assert_succeeds(SCRIPT, ranks=2, limit=280, arguments=arguments, **how, **quick)
    found = dict(re.findall(r"^(\w+): (\[[TrueFals, ]+\]) in", ended.output, re.MULTILINE))
    assert set(found) == set(names), ended.output
    assert not any("False" in holds for holds in found.values()), ended.output


def test_every_program_is_an_entry_of_the_page():
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"common", "page"}
    page = _page()
    assert set(page.ENTRIES) == programs == set(SIZES)
    assert page.PAGE.read_text() == page.page(), "make gallery, or python examples/gallery/page.py"


def test_facts_that_the_page_shows_hold_and_pictures_are_small():
    page = _page()
    for name in page.ENTRIES:
        record = json.loads((page.RECORDS / f"{name}.json").read_text())
        assert record["facts"], name
        for fact in record["facts"]:
            assert abs(fact["value"]) <= fact["bound"], (name, fact)
        assert page.pictures(name), name
        for file in page.pictures(name):
            limit = 2_000_000 if file.endswith(".webp") else 300_000
            assert 5_000 < (page.PICTURES / file).stat().st_size <= limit, file
