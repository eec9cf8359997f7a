"""Light cones of small runs, beside crossings that are searched for among many outputs."""

import dataclasses
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT, pm
from pfftjax.collectives import recover
from pfftjax.observables import LightCone, interpolation_weights, pixels_of
from pfftjax.observables._crossings import _Chunk, _values
from pfftjax.pm.internal import Passage
from tests.distributed import alone, grids
from tests.helpers import CONTROL, assert_close, on_one_rank, random
from tests.pm.universe import OMEGA_C, cosmology, table

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(2)]

SHAPE, BOX = (6, 9, 8), (180.0, 270.0, 240.0)
ENDS = np.linspace(0.78, 1, 3)  # the first at 814 Mpc/h
EDGES = (0.0, 150.0, 260.0, 420.0)
OBSERVER = (20.0, 250.0, -110.0)
NSIDE = 4


def _cone(interpolation="linear"):
    return LightCone(EDGES, NSIDE, observer=OBSERVER, interpolation=interpolation)


def _simulation(grid, omega_c=OMEGA_C, **options):
    plan = PencilFFT(SHAPE, grid, real=True)
    options = {"power": pm.tabulated(*table()), "finer": 1, **options}
    universe = cosmology(Omega_c=omega_c)
    return pm.Simulation(plan, BOX, universe, ENDS, capacity=math.prod(SHAPE), **options)


def _noise(simulation, dtype="float64"):
    return jnp.asarray(simulation.plan.input.local_block(random(SHAPE, dtype, 3)))


def _searched(seen, distances):
    """(distance, vector) of all crossings: each copy of each particle, between two of many outputs
    on straight lines."""
    sides = np.asarray(BOX)
    places = []
    for particles in seen:
        used = int(particles.used)
        rows = [np.asarray(x)[:used] for x in (particles.cell, particles.offset)]
        cell, offset = (np.concatenate(x) for x in zip(*CONTROL.allgather(rows), strict=True))
        places.append((cell + offset) * sides / SHAPE - np.asarray(OBSERVER))
    found = []
    copies = np.array(list(itertools.product(range(-4, 5), repeat=3))) * sides
    for (start, end), (far, near) in zip(
        itertools.pairwise(places), itertools.pairwise(distances), strict=True
    ):
        way = (end - start)[:, None]
        start = start[:, None] + copies
        is_in = np.linalg.norm(start, axis=-1) <= far
        is_in &= np.linalg.norm(start + way, axis=-1) > near
        start, way = start[is_in], np.broadcast_to(way, start.shape)[is_in]
        part = np.full(len(start), 0.5)
        for _ in range(8):
            distance = np.linalg.norm(start + part[:, None] * way, axis=-1)
            part = (far - distance) / (far - near)
        found.append(start + part[:, None] * way)
    vectors = np.concatenate(found)
    return np.linalg.norm(vectors, axis=1), vectors


def _maps(distance, vectors, interpolation):
    """What these particles are on the shells, in NumPy."""
    cone = _cone(interpolation)
    maps = np.zeros((cone.shells, cone.pixels))
    seen = distance < EDGES[-1]
    distance, vectors = distance[seen], vectors[seen]
    if interpolation == "nearest":
        shell = np.searchsorted(EDGES, distance, side="right") - 1
        np.add.at(maps, (shell, np.asarray(pixels_of(vectors, NSIDE))), 1)
        return maps
    pixels, weights = map(np.asarray, interpolation_weights(vectors, NSIDE))
    for shell in range(cone.shells):
        tent = np.interp(distance, cone.centres, np.eye(cone.shells)[shell])
        np.add.at(maps[shell], pixels, tent[:, None] * weights)
    return maps


@pytest.mark.parametrize(
    "integrator",
    [
        pytest.param(pm.fastpm, marks=pytest.mark.ranks(1)),
        pytest.param(pm.bullfrog, marks=pytest.mark.ranks(3)),
        pm.cola,
    ],
)
def test_crossings_are_those_between_many_outputs(integrator):
    simulation = _simulation(grids()[-1], integrator=integrator)
    times = np.unique(np.concatenate([np.linspace(a, b, 5) for a, b in itertools.pairwise(ENDS)]))
    noise = _noise(simulation)

    @jax.jit
    def run():
        outputs, shells = simulation.run(noise, outputs=times, light_cone=_cone())
        _, nearest = simulation.run(noise, light_cone=_cone("nearest"))
        return outputs, shells, nearest, pm.comoving_distance(simulation.cosmology, times)

    outputs, shells, nearest, distances = run()
    expected = _searched(outputs, np.asarray(distances))
    assert len(expected[0]) > 10_000
    assert_close(shells.counts, _maps(*expected, "linear"), 1e-5)
    apart = np.abs(np.asarray(nearest.counts) - _maps(*expected, "nearest"))
    assert apart.sum() <= 8  # particles at a boundary
    total = np.sum(expected[0] < EDGES[-1])
    assert abs(float(shells.counts.sum()) - total) < 1e-6 * total


@pytest.mark.ranks(2, 4)
def test_shells_are_the_same_on_any_number_of_ranks():
    maps = []
    for grid in (alone(), grids()[len(grids()) // 2]):
        simulation = _simulation(grid, finer=2)
        noise = _noise(simulation)
        _, shells = jax.jit(lambda x, s=simulation: s.run(x, light_cone=_cone()))(noise)
        maps.append(shells.counts)
        # Those of a constant density are as many as the volume has.
        mean = np.asarray(shells.counts).mean(1) / np.asarray(shells.expected())
        assert np.all(np.abs(mean - 1) < [0.3, 0.05, 0.02])
    assert_close(maps[1], maps[0], 1e-12)


def test_float32_has_the_same_shells():
    simulation = _simulation(grids()[0])

    @jax.jit
    def run(noise):
        return simulation.run(noise, light_cone=_cone())[1].counts

    single = run(_noise(simulation, "float32"))
    assert single.dtype == jnp.float32
    assert_close(single, run(_noise(simulation)), 1e-3)


@pytest.mark.ranks(4)
def test_gradients_are_those_of_forward_mode_and_of_differences():
    """In the noise and in the cosmology, which moves the cone, too: those of the way back, beside
    those along a direction, of a run that is followed forward."""
    grid = grids()[-1]
    noise = _noise(_simulation(grid))
    way = noise**2 - 1
    sky = jnp.asarray(np.random.default_rng(8).normal(size=(3, 192)))

    def loss(noise, omega_c):
        simulation = _simulation(grid, omega_c, integrator=pm.cola)
        end, shells = simulation.run(noise, light_cone=_cone())
        value = (sky * shells.contrast() ** 2).sum()  # every rank has it
        return value + pfftjax.vdot(end.momentum, end.momentum, grid)

    @jax.jit
    def along(t):
        return jax.jvp(lambda t: loss(noise + t * way, OMEGA_C + 0.1 * t), (t,), (1.0,))

    gradient = pfftjax.value_and_grad(loss, argnums=(0, 1), shared="omega_c")
    found, (of_noise, of_omega) = jax.jit(gradient)(noise, OMEGA_C)
    value, slope = along(0.0)
    assert_close(found, value, 1e-12)
    assert_close(pfftjax.vdot(of_noise, way, grid) + 0.1 * of_omega, slope, 1e-9)
    step = 1e-6
    difference = (along(step)[0] - along(-step)[0]) / (2 * step)
    assert_close(difference, slope, 1e-3)


@on_one_rank
def test_second_derivatives_of_crossings():
    """Where particles are met, by differences of slopes; these are as fast as light's tenth."""
    passage = Passage(
        near=jnp.asarray(900.0),
        far=jnp.asarray(1000.0),
        drift=jnp.asarray([5.0, 3.0, 1.0]),
        fall=jnp.asarray([0.5, 0.2, 0.1]),
        paths=None,
    )
    rng = np.random.default_rng(2)
    place = np.array([[940.0, 50.0, 30.0], [600.0, 700.0, 200.0], [10.0, -930.0, 80.0]])
    pull, way = rng.normal(size=(2, 3, 3))

    def distances(momentum):
        chunk = _Chunk(
            (jnp.asarray(place), momentum, jnp.asarray(pull), None),
            jnp.zeros((3, 3)),
            jnp.ones(3, bool),
        )
        nowhere = jnp.zeros((3, 1), jnp.int32)
        return _values(chunk, passage, lambda x, _: (nowhere, nowhere, x[:, None]), 1)[2].sum()

    slopes = jax.jit(lambda t: jax.grad(lambda t: distances(t * way))(t))
    found = jax.jit(lambda t: jax.jvp(slopes, (t,), (1.0,))[1])(0.5)
    step = 1e-4
    difference = (slopes(0.5 + step) - slopes(0.5 - step)) / (2 * step)
    assert abs(found - difference) < 1e-4 * abs(difference)


def test_a_light_cone_keeps_nothing_of_the_steps():
    """Whatever the adjoint: of a run with maps, reverse mode holds no maps of each step."""
    simulation = _simulation(grids()[0], adjoint="stored")
    cone = LightCone(EDGES, 32)
    held = []
    for options in ({}, {"light_cone": cone}):

        def loss(noise, options=options):
            found = simulation.run(noise, **options)
            end, shells = found if options else (found, None)
            value = 0.0 if shells is None else (shells.counts**2).sum()
            return value + pfftjax.vdot(end.offset, end.offset, simulation.plan.grid)

        program = jax.jit(lambda x, loss=loss: jax.vjp(loss, x)[1])
        kept = jax.eval_shape(program, _noise(simulation))
        held.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept)))
    map_bytes = 8 * cone.shells * cone.pixels
    assert held[1] - held[0] < 2 * map_bytes


@pytest.mark.ranks(1)
def test_a_light_cone_makes_no_copy_of_the_particles():
    """The kick overwrites what light has passed before."""
    simulation = _simulation(grids()[-1])
    start = jax.jit(simulation.start)(_noise(simulation))

    def copies_with(**options):
        where = simulation.mesh, BOX, simulation.cosmology, ENDS
        run = jax.jit(lambda particles: pm.simulate(particles, *where, **options))
        text = run.lower(start).compile().as_text()
        return len(re.findall(rf"= f64\[{start.offset.shape[0]},3\]\S* copy\(", text))

    assert copies_with(light_cone=_cone()) == copies_with()


@pytest.mark.parametrize("ends", [ENDS, ENDS - 0.08], ids=["until today", "ends before"])
def test_shells_beyond_the_run_are_refused(ends):
    """On the far side, and on the near one of a run that ends before today."""
    simulation = dataclasses.replace(_simulation(grids()[0]), scale_factors=ends)
    noise = _noise(simulation)
    far, near = map(float, pm.comoving_distance(simulation.cosmology, ends[[0, -1]]))

    def run(noise, edges):
        return simulation.run(noise, light_cone=LightCone(edges, NSIDE))[1].counts

    for edges in ((near, far), (far - 0.2, far - 0.1)):
        jax.block_until_ready(run(noise, edges))
    text = r"last edge of the light cone \[Mpc/h\] is .*, but without what is beyond the run "
    for edges in [(near, far, far + 1), *[(near - 1, far)] * (near > 1)]:
        with pytest.raises(ValueError, match=text):
            run(noise, edges)
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(jax.jit(run, static_argnums=1)(noise, edges))
        recover()


@pytest.mark.wrong_types
def test_what_is_refused():
    for arguments, text in (
        (((100.0,), 8), "two or more comoving distances"),
        (((100.0, 50.0), 8), "two or more comoving distances"),
        (((0.0, 50.0), 0), "nside must be an integer"),
        (((0.0, 50.0), 8, (1.0, 2.0)), "observer must be three coordinates"),
        (((0.0, 50.0), 8, None, "cubic"), "interpolation must be linear or nearest"),
    ):
        with pytest.raises(ValueError, match=text):
            LightCone(*arguments)
    simulation = _simulation(grids()[0])
    noise = _noise(simulation)
    start = jax.eval_shape(simulation.start, noise)

    def run(start, box=BOX, ends=ENDS, **options):
        universe = simulation.cosmology
        return pm.simulate(start, simulation.mesh, box, universe, ends, **options)

    for options, error, text in (
        ({"light_cone": 3}, TypeError, "must be a pfftjax.observables.LightCone, got 3"),
        ({"ends": ENDS[::-1]}, ValueError, "scale factors that grow"),
        ({"ends": ENDS + 0.1}, ValueError, "light arrives at a = 1"),
    ):
        with pytest.raises(error, match=text):
            jax.eval_shape(
                lambda x, o=options: run(x, **{"light_cone": _cone(), **o}),
                start,
            )
    for adjoint in ("stored", "reversible"):
        options = {"light_cone": _cone("nearest"), "adjoint": adjoint}

        def total(momentum, options=options):
            moved = dataclasses.replace(simulation.start(noise), momentum=momentum)
            return run(moved, **options)[1].counts.sum()

        with pytest.raises(TypeError, match="'nearest' has no derivative"):
            jax.eval_shape(jax.grad(total), start.momentum)
    with pytest.raises(TypeError, match="the box is traced"):
        jax.eval_shape(lambda x, box: run(x, box, light_cone=_cone()), start, jnp.array(BOX))
    with pytest.raises(ValueError, match="known while the program is traced"):
        jax.eval_shape(lambda x, a: run(x, ends=a, light_cone=_cone()), start, jnp.array(ENDS))
