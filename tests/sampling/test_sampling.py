"""One chain on any process grid, with the distribution that it should have."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import PencilFFT, ProcessGrid, pm, vdot
from pfftjax.sampling import Space, mclmc, metric, tune_mclmc
from tests.distributed import grids
from tests.helpers import RANK, SIZE, assert_close, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2, 4)]
SHAPE, BOX, NOISE = (5, 4, 3), 50.0, 0.4
OBSERVED = random(SHAPE, seed=5)


class Model:
    """A Gaussian field by its white noise and a bias that all ranks share, seen with noise."""

    def __init__(self, grid):
        self.plan = PencilFFT(SHAPE, grid, real=True)
        self.space = Space({"white": self.plan.input, "bias": ()}, grid)
        self.observed = jnp.asarray(self.plan.input.local_block(OBSERVED))

    def field(self, white):
        volume = BOX**3 / np.prod(SHAPE)
        return pm.linear_field(white, self.plan, BOX, lambda k: volume / (1 + (10 * k) ** 2))

    def logdensity(self, position):
        white, bias = position["white"], position["bias"]
        residual = (bias * self.field(white) - self.observed) / NOISE
        # The prior of the bias is on every rank, and counts once.
        return -vdot((residual, white), (residual, white), self.plan.grid) / 2 - bias**2

    def start(self):
        white = self.plan.input.local_block(random(SHAPE, seed=6))
        return {"white": jnp.asarray(white), "bias": jnp.asarray(0.7)}

    def local(self, chain):
        """What this rank has of a chain on one rank."""
        blocks = [self.plan.input.local_block(white) for white in np.asarray(chain["white"])]
        return {"white": np.stack(blocks), "bias": chain["bias"]}


def _alone():
    """The same model, whole on every rank."""
    return Model(ProcessGrid((1, 1), MPI.COMM_SELF))


def _chain(model, how, number):
    """(positions, what was said of each step)"""
    space = model.space
    inverse_mass = {"white": 0.7, "bias": 0.2}
    if how == "mclmc":
        sampler = mclmc(model.logdensity, space, 0.8, 6.0, inverse_mass=inverse_mass)
        state = sampler.init(model.start(), jax.random.key(2))
    else:
        density, over_ranks = space.density(model.logdensity), metric(space, inverse_mass)
        if how == "hmc":
            sampler = blackjax.hmc(density, 0.3, over_ranks, num_integration_steps=4)
        else:
            sampler = blackjax.nuts(density, 0.3, over_ranks, max_num_doublings=3)
        state = sampler.init(model.start())

    def advance(state, key):
        state, info = sampler.step(key, state)
        said = info.energy_change if how == "mclmc" else (info.is_divergent, info.energy)
        return state, (state.position, said)

    keys = jax.random.split(jax.random.key(3), number)
    return jax.jit(lambda state: jax.lax.scan(advance, state, keys)[1])(state)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("hmc", marks=pytest.mark.ranks(1, 2)),
        pytest.param("nuts", marks=pytest.mark.ranks(1, 4)),
        "mclmc",
    ],
)
def test_the_same_chain_on_any_grid(how):
    """100 transitions; each rank has computed the whole of it by itself, too."""
    expected, said = _chain(_alone(), how, 100)
    assert np.ptp(np.asarray(expected["bias"])) > 0.1
    for grid in grids()[:2]:
        model = Model(grid)
        chain, said_here = _chain(model, how, 100)
        assert_close(chain, model.local(expected), 1e-8)
        assert_close(said_here, said, 1e-8)


def test_the_gradient_of_a_density():
    """It includes what all ranks share, where `jax.grad` alone has each rank's part only."""
    alone = _alone()
    expected = jax.grad(alone.space.density(alone.logdensity))(alone.start())
    step = 1e-5

    def along_bias(bias):
        return alone.logdensity({**alone.start(), "bias": bias})

    slope = (along_bias(0.7 + step) - along_bias(0.7 - step)) / (2 * step)
    assert abs(expected["bias"] - slope) < 1e-7 * abs(slope)
    model = Model(grids()[-1])
    found = jax.grad(lambda x: 2 * model.space.density(model.logdensity)(x))(model.start())
    mine = model.plan.input.local_block(np.asarray(expected["white"]))
    assert_close(found, {"white": 2 * mine, "bias": 2 * expected["bias"]})


def _posterior(model):
    """The mean and the covariance of the white noise for a bias of one, as numpy has them."""
    size = int(np.prod(SHAPE))
    columns = [model.field(jnp.asarray(unit.reshape(SHAPE))).ravel() for unit in np.eye(size)]
    response = np.stack(columns, axis=1)
    covariance = np.linalg.inv(np.eye(size) + response.T @ response / NOISE**2)
    return covariance @ response.T @ OBSERVED.ravel() / NOISE**2, covariance


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("x64", [True, False])
def test_steps_are_tuned_in_single_precision(x64):
    with jax.enable_x64(x64):
        grid = grids()[0]
        plan = PencilFFT(SHAPE, grid, real=True)
        space = Space(plan.input, grid)
        start = jnp.ones(plan.input.local_shape, "float32")

        def logdensity(x):
            return -vdot(x, x, grid) / 2

        state = mclmc(logdensity, space, 0.1).init(start, jax.random.key(0))
        state, step = tune_mclmc(
            logdensity, space, state, jax.random.key(1), steps=5, step_size=0.1
        )
        assert step.dtype == state.position.dtype == jnp.float32
        assert 0 < step < np.inf


@pytest.mark.parametrize("how", ["hmc", "mclmc"])
@pytest.mark.ranks(1, 2)
def test_a_gaussian_posterior(how):
    model = Model(grids()[0])
    mean, covariance = _posterior(_alone())
    space = Space(model.plan.input, model.plan.grid)

    def logdensity(white):
        return model.logdensity({"white": white, "bias": jnp.asarray(1.0)})

    start = jnp.zeros(model.plan.input.local_shape)
    keys = jax.random.split(jax.random.key(0), 4)
    if how == "hmc":
        density = space.density(logdensity)
        sampler = blackjax.hmc(density, 0.35, metric(space), num_integration_steps=6)
        state = sampler.init(start)
    else:
        # One that is for all ranks already is taken as it is.
        first = mclmc(space.density(logdensity), space, 0.1).init(start, keys[0])
        state, step = tune_mclmc(logdensity, space, first, keys[1], steps=400, step_size=0.1)
        assert 1 < step < 8
        sampler = mclmc(logdensity, space, step, 5.0)

    def advance(state, key):
        state, _ = sampler.step(key, state)
        return state, state.position

    @jax.jit
    def run(state, key):
        state, _ = jax.lax.scan(advance, state, jax.random.split(key, 200))
        return jax.lax.scan(advance, state, jax.random.split(key, 3000))[1]

    drawn = np.asarray(run(state, keys[2]))
    parts = MPI.COMM_WORLD.allgather(
        (model.plan.input.local_block(np.arange(60).reshape(SHAPE)), drawn)
    )
    whole = np.empty((len(drawn), 60))
    for places, part in parts:
        whole[:, places.ravel()] = part.reshape(len(drawn), -1)
    away = whole - mean
    # Chi squares of 60 degrees of freedom, of which some hundreds are independent.
    inverse = np.linalg.inv(covariance)
    chi = np.einsum("si,ij,sj->s", away, inverse, away)
    assert abs(chi.mean() / 60 - 1) < 0.05
    assert abs(chi.var() / 120 - 1) < 0.4
    error = away.mean(0)
    assert error @ inverse @ error < 60 * 0.05
    spread = np.diag(away.T @ away / len(away)) / np.diag(covariance)
    assert np.abs(spread - 1).max() < 0.4
    assert abs(spread.mean() - 1) < 0.05


@pytest.mark.wrong_types
def test_what_is_refused():
    model = Model(grids()[0])
    here = rf" on rank {RANK} of {SIZE}: "
    with pytest.raises(TypeError, match="Space" + here + "each part is a Pencil, or the shape"):
        Space({"white": 3.0}, model.plan.grid)
    if SIZE > 1:
        alone = ProcessGrid((1, 1), MPI.COMM_SELF)
        with pytest.raises(ValueError, match="is on another process grid"):
            Space(model.plan.input, alone)
    with pytest.raises(ValueError, match="mclmc" + here + "a direction needs two dimensions"):
        mclmc(model.logdensity, Space({"bias": ()}, model.plan.grid), 1.0)
    good = model.start()
    with pytest.raises(ValueError, match="a position must be a pytree as"):
        model.space.normal(jax.random.key(0), [good["white"]])
    for bad, error, text in (
        ({**good, "white": jnp.ones((9, 9, 9))}, ValueError, "an array must have shape"),
        ({**good, "bias": jnp.asarray(1)}, TypeError, "real and floating-point, got int"),
        ({**good, "bias": [1.0, 2.0]}, ValueError, "the position has"),
    ):
        with pytest.raises(error, match=text):
            model.space.density(model.logdensity)(bad)
