"""The object that holds a whole simulation: as its functions, in one program or in many."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import PencilFFT, io
from pfftjax.collectives import recover
from pfftjax.pm import (
    Simulation,
    cola,
    density_contrast,
    eisenstein_hu,
    fastpm,
    growth,
    linear_field,
    lpt,
    power_spectrum,
    simulate,
    tabulated,
)
from tests.distributed import grids
from tests.helpers import SIZE, assert_close, random
from tests.pm.universe import (
    BOX,
    ENDS,
    SHAPE,
    cosmology,
    everybody,
    small_noise,
    small_plan,
    table,
)
from tests.programs import messages

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(2)]

TIMES = [1.0, 0.3, 0.61, 0.65]


def _simulation(grid, **options):
    return Simulation(small_plan(grid), BOX, cosmology(), ENDS, **{"capacity": 432, **options})


def test_members_of_an_ensemble_go_in_the_same_messages():
    simulation = _simulation(grids()[-1])
    noise = small_noise(simulation.plan)
    alone = messages(simulation.run, noise)
    many = messages(jax.vmap(simulation.run), jnp.stack([noise] * 5))
    assert SIZE == 1 or alone["move_rows"] > 0
    assert many == alone


def test_a_run_is_what_its_functions_do():
    """With the choices that are there by default, and with others."""
    grid = grids()[-1]
    other = {"power": tabulated(*table()), "finer": 1, "integrator": fastpm, "kernel": "tsc"}
    usual, unusual = _simulation(grid), _simulation(grid, order=1, **other)
    noise = small_noise(usual.plan)

    def by_hand(simulation, power, order):
        at = simulation.plan, BOX
        start = lpt(
            linear_field(noise, *at, power),
            *at,
            cosmology(),
            ENDS[0],
            order=order,
            mesh_shape=simulation.mesh.shape,
        )
        options = {"integrator": simulation.integrator, "kernel": simulation.kernel}
        where = simulation.mesh, BOX, cosmology(), ENDS
        end = simulate(start, *where, capacity=432, **options)
        coarse = end.rescaled(simulation.plan.input)
        painted = {"kernel": simulation.kernel, "capacity": 432}
        delta = density_contrast(coarse, simulation.plan, **painted)
        clean = density_contrast(coarse, simulation.plan, **painted, interlaced=True)
        return end, delta, power_spectrum(clean, *at, kernel=simulation.kernel)

    @jax.jit
    def both():
        ours = [
            (end := x.run(noise), x.density(end), x.power_spectrum(end)) for x in (usual, unusual)
        ]
        its = by_hand(usual, eisenstein_hu(cosmology()), 2)
        return ours, [its, by_hand(unusual, other["power"], 1)]

    assert usual.mesh.shape == (12, 18, 16)
    for ours, its in zip(*both(), strict=True):
        assert_close(ours, its, 1e-12)


@pytest.mark.ranks(3)
def test_snapshots_are_the_outputs_of_a_run():
    """In the order of their times; each as soon as the run has come to it."""
    simulation = _simulation(grids()[-1])
    noise = small_noise(simulation.plan)
    expected = jax.jit(lambda: simulation.run(noise, outputs=TIMES))()
    done = []
    snapshots = simulation.snapshots(noise, TIMES, progress=lambda *x: done.append(x))
    found = [(x, done[-1][0]) for x in snapshots]
    assert done == [(n, 4) for n in range(5)]
    assert [stages for _, stages in found] == [1, 3, 3, 4]
    for (actual, _), number in zip(found, (1, 2, 3, 0), strict=True):
        assert float(actual.scale_factor) == TIMES[number]
        np.testing.assert_allclose(actual.box_size, BOX)
        for x, y in zip(everybody(actual), everybody(expected[number]), strict=True):
            assert_close(x, y, 1e-11)
    (end,) = simulation.snapshots(noise)
    assert_close(everybody(end)[1], everybody(expected[0])[1], 1e-11)


def test_a_run_goes_on_from_its_checkpoint(folder):
    """On another grid too; not if it is of another noise or other steps. With all that particles
    keep: the integrator needs their displacements.
    """
    path = folder / "run.h5"
    first, last = (
        # As in another process: a partial function has no name.
        _simulation(grid, integrator=functools.partial(cola, n_lpt=-1.0))
        for grid in (grids()[0], grids()[-1])
    )
    expected = list(first.snapshots(small_noise(first.plan), TIMES))
    kept = io.Checkpoint(path, minutes=0, layout="per_rank")
    begun = first.snapshots(small_noise(first.plan), TIMES, checkpoint=kept)
    before = list(itertools.islice(begun, 1))
    next(begun)  # the job ends at the second output: the checkpoint is of the stages before
    begun.close()
    assert path.exists()

    done = []
    after = last.snapshots(
        small_noise(last.plan),
        TIMES,
        progress=lambda *x: done.append(x[0]),
        checkpoint=io.Checkpoint(path, minutes=0),
    )
    for actual, its in zip([*before, *after], expected, strict=True):
        assert float(actual.scale_factor) == float(its.scale_factor)
        for x, y in zip(everybody(actual), everybody(its), strict=True):
            assert_close(x, y, 1e-11)
    assert done == [2, 3, 4, 5]  # the last one is a kick only
    assert path.exists()  # also after the run is complete


@pytest.mark.ranks(1)
def test_another_noise_compiles_nothing(folder):
    """Neither does a restart, in a process that has done both."""
    run, compiled = _simulation(grids()[-1]), []

    def listener(name, _, **__):
        if name.endswith("backend_compile_duration"):
            compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for seed in (3, 4):
            path, noise = folder / f"{seed}.h5", small_noise(run.plan, seed)
            compiled.clear()
            for _ in range(2):
                list(run.snapshots(noise, [0.7], checkpoint=io.Checkpoint(path, minutes=0)))
            assert bool(compiled) == (seed == 3)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_a_signal_asks_for_a_checkpoint(folder):
    """One that reaches a single rank, once; a handler from before is called as well."""
    run, path, heard = _simulation(grids()[-1]), folder / "run.h5", []
    comm = run.plan.grid.comm
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        checkpoint = io.Checkpoint(path, minutes=1000)

        def progress(done, number):
            assert number > 3
            if done == 3:
                assert not path.exists()
                if comm.rank == comm.size - 1:
                    os.kill(os.getpid(), signal.SIGUSR1)

        noise = small_noise(run.plan)
        (end,) = run.snapshots(noise, progress=progress, checkpoint=checkpoint)
        assert float(end.scale_factor) == 1
        assert heard == [signal.SIGUSR1] * (comm.rank == comm.size - 1)
        assert io.attributes(path, run.plan.grid)["stages"] == 3
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with pytest.raises(ValueError, match="in the main thread only"):
                pool.submit(io.Checkpoint, path).result()
            assert pool.submit(io.Checkpoint, path, signals=()).result().path == path
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_checkpoint_of_another_run_is_refused(folder):
    """Whatever of the particles at the end depends on it; and one that has passed an output."""
    run, path = _simulation(grids()[-1]), folder / "run.h5"
    noise = small_noise(run.plan)
    begun = run.snapshots(noise, [0.7], checkpoint=io.Checkpoint(path, minutes=0))
    list(begun)
    changed = {
        "choices": [{"kernel": "tsc"}, {"finer": 1}],
        "rms": [{"power": lambda k: 1.01 * eisenstein_hu(cosmology())(k)}],
        "kick": [{"scale_factors": np.linspace(0.1, 0.9, 5)}],
        "omega_m": [{"cosmology": cosmology(Omega_c=0.27)}],
    }
    for what, options in changed.items():
        for option in options:
            other = dataclasses.replace(run, **{"power": eisenstein_hu(cosmology()), **option})
            text = "in units of the cells of" if option == {"finer": 1} else f"run: {what} is"
            with pytest.raises(ValueError, match=text):
                next(other.snapshots(noise, [0.7], checkpoint=io.Checkpoint(path)))
    with pytest.raises(ValueError, match=r"(?s)another run: cells is .*by noise and power"):
        next(run.snapshots(-noise, [0.7], checkpoint=io.Checkpoint(path)))
    with pytest.raises(ValueError, match=r"later than the output at 0\.3"):
        next(run.snapshots(noise, [0.3, 0.7], checkpoint=io.Checkpoint(path)))
    (end,) = run.snapshots(noise, [1.0], checkpoint=io.Checkpoint(path))
    assert float(end.scale_factor) == 1


def test_room_is_made_where_it_is_too_small(monkeypatch, folder):
    """At the start, within a run, and where a file is read; not where the user has set it."""
    grown = _simulation(grids()[-1], capacity=None)
    noise = small_noise(grown.plan)
    (expected,) = _simulation(grids()[-1]).snapshots(noise)
    monkeypatch.setattr("pfftjax.pm._simulation.room_for", lambda *_: 40)
    (actual,) = grown.snapshots(noise)
    assert actual.rows < 432 or grown.plan.grid.size == 1
    for x, y in zip(everybody(actual), everybody(expected), strict=True):
        assert_close(x, y, 1e-11)

    there = dataclasses.replace(actual, scale_factor=None)
    mesh = grown.mesh.input
    io.save_particles(folder / "particles.h5", there, mesh)
    monkeypatch.setattr("pfftjax.io._particles.default_capacity", lambda *_: 40)
    read = io.load_particles(folder / "particles.h5", mesh)
    for x, y in zip(everybody(read), everybody(expected), strict=True):
        assert_close(x, y, 1e-11)

    with pytest.raises(jax.errors.JaxRuntimeError, match="is enough on every rank"):
        next(dataclasses.replace(grown, capacity=40).snapshots(noise))
    recover()


@pytest.mark.ranks(1)
def test_a_simulation_is_differentiable():
    """In the noise, and in the cosmology that it is made of."""
    plan = PencilFFT(SHAPE, grids()[-1], real=True)
    noise, direction = (jnp.asarray(plan.input.local_block(random(SHAPE, seed=s))) for s in (3, 4))

    def loss(noise, omega_c):
        universe = cosmology(Omega_c=omega_c)
        simulation = Simulation(plan, BOX, universe, ENDS, capacity=432)
        delta = simulation.density(simulation.run(noise))
        return pfftjax.vdot(delta, delta, plan.grid)

    both = jax.jit(pfftjax.value_and_grad(loss, argnums=(0, 1), shared="omega_c"))
    step = 1e-5
    _, (of_noise, of_omega) = both(noise, 0.26)
    slope = both(noise, 0.26 + step)[0] - both(noise, 0.26 - step)[0]
    assert abs(slope / (2 * step) / of_omega - 1) < 1e-6
    slope = both(noise + step * direction, 0.26)[0] - both(noise - step * direction, 0.26)[0]
    along = pfftjax.vdot(of_noise, direction, plan.grid)
    assert abs(slope / (2 * step) / along - 1) < 1e-6


@pytest.mark.wrong_types
def test_what_is_refused():
    simulation = _simulation(grids()[0])
    noise = small_noise(simulation.plan)
    with pytest.raises(ValueError, match="finer must be 1 or more"):
        _ = dataclasses.replace(simulation, finer=0).mesh
    with pytest.raises(TypeError, match="call run"):
        jax.jit(lambda x: simulation.snapshots(x))(noise)
    with pytest.raises(ValueError, match="between the first and the last"):
        simulation.snapshots(noise, [2.0])
    with pytest.raises(ValueError, match="give a Simulation order=2 or 3"):
        dataclasses.replace(simulation, order=1, integrator=cola).snapshots(noise)
    with pytest.raises(TypeError, match=r"must be a function as pm\.fastpm, got 'fastpm'"):
        dataclasses.replace(simulation, integrator="fastpm").snapshots(noise)
    with pytest.raises(TypeError, match=r"must be a pfftjax.io.Checkpoint\(path\), got 'run.h5'"):
        simulation.snapshots(noise, checkpoint="run.h5")
    with pytest.raises(ValueError, match="growth: order must be 2 or 3, got 4"):
        growth(simulation.cosmology, 0.5, order=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="minutes must be zero or more"):
        io.Checkpoint("run.h5", minutes=-1)
    with pytest.raises(ValueError, match="layout must be shared or per_rank, got 'one'"):
        io.Checkpoint("run.h5", layout="one")
