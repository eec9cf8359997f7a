"""Gravity against the potentials of plane waves, and against numpy on the whole mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.pm import gravity
from tests.distributed import assert_block, grids, total
from tests.helpers import RANK, SIZE, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]

GRADIENTS = ("finite-difference", "spectral")
BOX = (30.0, 50.0, 20.0)


def _plans(shape):
    return [PencilFFT(shape, grid, real=True) for grid in grids()]


def _wave(k, phase, shape):
    """The phase of a plane wave of k periods along each axis."""
    mesh = np.meshgrid(*(np.arange(n) / n for n in shape), indexing="ij")
    return phase + 2 * np.pi * sum(periods * x for periods, x in zip(k, mesh, strict=True))


def test_plane_waves():
    """Along each axis and across; to rounding, by what each gradient makes of a wave."""
    shape = (8, 12, 10)
    # The last ones are at the Nyquist frequency of an axis, which has no sign and no slope.
    periods = [(1, 0, 0), (0, 2, 0), (0, 0, 3), (2, -3, 1), (-3, 5, 4), (0, 6, 0), (4, 1, 2)]
    phases = [_wave(k, 0.3 + i, shape) for i, k in enumerate(periods)]
    expected = {gradient: [] for gradient in GRADIENTS}
    for k, phase in zip(periods, phases, strict=True):
        cells = np.array(BOX) / shape
        wavenumber = 2 * np.pi * np.array(k) / BOX
        w = wavenumber * cells
        by_gradient = {
            "finite-difference": (8 * np.sin(w) - np.sin(2 * w)) / (6 * cells),
            "spectral": np.where(2 * np.abs(k) == shape, 0, wavenumber),
        }
        for gradient, slope in by_gradient.items():
            # phi = -cos / k^2, whose gradient is slope sin / k^2.
            force = -slope[:, None, None, None] * np.sin(phase) / np.sum(wavenumber**2)
            expected[gradient].append(force)
    density = np.cos(phases)
    plans = _plans(shape)

    @jax.jit
    def forces(blocks):
        # Waves of a batch, which is one transform.
        return [
            [
                jax.vmap(lambda x, p=p, g=g: gravity(x, p, BOX, gradient=g))(block)
                for g in GRADIENTS
            ]
            for p, block in zip(plans, blocks, strict=True)
        ]

    results = forces([plan.input.local_block(density) for plan in plans])
    for plan, both in zip(plans, results, strict=True):
        for gradient, force in zip(GRADIENTS, both, strict=True):
            whole = plan.input.local_block(np.stack(expected[gradient]))
            assert force.shape == whole.shape
            assert np.abs(force - whole).max(initial=0) < 1e-13 * np.abs(expected[gradient]).max()


def _model(density, box, gradient):
    """By numpy, with the difference as shifts of the whole mesh."""
    shape = density.shape
    k = [
        (2 * np.pi * np.fft.fftfreq(n, side / n)).reshape([-1 if a == i else 1 for a in range(3)])
        for i, (n, side) in enumerate(zip(shape, box, strict=True))
    ]
    k2 = sum(c**2 for c in k)
    potential = -np.fft.fftn(density) / np.where(k2 == 0, np.inf, k2)
    force = []
    for axis, (n, side) in enumerate(zip(shape, box, strict=True)):
        if gradient == "spectral":
            slope = np.where(2 * np.abs(k[axis]) * side == 2 * np.pi * n, 0, k[axis])
            force.append(np.fft.ifftn(-1j * slope * potential).real)
        else:
            phi = np.fft.ifftn(potential).real
            to = [np.roll(phi, -i, axis) for i in (-2, -1, 1, 2)]
            force.append(-(8 * (to[2] - to[1]) - (to[3] - to[0])) * n / (12 * side))
    return np.stack(force)


SHAPES = ((7, 6, 5), (2, 1, 9), (3, 5, 1))


def test_any_mesh_with_its_adjoint():
    """Prime sizes, axes shorter than the difference, fewer planes than ranks."""
    cases = [(p, g) for shape in SHAPES for p in _plans(shape) for g in GRADIENTS]

    @jax.jit
    def everything(operands):
        results = []
        for (plan, gradient), (x, y) in zip(cases, operands, strict=True):
            force, pull = jax.vjp(lambda x, p=plan, g=gradient: gravity(x, p, BOX, gradient=g), x)
            results.append((force, pull(y)[0]))
        return results

    wholes = [(random(p.shape, seed=1), random((3, *p.shape), seed=2)) for p, _ in cases]
    operands = [
        tuple(p.input.local_block(a) for a in whole)
        for (p, _), whole in zip(cases, wholes, strict=True)
    ]
    for (plan, gradient), (X, Y), (x, y), (force, pulled) in zip(
        cases, wholes, operands, everything(operands), strict=True
    ):
        whole = _model(X, BOX, gradient)
        assert_block(force, whole, plan.input, 1e-12)
        size = np.sum(np.abs(whole * Y)) + 1e-300
        assert abs(total(force, y) - total(x, pulled)) <= 1e-12 * size


def test_derivatives_of_a_uniform_density():
    """No NaN from the mode k = 0, in the density and in the box."""
    plan = PencilFFT((4, 6, 5), grids()[-1], real=True)

    @jax.jit
    def derivatives():
        results = []
        for gradient in GRADIENTS:

            def loss(density, side, gradient=gradient):
                force = gravity(density, plan, (side, 50.0, 2 * side), gradient=gradient)
                return jnp.sum(force**2) + jnp.sum(force)

            first = jax.grad(loss, (0, 1))
            at = (jnp.ones(plan.input.local_shape), 30.0)
            results.append(jax.jvp(first, at, at))
        return results

    for derivative in jax.tree.leaves(derivatives()):
        assert np.all(np.isfinite(derivative))


def test_derivative_in_the_box():
    """The force of an arbitrary density grows with the side of the box."""
    plan = PencilFFT((4, 6, 5), grids()[-1], real=True)
    x = jnp.asarray(plan.input.local_block(random((4, 6, 5))))
    force, slope = jax.jit(
        lambda x: jax.jvp(lambda side: gravity(x, plan, side), (30.0,), (1.0,))
    )(x)
    np.testing.assert_allclose(slope, force / 30, rtol=1e-11, atol=1e-13)


def test_nothing_pulls_itself():
    """The total force vanishes: momentum is kept. And single precision stays what it is."""
    plan = PencilFFT((8, 6, 7), grids()[-1], real=True)
    x = jnp.asarray(plan.input.local_block(random((8, 6, 7))))

    @jax.jit
    def forces(x):
        return [
            [gravity(x.astype(dtype), plan, 30.0, gradient=g) for dtype in ("float64", "float32")]
            for g in GRADIENTS
        ]

    for force, single in forces(x):
        for axis in range(3):
            size = total(np.abs(x), np.abs(force[axis])).real
            assert abs(total(x, force[axis])) < 1e-13 * size
        assert single.dtype == "float32"
        scale = np.sqrt(total(force, force).real / (3 * 8 * 6 * 7))
        assert np.abs(single - force).max() < 1e-5 * scale


def test_whole_numbers():
    """Counts of particles, say: wavenumbers and factors are not rounded to their dtype."""
    plan = PencilFFT((4, 5, 6), grids()[0], real=True)
    counts = plan.input.local_block(random((4, 5, 6), "int32"))
    both = jax.jit(lambda *x: [[gravity(y, plan, BOX, gradient=g) for g in GRADIENTS] for y in x])
    for of_integers, of_numbers in zip(*both(counts, counts.astype(float)), strict=True):
        np.testing.assert_array_equal(of_integers, of_numbers)


@pytest.mark.wrong_types
def test_what_is_refused():
    grid = grids()[0]
    plan = PencilFFT((4, 5, 6), grid, real=True)

    def traced(shape, plan, **options):
        jax.eval_shape(lambda: gravity(jnp.zeros(shape), plan, 1.0, **options))

    block = plan.input.local_shape
    with pytest.raises(ValueError, match=rf"gravity on rank {RANK} of {SIZE}: gradient must be"):
        traced(block, plan, gradient="exact")
    for bad in (
        PencilFFT((4, 5, 6), grid),
        PencilFFT((4, 5, 6), grid, real=True, norm="ortho"),
        grid,
    ):
        with pytest.raises(ValueError, match="gravity: the plan must be a PencilFFT"):
            traced(block, bad)
    with pytest.raises(ValueError, match=rf"gravity on rank {RANK} .* has shape \(9, 9, 9\)"):
        traced((9, 9, 9), plan)
    if plan.output.local_shape != block:
        with pytest.raises(ValueError, match=r"pass plan\.inverse of a spectrum"):
            traced(plan.output.local_shape, plan)
    with pytest.raises(ValueError, match=rf"gravity on rank {RANK} .*: one field at a time"):
        traced((1, *block), plan)
    with pytest.raises(TypeError, match=rf"gravity on rank {RANK} .* complex128"):
        gravity(jnp.zeros(block, complex), plan, 1.0)
    with pytest.raises(ValueError, match=rf"gravity on rank {RANK} .*: box_size must be a"):
        gravity(jnp.zeros(block), plan, np.float32(-1))
