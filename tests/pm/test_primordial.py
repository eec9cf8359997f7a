"""Primordial non-Gaussianity: against its formula on the whole field, and against other code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cosmo.transfer import Eisenstein_Hu

import pfftjax
from pfftjax.pm import (
    Simulation,
    eisenstein_hu,
    growth,
    linear_field,
    local_non_gaussianity,
)
from tests.distributed import assert_block, grids
from tests.helpers import random
from tests.pm.universe import BOX, ENDS, SHAPE, cosmology, small_noise, small_plan

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 3)]


def _expected(delta, power, f_nl):
    """By NumPy, with the transfer function of jax-cosmo."""
    universe = cosmology()
    k2 = sum(
        np.meshgrid(
            *[
                (2 * np.pi * np.fft.fftfreq(n, side / n)) ** 2
                for n, side in zip(SHAPE, BOX, strict=True)
            ],
            indexing="ij",
        )
    )
    k2[0, 0, 0] = 1
    transfer = np.asarray(Eisenstein_Hu(universe, jnp.sqrt(k2).ravel())).reshape(SHAPE)
    alpha = 2 / 3 * k2 * transfer * 2997.92458**2 * float(growth(universe, 1.0).d1)
    alpha /= float(universe.Omega_m)
    spectrum = np.fft.fftn(delta)
    spectrum[0, 0, 0] = 0
    phi = np.fft.ifftn(spectrum / alpha).real
    more = alpha * np.fft.fftn(phi**2)
    more[0, 0, 0] = 0
    return f_nl * np.fft.ifftn(more).real


def test_against_numpy_and_another_transfer_function():
    plan = small_plan(grids()[-1])
    delta = random(SHAPE, seed=4)
    power = eisenstein_hu(cosmology())

    @jax.jit
    def changed(delta):
        return local_non_gaussianity(delta, plan, BOX, power, cosmology(), 1e4) - delta

    # The transfer function is not quite one at 1e-4 h/Mpc.
    expected = _expected(delta, power, 1e4)
    assert_block(changed(plan.input.local_block(delta)), expected, plan.input, 2e-3)


def test_a_simulation_of_it_is_differentiable():
    plan = small_plan(grids()[0])
    noise = small_noise(plan)

    def variance(f_nl):
        run = Simulation(plan, BOX, cosmology(), ENDS, f_nl=f_nl, finer=1, capacity=432)
        delta = run.linear(noise)
        return pfftjax.vdot(delta**2, delta, plan.grid)

    value = jax.jit(variance)
    slope = jax.jit(pfftjax.grad(variance, shared=0))(300.0)
    difference = (value(301.0) - value(299.0)) / 2
    assert abs(slope - difference) < 1e-6 * abs(slope)
    assert slope > 0


@pytest.mark.wrong_types
def test_modes_without_power_stay_without_and_what_is_refused():
    plan = small_plan(grids()[0])

    def cut(k):
        return jnp.where(k < 0.5, k, 0)

    def gradient(noise):
        delta = linear_field(noise, plan, BOX, cut)
        skewed = local_non_gaussianity(delta, plan, BOX, cut, cosmology(), 100.0)
        return pfftjax.vdot(skewed, skewed, plan.grid)

    assert np.all(np.isfinite(jax.jit(pfftjax.grad(gradient))(small_noise(plan))))
    delta = small_noise(plan)
    for error, what, options in (
        (TypeError, "cosmology must be", {"cosmology": None}),
        (TypeError, "power must be a function", {"power": 3.0}),
        (ValueError, "finite and not negative", {"power": lambda k: -k}),
    ):
        given = {"power": cut, "cosmology": cosmology(), "f_nl": 1.0, **options}
        with pytest.raises(error, match=what):
            local_non_gaussianity(delta, plan, BOX, **given)
