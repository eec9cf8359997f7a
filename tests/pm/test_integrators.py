"""Steps as numbers: what they make of the linear growing mode."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from pfftjax.pm import Steps, bullfrog, cola, fastpm, growth, leapfrog, simulate
from tests.distributed import grids
from tests.helpers import on_one_rank
from tests.pm.universe import (
    BOX,
    OMEGA_C,
    cosmology,
    everybody,
    small_noise,
    small_plan,
    small_start,
)

pytestmark = [pytest.mark.timeout(300), on_one_rank]

DARK = {"w0": -0.9, "wa": 0.1}
WAYS = {
    "forward": (0.1, 1.0),
    "backward": (1.0, 0.1),
}


def _followed(steps, x, p, omega_m):
    """One particle whose force is that of the growing mode: 3/2 Omega_m x."""

    def body(state, step):
        x, p = state
        p = p + step.kick * 1.5 * omega_m * x
        return (x + step.drift * p, p), None

    return jax.lax.scan(body, (x, p), steps)[0]


def test_fastpm_follows_the_growing_mode():
    """To rounding, for any number of steps of any spacing in both directions."""
    spacings = [
        np.linspace(0.1, 1, 2),
        np.linspace(0.1, 1, 6),
        np.geomspace(1, 0.1, 6),
        np.geomspace(0.01, 1, 41),
    ]

    @jax.jit
    def both():
        universe = cosmology(**DARK)
        results = []
        for a in spacings:
            ends = growth(universe, a[np.array([0, -1])])
            d, p = ends.d1, ends.momentum
            results.append(
                (_followed(fastpm(universe, a), d[0], p[0], universe.Omega_m), (d[1], p[1]))
            )
        return results

    for (x, p), (d, momentum) in both():
        assert abs(x / d - 1) < 1e-12
        assert abs(p / momentum - 1) < 1e-12


def test_bullfrog_follows_the_second_order():
    """To rounding, for any number of steps of any spacing in both directions: the coefficients of
    psi1 and of psi2, whose force is 3/2 Omega_m times D and E - D^2."""
    spacings = [np.linspace(0.1, 1, 2), np.geomspace(0.01, 1, 21), np.linspace(1, 0.5, 4)]

    def followed(steps, x, p, omega_m):
        def moved(x, p, by):
            return [a + by * b for a, b in zip(x, p, strict=True)]

        def body(state, step):
            x, p = state
            kick = 1.5 * omega_m * step.kick
            pull = x[0], x[1] - x[0] ** 2
            p = [step.momentum * b + kick * f for b, f in zip(p, pull, strict=True)]
            return (moved(x, p, step.drift), p), None

        x = moved(x, p, steps.first_drift)
        return jax.lax.scan(body, (x, p), steps._replace(first_drift=None))[0]

    @jax.jit
    def both():
        universe = cosmology(**DARK)
        results = []
        for a in spacings:
            g = growth(universe, a[np.array([0, -1])])
            velocity = g.scale_factor**2 * g.e
            x = jnp.stack([g.d1, g.d2])
            p = velocity * jnp.stack([g.d1_rate, g.d2_rate])
            end = followed(bullfrog(universe, a), [*x[:, 0]], [*p[:, 0]], universe.Omega_m)
            results.append((end, ([*x[:, 1]], [*p[:, 1]])))
        return results

    for actual, expected in both():
        np.testing.assert_allclose(actual, expected, rtol=1e-11)


def _seen(steps, x, p, pull):
    """Positions and momenta at the outputs: the coefficients of psi1 and psi2, or of the former,
    whose force is `pull(x)`."""
    at, found = steps.outputs, {}
    none = np.zeros((max(len(steps.kick), len(at.stage)), 2))
    kicks, drifts = steps.paths or (none, none)
    its_kicks, its_drifts = at.paths or (none, none)
    x = [a + steps.first_drift * b for a, b in zip(x, p, strict=True)] if steps.first_drift else x
    for stage in range(len(steps.kick)):
        force = pull(x)
        for n in np.flatnonzero(at.stage == stage):
            found[n] = [
                (
                    a + at.drift[n] * b + at.fall[n] * f + its_drifts[n, j],
                    at.momentum[n] * b + at.kick[n] * f + its_kicks[n, j],
                )
                for j, (a, b, f) in enumerate(zip(x, p, force, strict=True))
            ]
        factor = 1 if steps.momentum is None else steps.momentum[stage]
        p = [
            factor * b + steps.kick[stage] * f + kicks[stage, j]
            for j, (b, f) in enumerate(zip(p, force, strict=True))
        ]
        x = [
            a + steps.drift[stage] * b + drifts[stage, j]
            for j, (a, b) in enumerate(zip(x, p, strict=True))
        ]
    return np.array([found[n] for n in range(len(at.stage))])


@pytest.mark.parametrize("ends", [(0.1, 1.0), (0.8, 0.2)], ids=["forward", "backward"])
@pytest.mark.parametrize("integrator", [fastpm, bullfrog, cola])
def test_outputs_between_steps_follow_the_growing_mode(integrator, ends):
    """To rounding: `fastpm` to first order, the others to second; also where steps end."""
    a = np.linspace(*ends, 4)
    wanted = np.array([0.77, a[2], 0.3, a[0], 0.31, a[-1], 0.5, a[1]])
    universe = cosmology(**DARK)
    steps, start, expected = jax.jit(
        lambda: (
            integrator(universe, a, outputs=wanted),
            growth(universe, a[0]),
            growth(universe, wanted),
        )
    )()
    assert steps.outputs.stage.dtype.kind == "i"
    orders = 1 + (integrator is not fastpm)

    def modes(g):
        rates = np.array([g.d1_rate, g.d2_rate])[:orders]
        return np.array([g.d1, g.d2])[:orders], g.scale_factor**2 * g.e * rates

    def pull(x):
        x = [*x, 0][:2]
        return [1.5 * universe.Omega_m * f for f in (x[0], x[1] - x[0] ** 2)][:orders]

    actual = _seen(jax.tree.map(np.asarray, steps), *map(list, modes(start)), pull)
    x, p = modes(expected)
    np.testing.assert_allclose(actual[..., 0].T, x, rtol=1e-11)
    np.testing.assert_allclose(actual[..., 1].T, p, rtol=1e-11)


def test_outputs_of_leapfrog_converge_with_the_square_of_the_step():
    errors = []
    for n in (20, 40, 80):
        a, wanted = np.geomspace(0.1, 1, n + 1), np.array([0.15, 0.333, 0.5, 0.71, 0.97])
        universe = cosmology(**DARK)
        steps, g, expected = jax.jit(
            lambda a=a, w=wanted, c=universe: (
                leapfrog(c, a, outputs=w),
                growth(c, a[0]),
                growth(c, w),
            )
        )()
        steps = jax.tree.map(np.asarray, steps)
        seen = _seen(steps, [g.d1], [g.momentum], lambda x, c=universe: [1.5 * c.Omega_m * x[0]])[
            :, 0
        ]
        errors.append(seen / np.stack([expected.d1, expected.momentum], 1) - 1)
    assert np.abs(errors[0]).max() < 2e-2
    for coarse, fine in itertools.pairwise(errors):
        assert np.abs(fine).max() < 0.32 * np.abs(coarse).max()


@pytest.mark.parametrize("integrator", [fastpm, leapfrog, bullfrog, cola])
def test_many_steps_in_float32(integrator):
    """Factors are those of float64 of the same rounded ends, however short the steps are.

    What remains is where middles of steps are: rounded in float32, and those of bullfrog by
    differences of growth factors in float64.
    """
    a = np.linspace(0.1, 1, 301).astype(np.float32)
    wanted = np.array([0.5003, 0.9], np.float32)
    exact = jax.jit(lambda: integrator(cosmology(), np.float64(a), outputs=np.float64(wanted)))()
    with jax.enable_x64(False):
        steps = jax.jit(lambda: integrator(cosmology(), a, outputs=wanted))()
    for name in ("drift", "momentum"):
        actual, expected = getattr(steps, name), getattr(exact, name)
        if actual is not None:
            assert actual.dtype == np.float32
            np.testing.assert_allclose(actual[..., :-1], expected[..., :-1], rtol=1e-5)
            np.testing.assert_allclose(np.sum(actual), np.sum(expected), rtol=1e-5)
    np.testing.assert_allclose(np.cumsum(steps.kick), np.cumsum(exact.kick), rtol=1e-5)
    np.testing.assert_allclose(steps.outputs.kick, exact.outputs.kick, rtol=1e-5)
    if exact.paths is not None:
        for actual, expected in zip(steps.paths, exact.paths, strict=True):
            assert actual.dtype == np.float32
            # Displacements and momenta grow to about one, which makes the error absolute.
            np.testing.assert_allclose(np.cumsum(actual, 0), np.cumsum(expected, 0), atol=1e-6)


def test_leapfrog_converges_with_the_square_of_the_step():
    spacings = [np.geomspace(0.1, 1, n + 1) for n in (20, 40, 80)]

    @jax.jit
    def both():
        universe = cosmology(**DARK)
        results = []
        for a in spacings:
            ends = growth(universe, a[np.array([0, -1])])
            x, _ = _followed(leapfrog(universe, a), ends.d1[0], ends.momentum[0], universe.Omega_m)
            results.append(x / ends.d1[1] - 1)
        return results

    errors = both()
    assert 1e-5 < abs(errors[0]) < 2e-2
    for coarse, fine in itertools.pairwise(errors):
        assert 3.8 < coarse / fine < 4.2


@pytest.mark.parametrize("way", WAYS)
def test_leapfrog_has_the_integrals(way):
    a = np.linspace(*WAYS[way], 6)
    steps = leapfrog(cosmology(), a)
    assert steps.drift[-1] == 0
    omega_m = float(cosmology().Omega_m)

    def integral(power, start, end):
        e = lambda a: np.sqrt(omega_m / a**3 + 1 - omega_m)  # noqa: E731
        return quad(lambda a: 1 / (a**power * e(a)), start, end, epsrel=1e-13)[0]

    for drift, (start, end) in zip(steps.drift, itertools.pairwise(a), strict=False):
        assert abs(drift / integral(3, start, end) - 1) < 1e-10
    # A kick is the half before a point and the half after it.
    middle = np.sqrt(a[:-1] * a[1:])
    marks = [a[0], *middle, a[-1]]
    for kick, (start, end) in zip(steps.kick, itertools.pairwise(marks), strict=True):
        assert abs(kick / integral(2, start, end) - 1) < 1e-10


@pytest.mark.parametrize("integrator", [fastpm, leapfrog])
def test_backward_is_forward_with_the_other_sign(integrator):
    a = jnp.linspace(0.1, 1, 6)
    there, back = jax.jit(
        lambda a: (integrator(cosmology(), a), integrator(cosmology(), a[::-1]))
    )(a)
    np.testing.assert_allclose(back.drift[:-1], -there.drift[-2::-1], rtol=1e-12)
    np.testing.assert_allclose(back.kick, -there.kick[::-1], rtol=1e-12)


@pytest.mark.parametrize("integrator", [fastpm, bullfrog, cola])
def test_steps_are_differentiable_in_the_cosmology(integrator):
    weight = np.random.default_rng(0).standard_normal((4, 8))

    def loss(omega_c):
        steps = integrator(cosmology(Omega_c=omega_c, **DARK), np.linspace(0.1, 1, 4))
        rows = zip(weight, jax.tree.leaves(steps), strict=False)
        return sum(jnp.sum(w[: x.size] * x.ravel()) for w, x in rows)

    both = jax.jit(jax.value_and_grad(loss))
    at, step = 0.26, 1e-5
    slope = (both(at + step)[0] - both(at - step)[0]) / (2 * step)
    assert abs(both(at)[1] / slope - 1) < 1e-7


def test_cola_comes_to_the_same_end():
    """As many steps of another scheme, with an error that falls with the square of the step, in
    whatever way momenta are taken to go between the steps.
    """
    plan = small_plan(grids()[-1])
    noise = small_noise(plan)

    @jax.jit
    def ends():
        start = small_start(noise, OMEGA_C, plan)

        def today(integrator, steps):
            a = np.linspace(0.1, 1, steps + 1)
            return simulate(start, plan, BOX, cosmology(), a, integrator=integrator, kernel="tsc")

        schemes = cola, functools.partial(cola, n_lpt=-2.5)
        return today(bullfrog, 320), [[today(f, n) for n in (10, 20, 40)] for f in schemes]

    # By identity: the order of rows depends on the way that particles took over the ranks.
    best, found = ends()
    expected = everybody(best)[1]
    for moved, bound in zip(found, (1e-2, 5e-2), strict=True):
        errors = [np.linalg.norm(everybody(end)[1] - expected) for end in moved]
        assert errors[0] < bound * np.linalg.norm(expected)
        for coarse, fine in itertools.pairwise(errors):
            assert 3.5 < coarse / fine < 4.5


@pytest.mark.ranks(2)
@pytest.mark.wrong_types
def test_what_is_refused_and_returned():
    with pytest.raises(ValueError, match="n_lpt must not be 0"):
        cola(cosmology(), [0.1, 1.0], n_lpt=0)
    for integrator, stages in ((fastpm, 3), (leapfrog, 3), (bullfrog, 2), (cola, 3)):
        steps = jax.eval_shape(lambda f=integrator: f(cosmology(), [0.1, 0.2, 0.3]))
        assert isinstance(steps, Steps)
        assert steps.drift.shape == steps.kick.shape == (stages,)
        for bad in (0.5, [0.5], [[0.1, 0.2]]):
            with pytest.raises(ValueError, match="the ends of the steps, a vector of two or more"):
                integrator(cosmology(), bad)
        for bad in ([0.0, 0.5], jnp.array([0.5, -0.1])):
            with pytest.raises(ValueError, match="scale factors must be positive"):
                integrator(cosmology(), bad)
        for a, outputs, text in (
            ([0.1, 0.5], [0.05], "between the first and the last of the scale factors"),
            ([0.1, 0.5], [0.5, 1.0], r"got \[1.0\]"),
            ([0.1, 0.5, 0.4], [0.2], "grow or fall from each to the next"),
            ([0.1, 0.5], 0.2, r"a vector; got shape \(\)"),
        ):
            with pytest.raises(ValueError, match=text):
                integrator(cosmology(), a, outputs=outputs)
        with pytest.raises(TypeError, match="must be known while the program is traced"):
            jax.jit(lambda a, f=integrator: f(cosmology(), a, outputs=[0.2]))(np.array([0.1, 0.5]))
