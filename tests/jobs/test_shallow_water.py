"""The shallow-water example: beside plain NumPy on any ranks, its gradient, what it writes."""

import functools
import json

import numpy as np
import pytest

from tests.jobs import shallow_water_reference
from tests.jobs.job import assert_succeeds, compiling_once, run

pytestmark = pytest.mark.timeout(300)

# As `python examples/shallow_water.py`, which finds what lies beside it.
SCRIPT = """
import runpy, sys
sys.path.insert(0, "examples")
runpy.run_path("examples/shallow_water.py", run_name="__main__")
"""
# Gravity waves cross a fifth of the mesh in so many steps, and meet the walls.
NX, NY, STEPS = 47, 34, 120
MESH = ["--mesh", str(NX), str(NY), "--steps", str(STEPS), "--dtype", "float64"]


@functools.cache
def _expected(damping):
    fields = shallow_water_reference.run(NX, NY, STEPS, damping)
    return dict(zip("huv", fields, strict=True))


def _simulate(tmp_path, ranks, *arguments):
    out = tmp_path / "out"
    options = {"limit": 200, "arguments": [*arguments, "--out", str(out)]}
    ended = assert_succeeds(SCRIPT, ranks=ranks, **options, **compiling_once(tmp_path))
    summary = json.loads((out / "summary.json").read_text())
    return ended.output, summary, out


@pytest.mark.parametrize(
    ("ranks", "grid", "damping"),
    [(1, None, 0.1), (2, "1x2", 0.1), (3, None, 0.0), (4, "2x2", 0.1)],
    ids=str,
)
def test_fields_are_those_of_plain_numpy(tmp_path, ranks, grid, damping):
    arguments = [*MESH, "--damping", str(damping), "--frames", "0", "--save-fields"]
    arguments += ["--grid", grid] if grid else []
    _, summary, out = _simulate(tmp_path, ranks, *arguments)
    assert summary["ranks"] == ranks
    assert summary["grid"] == [int(d) for d in (grid or f"{ranks}x1").split("x")]
    assert abs(summary["mass_change"]) < 1e-13
    # The jet is as narrow here as the waves that are damped.
    assert (-0.2 if damping else -0.01) < summary["energy_change"] < 0
    with np.load(out / "fields.npz") as found:
        for name, expected in _expected(damping).items():
            assert found[name].shape == (NY, NX)
            error = np.abs(found[name] - expected).max()
            assert error <= 1e-11 * np.abs(expected).max(), name
    # Nothing flows into the northern wall.
    assert not _expected(damping)["v"][-1].any()


def test_the_reference_moves():
    h, u, v = shallow_water_reference.initial(NX, NY)
    first = dict(zip("huv", (a[1:-1] for a in (h, u, v)), strict=True))
    undamped = _expected(0.0)
    change = {name: np.abs(undamped[name] - first[name]).max() for name in first}
    damped = {name: np.abs(_expected(0.1)[name] - undamped[name]).max() for name in first}
    assert change["h"] > 0.1, change
    assert change["u"] > 0.01, change
    assert change["v"] > 0.01, change
    assert min(damped.values()) > 1e-6, damped


def test_gradient_and_pictures(tmp_path):
    arguments = ["--mesh", "23", "17", "--steps", "30", "--dtype", "float64", "--frames", "2"]
    output, summary, out = _simulate(
        tmp_path, 2, *arguments, "--gradient", "21", "--grid", "2x1", "--save-fields"
    )
    assert abs(summary["derivative"] / summary["central_difference"] - 1) < 1e-6
    assert abs(summary["derivative"]) > 1e-4
    for name in ("shallow_water.png", "shallow_water.gif", "gradient.png"):
        assert (out / name).stat().st_size > 5_000, name
        assert name in output
    with np.load(out / "fields.npz") as found:
        gradient = found["gradient"]
    assert gradient.shape == (17, 23)


def test_benchmark_prints_its_speed():
    arguments = ["--benchmark", "--mesh", "40", "30", "--steps", "4"]
    ended = assert_succeeds(SCRIPT, ranks=2, preamble="", arguments=arguments)
    assert "4 steps in " in ended.output
    assert " steps/s" in ended.output


def test_blocks_too_small_for_their_halos_are_refused():
    ended = run(SCRIPT, ranks=2, preamble="", arguments=["--mesh", "20", "3"])
    assert ended.status != 0
    assert "use fewer ranks" in ended.output
