"""Initial conditions against Lagrangian perturbation theory of waves that can be done by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.pm import growth, lpt
from tests.distributed import grids
from tests.helpers import CONTROL
from tests.pm.universe import cosmology

pytestmark = pytest.mark.mpi

A = 0.3
SHAPE, BOX = (8, 6, 5), (40.0, 30.0, 20.0)
WAVES = (0.3, -0.2)  # amplitudes along axes 0 and 1


def _worst(*errors):
    """The largest error on any rank; NaN stays NaN."""
    here = max([np.abs(np.asarray(e)).max(initial=0.0) for e in errors])
    return max(CONTROL.allgather(float(here)))


def _by_hand(plan, factors, order, rate):
    """Displacement (rows, 3) of delta = sum of WAVES[i] cos(k_i x_i); its rate for momenta."""
    q = [
        np.broadcast_to(np.asarray(plan.input.indices(axis)), plan.input.local_shape).reshape(-1)
        for axis in range(3)
    ]
    kx, ky = (2 * np.pi / side for side in BOX[:2])
    x, y = 2 * np.pi * q[0] / SHAPE[0], 2 * np.pi * q[1] / SHAPE[1]
    a, b = (wave / float(factors["today"].d1) for wave in WAVES)
    now = factors["now"]
    d1, d2 = (now.d1_rate, now.d2_rate) if rate else (now.d1, now.d2)
    result = np.zeros((len(x), 3))
    result[:, 0] = -float(d1) * a / kx * np.sin(x)
    result[:, 1] = -float(d1) * b / ky * np.sin(y)
    if order == 2:
        # laplacian phi2 = a b cos x cos y, and D2 grad phi2 is added.
        strength = float(d2) * a * b / (kx**2 + ky**2)
        result[:, 0] += strength * kx * np.sin(x) * np.cos(y)
        result[:, 1] += strength * ky * np.cos(x) * np.sin(y)
    return result


@pytest.mark.parametrize("order", [1, 2])
def test_two_waves(order):
    """In a box and on a mesh of three different sides, also on a mesh of other cells."""
    universe = cosmology()
    factors = {"now": growth(universe, A), "today": growth(universe, 1.0)}
    plans = [PencilFFT(SHAPE, grid, real=True) for grid in grids()]
    meshes = (None, (16, 12, 10), (12, 4, 5))

    @jax.jit
    def starts(fields):
        return [
            [
                lpt(delta, plan, BOX, cosmology(), A, order=order, mesh_shape=mesh)
                for mesh in meshes
            ]
            for plan, delta in zip(plans, fields, strict=True)
        ]

    fields = [
        jnp.broadcast_to(
            sum(
                wave * jnp.cos(2 * jnp.pi / SHAPE[axis] * plan.input.indices(axis))
                for axis, wave in enumerate(WAVES)
            ),
            plan.input.local_shape,
        )
        for plan in plans
    ]
    velocity = A**2 * float(factors["now"].e)
    for plan, results in zip(plans, starts(fields), strict=True):
        moved = _by_hand(plan, factors, order, rate=False)
        momentum = velocity * _by_hand(plan, factors, order, rate=True)
        q = np.stack(
            [
                np.broadcast_to(np.asarray(plan.input.indices(axis)), plan.input.local_shape)
                for axis in range(3)
            ],
            -1,
        ).reshape(-1, 3)
        for mesh, particles in zip(meshes, results, strict=True):
            cells = np.array(mesh or SHAPE)
            assert particles.total == np.prod(SHAPE)
            assert int(particles.used) == len(q)
            at = np.asarray(particles.cell) + np.asarray(particles.offset)
            expected = (q / SHAPE + moved / BOX) * cells
            # The cell is the one in which the particle started.
            whole = np.asarray(particles.cell) - np.floor(q * cells / SHAPE + 1e-9)
            errors = at - expected, np.asarray(particles.momentum) - momentum, whole
            assert _worst(*errors) <= 1e-12


def test_momentum_is_the_derivative_of_the_displacement():
    """p = a^3 E dx/da, whatever the field."""
    plan = PencilFFT((6, 5, 4), grids()[0], real=True)
    delta = jnp.asarray(
        plan.input.local_block(np.random.default_rng(0).standard_normal((6, 5, 4)))
    )

    @jax.jit
    def both(a):
        def offset(a):
            return lpt(delta, plan, 10.0, cosmology(), a).offset

        particles = lpt(delta, plan, 10.0, cosmology(), a)
        now = growth(cosmology(), a)
        _, slope = jax.jvp(offset, (a,), (jnp.ones_like(a),))
        cells = jnp.asarray(plan.shape) / 10.0
        return particles.momentum, now.scale_factor**3 * now.e * slope / cells

    momentum, expected = both(jnp.asarray(0.4))
    scale = max(CONTROL.allgather(float(np.abs(expected).max(initial=0))))
    assert _worst(np.asarray(momentum) - np.asarray(expected)) <= 1e-6 * scale


def test_what_is_refused():
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    delta = jnp.zeros(plan.input.local_shape)
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        lpt(delta, plan, 1.0, cosmology(), 0.1, order=3)
    with pytest.raises(ValueError, match=r"mesh_shape must be three positive sizes, got \(4, 4\)"):
        lpt(delta, plan, 1.0, cosmology(), 0.1, mesh_shape=(4, 4))
    with pytest.raises(ValueError, match="real=True"):
        lpt(delta, PencilFFT((4, 4, 4), grids()[0]), 1.0, cosmology(), 0.1)
