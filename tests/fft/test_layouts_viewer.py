"""The arithmetic of the layout viewer, docs/_static/viewer/layouts.js, beside that of plans and
of the cost model. `make viewer` opens the page in a browser.
"""

import itertools
import json
import math

import numpy as np
import pytest

from benchmarks import tables_of_clusters
from benchmarks.model import Cores, Network, predict
from pfftjax import PencilFFT, ProcessGrid
from pfftjax._runtime.communicators import Communicator
from pfftjax.pencils._process_grid import _as_dims
from tools.launcher import ROOT

py_mini_racer = pytest.importorskip("py_mini_racer", reason="pip install mini-racer")
pytestmark = pytest.mark.ranks(1)

SCRIPT = (ROOT / "docs" / "_static" / "viewer" / "layouts.js").read_text()
SHAPES = ((8, 6, 10), (5, 3, 7), (1, 2, 3), (17, 1, 16), (64, 64, 64), (512, 384, 97))
GRIDS = ((1, 1), (2, 1), (1, 2), (3, 1), (1, 4), (2, 2), (3, 2), (2, 5), (12, 7))
DTYPES = ("float32", "float64", "complex64", "complex128")


_numbers = itertools.count(-1, -1)


class _NoRanks(Communicator):
    """A communicator whose ranks do not run: plans can be made and described, and do nothing."""

    def __init__(self, rank, size):
        self.rank, self.size, self.number = rank, size, next(_numbers)


def grid_of(dims, rank):
    """A process grid, as seen by a rank that does not run."""
    grid = object.__new__(ProcessGrid)
    grid.communicator = _NoRanks(rank, dims[0] * dims[1])
    grid.dims, grid._lines = dims, (grid.communicator,) * 2
    return grid


@pytest.fixture(scope="module")
def call():
    """Calls a function of `layouts` with values that JSON has."""
    context = py_mini_racer.MiniRacer()
    context.eval(SCRIPT)

    def run(name, *arguments):
        text = ", ".join(map(json.dumps, arguments))
        return json.loads(str(context.eval(f"JSON.stringify(layouts.{name}({text}))")))

    return run


def stages(found):
    """What a description in JavaScript and one in Python both have."""
    return [
        (
            stage["step"],
            stage["operation"],
            tuple(stage["axes"]),
            tuple(stage["shape"]),
            stage["dtype"],
            stage["messages"],
            stage["messageBytes"],
            stage["sentBytes"],
            stage["bytes"],
        )
        for stage in found["stages"]
    ]


@pytest.mark.parametrize("dims", GRIDS, ids=str)
def test_descriptions(call, dims):
    ranks = sorted({0, dims[0] * dims[1] // 2, dims[0] * dims[1] - 1})
    dtypes = {shape: DTYPES if shape == SHAPES[0] else DTYPES[::3] for shape in SHAPES}
    cases = (
        (shape, dtype, layout, rank)
        for shape in SHAPES
        for dtype, layout in zip(dtypes[shape], itertools.cycle(("transposed", "natural")))
        for rank in ranks
    )
    for shape, dtype, layout, rank in cases:
        real = dtype.startswith("float")
        plan = PencilFFT(shape, grid_of(dims, rank), real=real, layout=layout)
        expected = plan.describe(dtype)
        case = {"shape": shape, "dims": dims, "rank": rank, "dtype": dtype, "layout": layout}
        found = call("describe", case)
        assert stages(found) == [
            (
                stage.step,
                stage.operation,
                stage.axes,
                stage.shape,
                stage.dtype.name,
                stage.messages,
                stage.message_bytes,
                stage.sent_bytes,
                stage.bytes,
            )
            for stage in expected.stages
        ], case
        assert found["sentBytes"] == expected.sent_bytes, case
        assert found["peakBytes"] == expected.peak_bytes, case
        first, *_, last = found["stages"]
        assert tuple(first["start"]) == plan.input.start
        assert tuple(last["start"]) == plan.output.start


def test_numbers_of_the_largest_machines(call):
    """They stay exact: JavaScript has no integers beyond 2^53."""
    shape, dims, rank = (12288, 12289, 12290), (96, 64), 6143
    plan = PencilFFT(shape, grid_of(dims, rank), real=True)
    case = {"shape": shape, "dims": dims, "rank": rank, "dtype": "float64"}
    found, expected = call("describe", case), plan.describe("float64")
    assert found["sentBytes"] == expected.sent_bytes
    assert found["peakBytes"] == expected.peak_bytes
    assert found["stages"][-1]["shape"] == list(plan.output.local_shape)


def test_each_cell_has_one_owner_and_comes_from_one(call):
    """What the page draws: blocks fill the array, and the parts by which they come fill them."""
    dims, shape = (3, 2), (7, 5, 4)
    pencils = call("stages", shape, dims)
    for source, target in itertools.pairwise(pencils):
        cells = np.zeros(shape, int)
        for coords in itertools.product(range(dims[0]), range(dims[1])):
            mine = np.zeros(shape, int)
            for part in call("shares", target, coords, source):
                at = tuple(slice(a, a + n) for a, n in part["ranges"])
                theirs = call("cells", source, part["coords"])
                assert all(
                    a >= b and a + n <= b + m
                    for (a, n), (b, m) in zip(part["ranges"], theirs, strict=True)
                )
                mine[at] += 1
            block = tuple(slice(a, a + n) for a, n in call("cells", target, coords))
            assert mine[block].all()
            assert mine.sum() == mine[block].size
            cells += mine
        assert (cells == 1).all()


def test_square_grids_are_those_of_process_grids(call):
    for ranks in (*range(1, 130), 1000, 4096, 98304):
        rows, columns = call("square", ranks)
        assert (rows, columns) == _as_dims((None, None), _NoRanks(0, ranks))
        assert rows >= columns
        assert rows * columns == ranks
        assert all(ranks % n for n in range(columns + 1, math.isqrt(ranks) + 1))


def test_predictions_are_those_of_the_model(call):
    model = tables_of_clusters.model_of_the_viewer()
    for shape, dims, dtype in itertools.product(
        ((1024,) * 3, (512, 384, 97), (4096, 4096, 8)),
        ((1, 1), (2, 1), (1, 4), (128, 1), (16, 8), (64, 32), (1024, 1)),
        DTYPES,
    ):
        found = call("predict", {"shape": shape, "dims": dims, "dtype": dtype, **model})
        cores, network = Cores(**model["cores"]), Network(**model["network"])
        assert found == pytest.approx(predict(shape, dims, dtype, cores, network), rel=1e-12)


def test_predictions_are_those_of_the_published_table(call):
    """The constants in the page give what docs/scaling.md says of 1024^3 and larger."""
    results = json.loads((ROOT / "benchmarks" / "results" / "model.json").read_text())
    model = tables_of_clusters.model_of_the_viewer()
    assert len(results["predicted"]) > 10
    for row in results["predicted"]:
        shape, dims = [row["n"]] * 3, row["grid"]
        found = call("predict", {"shape": shape, "dims": dims, "dtype": "complex64", **model})
        assert found["total"] == pytest.approx(row["total"], rel=1e-9), row
