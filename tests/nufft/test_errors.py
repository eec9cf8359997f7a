"""What non-uniform transforms refuse, and what the errors say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import ProcessGrid
from pfftjax.nufft import PencilNUFFT
from pfftjax.pm import Positions
from tests.distributed import alone
from tests.helpers import SIZE

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2)]

SHAPE = (6, 5, 4)


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tolerance must be a static number", {"tolerance": "fine"}),
        ("tolerance must be a static number", {"tolerance": -1.0}),
        ("tolerance 1e-15 with upsampling 2 must be between 1e-14 and 0.1", {"tolerance": 1e-15}),
        ("must be between 1e-14 and 0.1", {"tolerance": 0.5}),
        ("upsampling 1.25 must be between 1.38", {"tolerance": 1e-9, "upsampling": 1.25}),
        ("isign must be 1 or -1, got 2", {"isign": 2}),
        ("upsampling must be 2.0 or 1.25, got 1.5", {"upsampling": 1.5}),
        ("box_size must be a positive length", {"box_size": (1.0, 2.0)}),
        ("layout must be transposed or natural", {"layout": "else"}),
    ],
)
def test_plans_that_make_no_sense(text, options):
    with pytest.raises(ValueError, match=text):
        PencilNUFFT(SHAPE, ProcessGrid(), **options)


@pytest.mark.wrong_types
@pytest.mark.ranks(2)
def test_arguments_that_do_not_fit():
    plan = PencilNUFFT(SHAPE, ProcessGrid())
    x, c = jnp.ones((3, 3)), jnp.ones(3)
    f = jnp.ones(plan.output.local_shape)
    at = plan.to_owners(x, capacity=3 * SIZE)
    with pytest.raises(ValueError, match=r"type1 on rank .* strengths must be \(3,\) or"):
        plan.type1(at, jnp.ones(4))
    with pytest.raises(ValueError, match="these points have a capacity already"):
        plan.type1(at, c, capacity=3)
    with pytest.raises(ValueError, match=r"type2 on rank .* modes has shape"):
        plan.type2(at, jnp.ones((99, 1, 1)))
    with pytest.raises(ValueError, match=r"must be \(components, \*block\)"):
        plan.type2(at, f[None, None])
    with pytest.raises(ValueError, match=r"positions must be \(rows, 3\)"):
        plan.to_owners(jnp.ones((3, 2)))
    with pytest.raises(TypeError, match="capacity must be a static integer"):
        plan.to_owners(x, capacity=1.5)
    with pytest.raises(ValueError, match="capacity cannot be negative"):
        plan.to_owners(x, capacity=-1)
    with pytest.raises(TypeError, match="strengths are float64, but the points are float32"):
        plan.type1(plan.to_owners(x.astype("float32"), capacity=3 * SIZE), c)
    with pytest.raises(TypeError, match="box_size must be static"):
        jax.jit(lambda side: PencilNUFFT(SHAPE, plan.grid, box_size=side).type1(x, c))(1.0)


def test_a_tolerance_that_single_precision_does_not_reach():
    plan = PencilNUFFT(SHAPE, ProcessGrid(), tolerance=1e-8)
    with pytest.raises(ValueError, match=r"tolerance is 1e-08, but float32 gives 1e-06 at best"):
        plan.type1(jnp.ones((3, 3), "float32"), jnp.ones(3, "float32"))


def test_points_that_are_nowhere():
    plan = PencilNUFFT(SHAPE, alone())
    with pytest.raises(jax.errors.JaxRuntimeError, match="point 1 has a position that is not fin"):
        plan.type1(jnp.array([[0.0, 1, 2], [0, np.nan, 1]]), jnp.ones(2)).block_until_ready()
    # Unused rows are not looked at.
    at = Positions(jnp.zeros((2, 3), "int32"), jnp.array([[0.0, 1, 2], [0, np.nan, 1]]), 1)
    modes = plan.type1(at, jnp.array([1.0, jnp.nan]))
    assert np.all(np.isfinite(modes))
    assert np.asarray(plan.type2(at, modes))[1] == 0


@pytest.mark.ranks(2)
def test_points_that_are_elsewhere():
    plan = PencilNUFFT(SHAPE, ProcessGrid((SIZE, 1)))
    x = jnp.full((1, 3), 0.1)  # of rank 0
    if plan.grid.coords[0] == 0:
        plan.at_owners(x).order.block_until_ready()
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="send points to their owners first"):
        plan.at_owners(x).order.block_until_ready()
