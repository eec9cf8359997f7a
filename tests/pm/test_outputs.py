"""Outputs within a run: particles at other times than its end, and what is seen of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax.collectives import recover
from pfftjax.pm import (
    Steps,
    bullfrog,
    cola,
    density_contrast,
    fastpm,
    power_spectrum,
    simulate,
)
from tests.distributed import grids
from tests.helpers import assert_close
from tests.pm.universe import (
    BOX,
    ENDS,
    OMEGA_C,
    cosmology,
    everybody,
    small_noise,
    small_plan,
    small_start,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(2)]

# Ends of steps and times between them, two of them in one step, in no order.
TIMES = [1.0, 0.3, float(ENDS[2]), 0.1, 0.61, 0.65]
ADJOINTS = ("stored", "reversible")


def _run(noise, omega_c, plan, ends=ENDS, **options):
    start = small_start(noise, omega_c, plan)
    universe = cosmology(Omega_c=omega_c)
    return simulate(start, plan, BOX, universe, ends, capacity=start.total, **options)


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("integrator", [fastpm, bullfrog])
def test_outputs_are_the_ends_of_shorter_runs(integrator):
    """Where a step ends; each row is the same particle in all of them."""
    plan = small_plan(grids()[-1])
    noise = small_noise(plan)

    @jax.jit
    def both():
        options = {"integrator": integrator}
        seen = _run(noise, OMEGA_C, plan, outputs=ENDS[[3, 0, 2, 4]], **options)
        return seen, [_run(noise, OMEGA_C, plan, ENDS[: n + 1], **options) for n in (3, 2, 4)]

    seen, ends = both()
    assert [float(x.scale_factor) for x in seen] == list(ENDS[[3, 0, 2, 4]])
    for x in seen:
        np.testing.assert_array_equal(x.cell, seen[1].cell)
        assert x.rows == seen[1].rows
    for output, end in zip([seen[0], *seen[2:]], ends, strict=True):
        for actual, expected in zip(everybody(output), everybody(end), strict=True):
            assert_close(actual, expected, 1e-12)


def test_what_is_observed_is_of_the_outputs():
    """Also integers; on the ranks where particles are, of the box and the time."""
    plan = small_plan(grids()[0])
    noise = small_noise(plan)

    def look(x):
        spectrum = power_spectrum(density_contrast(x, plan), plan, x.box_size)
        return {"P": spectrum.power, "all": spectrum.modes.astype(int), "a": x.scale_factor}

    @jax.jit
    def both():
        seen = _run(noise, OMEGA_C, plan, outputs=TIMES)
        return _run(noise, OMEGA_C, plan, outputs=TIMES, observe=look), [look(x) for x in seen]

    found, expected = both()
    assert [float(x["a"]) for x in found] == TIMES
    for actual, its in zip(found, expected, strict=True):
        assert_close(actual["P"], its["P"], 1e-10)
        np.testing.assert_array_equal(actual["all"], its["all"])


def test_outputs_take_no_force():
    """As many transforms are in the program as without them."""
    plan = small_plan(grids()[0])

    def transforms(**options):
        program = str(
            jax.make_jaxpr(lambda x: _run(x, OMEGA_C, plan, **options))(small_noise(plan))
        )
        return len(re.findall(r"= (?:fft|gradient|gravity)\w*\[", program)), program

    without, program = transforms()
    assert without > 0, program
    assert transforms(outputs=TIMES)[0] == without


@pytest.mark.parametrize(
    ("integrator", "is_observed"),
    [(fastpm, False), (cola, True)],
    ids=["fastpm-particles", "cola-observed"],
)
def test_gradients_through_outputs(integrator, is_observed):
    """In the noise, the cosmology, and what the function that observes takes from around it: those
    that are stored; once also those of forward mode, and differences."""
    plan = small_plan(grids()[-1])
    noise, direction = small_noise(plan), small_noise(plan, 5)

    def loss(noise, omega_c, scale, adjoint):
        def look(x):
            # The second is summed over the ranks.
            energy = pfftjax.vdot(x.momentum, x.momentum, plan.grid)
            energy += pfftjax.vdot(x.displacements, x.displacements, plan.grid)
            return scale * density_contrast(x, plan, kernel="tsc"), energy, x.used

        observe = look if is_observed else None
        found = _run(
            noise,
            omega_c,
            plan,
            integrator=integrator,
            outputs=TIMES,
            observe=observe,
            adjoint=adjoint,
        )
        result = 0.0
        for number, x in enumerate(found):
            part = x[0] if is_observed else scale * (x.momentum + jnp.sin(x.offset))
            result += (1 + number) * pfftjax.vdot(part**2, jnp.cos(part), plan.grid)
            if is_observed:
                result += 100 * jnp.log(x[1])
        return result

    def both(adjoint):
        def value(noise, omega_c, scale):
            return loss(noise, omega_c, scale, adjoint)

        return pfftjax.value_and_grad(value, argnums=(0, 1, 2), shared=("omega_c", "scale"))

    at = noise, OMEGA_C, 0.5
    stored, reversible = jax.jit(lambda: [both(adjoint)(*at) for adjoint in ADJOINTS])()
    assert_close(reversible, stored, 1e-10)
    if not is_observed:
        return
    along = (direction, 0.3, 0.7)

    @jax.jit
    def moved(by):
        def value(t):
            return loss(*(x + t * way for x, way in zip(at, along, strict=True)), "reversible")

        return jax.jvp(value, (by,), (1.0,))

    _, slope = moved(0.0)
    of_noise, of_omega, of_scale = reversible[1]
    expected = pfftjax.vdot(of_noise, direction, plan.grid) + 0.3 * of_omega + 0.7 * of_scale
    assert abs(slope - expected) < 1e-10 * abs(slope)
    step = 1e-5
    difference = (moved(step)[0] - moved(-step)[0]) / (2 * step)
    assert abs(slope - difference) < 1e-6 * abs(slope)


def test_what_depends_on_the_order_of_rows_is_refused():
    """By reverse mode, which meets them in another order, unless there is one rank."""
    plan = small_plan(grids()[-1])

    def loss(noise, adjoint):
        def look(x):
            return x.momentum[: x.rows // 2]

        (seen,) = _run(noise, OMEGA_C, plan, outputs=[0.7], observe=look, adjoint=adjoint)
        return pfftjax.vdot(seen, seen, plan.grid)

    def gradient(adjoint):
        return jax.jit(pfftjax.grad(lambda x: loss(x, adjoint)))(small_noise(plan))

    stored = gradient("stored")
    if plan.grid.size == 1:
        assert_close(gradient("reversible"), stored, 1e-10)
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="must not depend on the order of rows"):
        jax.block_until_ready(gradient("reversible"))
    recover()


@pytest.mark.wrong_types
def test_what_is_refused():
    plan = small_plan(grids()[0])
    noise = small_noise(plan)

    def of_two(cosmology, ends):
        return fastpm(cosmology, ends)

    def without(cosmology, ends, outputs=None):
        return fastpm(cosmology, ends)

    def beyond(cosmology, ends, outputs):
        steps = fastpm(cosmology, ends, outputs=outputs)
        return steps._replace(outputs=steps.outputs._replace(stage=np.array([5])))

    for options, error, text in (
        ({"observe": len}, TypeError, "observe must be a function of the particles at the scale"),
        ({"outputs": [0.5], "observe": 3}, TypeError, "observe must be a function"),
        ({"outputs": [2.0]}, ValueError, "between the first and the last of the scale factors"),
        ({"outputs": [0.5], "integrator": of_two}, TypeError, "outputs"),
        ({"outputs": [0.5], "integrator": beyond}, TypeError, "must be integers from 0 to 4"),
        ({"outputs": [np.nan]}, ValueError, "between the first and the last"),
        ({"outputs": [0.5], "integrator": without}, TypeError, "for outputs the integrator must"),
    ):
        with pytest.raises(error, match=text):
            jax.eval_shape(lambda x, o=options: _run(x, OMEGA_C, plan, **o), noise)
    assert jax.eval_shape(lambda x: _run(x, OMEGA_C, plan, outputs=[]), noise) == []
    assert isinstance(of_two(cosmology(), ENDS), Steps)
