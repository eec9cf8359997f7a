"""Derivatives of non-uniform transforms in strengths, modes and points, of any order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import ProcessGrid
from pfftjax.collectives import allreduce
from pfftjax.nufft import PencilNUFFT
from tests.distributed import total
from tests.helpers import RANK, SIZE, assert_close, random
from tests.nufft.sums import BOX, Sums, error

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]

SHAPE = (7, 6, 9)


def _case(tolerance, isign=-1, rows=20):
    plan = PencilNUFFT(SHAPE, ProcessGrid(), tolerance=tolerance, isign=isign, box_size=BOX)
    return Sums.of(plan, rows=rows)


@pytest.mark.parametrize(("tolerance", "isign"), [(1e-3, 1), (1e-6, -1), (1e-11, 1)])
def test_slopes_have_the_tolerance_of_values(tolerance, isign):
    case = _case(tolerance, isign)
    x, c, f = case.operands
    v = random(case.x.shape, seed=7)

    @jax.jit
    def both(x, v):
        type2 = jax.jvp(lambda x: case.plan.type2(x, f, capacity=20 * SIZE), (x,), (v,))
        type1 = jax.jvp(lambda x: case.plan.type1(x, c, capacity=20 * SIZE), (x,), (v,))
        return type2, type1

    (values, along), (modes, change) = both(x, v[RANK])
    assert error(values, case.type2()[RANK]) <= tolerance
    assert error(along, (case.slopes() * v).sum(-1)[RANK]) <= tolerance
    along_axes = (
        1j
        * isign
        * k.reshape(np.where(np.arange(3) == a, -1, 1))
        * case.type1(case.strengths * v[..., a])
        for a, k in enumerate(case.k)
    )
    expected = sum(along_axes)
    assert error(modes, case.plan.output.local_block(case.type1())) <= tolerance
    assert error(change, case.plan.output.local_block(expected)) <= tolerance


def test_each_derivative_has_its_transpose():
    """In strengths or modes and in points, for both types; complex numbers are paired without
    conjugation, as JAX does."""
    case = _case(1e-4)
    x, c, f = case.operands
    u, v = random(case.x.shape, seed=7)[RANK], random(case.x.shape[:2], "complex128", 8)[RANK]
    g = case.plan.output.local_block(random(SHAPE, "complex128", 9))

    def type1(x, c):
        return case.plan.type1(x, c, capacity=20 * SIZE)

    def type2(x, f):
        return case.plan.type2(x, f, capacity=20 * SIZE)

    @jax.jit
    def run(x, c, f):
        forward = jax.jvp(type1, (x, c), (u, v))[1], jax.jvp(type2, (x, f), (u, g))[1]
        back = jax.vjp(type1, x, c)[1](g), jax.vjp(type2, x, f)[1](v)
        return forward, back

    (modes, values), ((x1, c1), (x2, f2)) = run(x, c, f)
    # The product with real directions is that of real parts.
    assert_close(total(modes, g).real, (total(x1, u) + total(c1, v)).real, 1e-12)
    assert_close(total(values, v).real, (total(x2, u) + total(f2, g)).real, 1e-12)


def test_a_gradient_over_ranks_and_one_of_higher_order():
    """A loss of all points; its Hessian times a direction, in both modes."""
    case = _case(1e-10, rows=8)
    x, _, f = case.operands
    v = random(case.x.shape, seed=7)[RANK]

    def loss(x):
        values = case.plan.type2(x, f, capacity=8 * SIZE)
        return allreduce(jnp.sum(jnp.abs(values) ** 2))

    @jax.jit
    def run(x):
        grad = pfftjax.grad(loss, own=0)
        value, slope = jax.jvp(grad, (x,), (v,))
        return value, slope, jax.vjp(grad, x)[1](v)[0]

    gradient, along, back = run(x)
    values, slopes = case.type2()[RANK], case.slopes()[RANK]
    expected = 2 * (np.conj(values)[:, None] * slopes).real
    assert error(gradient, expected) <= 1e-9
    step = 1e-5
    finite = [pfftjax.grad(loss, own=0)(x + sign * step * v) for sign in (1, -1)]
    assert error(along, np.asarray(finite[0] - finite[1]) / (2 * step)) <= 1e-7
    # The Hessian is symmetric.
    assert error(back, np.asarray(along)) <= 1e-8


def test_gradients_of_gradients_in_reverse():
    """Reverse over reverse differentiates transposes in the points."""
    case = _case(1e-10, rows=8)
    x, c, _ = case.operands
    v = random(case.x.shape, seed=7)[RANK]

    def loss(x):
        return jnp.sum(jnp.abs(case.plan.type1(x, c, capacity=8 * SIZE)) ** 4)

    @jax.jit
    def run(x):
        forward = jax.jvp(jax.grad(loss), (x,), (v,))[1]
        return forward, jax.grad(lambda x: jnp.sum(jax.grad(loss)(x) * v))(x)

    forward, reverse = run(x)
    # The Hessian of the sum of all ranks' losses is symmetric.
    assert error(reverse, np.asarray(forward)) <= 1e-8
