"""Initial conditions against Lagrangian perturbation theory of waves that can be done by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import PencilFFT
from pfftjax.pm import growth, lpt
from tests.distributed import alone, assert_block, grids
from tests.helpers import CONTROL, random
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2)]

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
                lpt(
                    delta,
                    plan,
                    BOX,
                    cosmology(),
                    A,
                    order=order,
                    mesh_shape=mesh,
                    keep_displacements=order == 2,
                )
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
            home = np.asarray(particles.cell) % cells
            at = home + np.asarray(particles.offset)
            expected = (q / SHAPE + moved / BOX) * cells
            # The cell is the one in which the particle started.
            whole = home - np.floor(q * cells / SHAPE + 1e-9)
            errors = at - expected, np.asarray(particles.momentum) - momentum, whole
            assert _worst(*errors) <= 1e-12
            if order == 2:
                first, second = np.moveaxis(np.asarray(particles.displacements), 1, 0)
                now = factors["now"]
                along = float(now.d1) * first + float(now.d2) * second
                assert _worst(along - moved) <= 1e-12


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


def _second_order(delta, *, finer):
    """grad of the inverse Laplacian of the sum over i < j of phi_ii phi_jj - phi_ij^2, products on
    `finer` points, by NumPy on the whole array."""
    shape = delta.shape
    index = np.stack(np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in shape), indexing="ij"))
    sides = np.reshape(BOX, (3, 1, 1, 1))
    k = 2 * np.pi * index / sides
    k2 = (k**2).sum(0)
    inverse = np.where(k2 == 0, 0, 1 / np.where(k2 == 0, 1, k2))
    at_nyquist = 2 * np.abs(index) == np.reshape(shape, (3, 1, 1, 1))
    phi = np.where(at_nyquist.any(0), 0, -inverse * np.fft.fftn(delta))
    places = np.ix_(*(np.fft.fftfreq(n, 1 / n).astype(int) for n in shape))
    second = {}
    for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)):
        padded = np.zeros(finer, complex)
        padded[places] = -k[i] * k[j] * phi * (np.prod(finer) / np.prod(shape))
        second[i, j] = np.fft.ifftn(padded).real
    product = sum(
        second[i, i] * second[j, j] - second[i, j] ** 2 for i, j in ((0, 1), (0, 2), (1, 2))
    )
    spectrum = np.fft.fftn(product) * (np.prod(shape) / np.prod(finer))
    for axis, n in enumerate(shape):  # the modes of the coarser mesh, both signs of n / 2 in one
        half = n // 2
        ends = [np.take(spectrum, range(n - half), axis), np.take(spectrum, range(-half, 0), axis)]
        opposite = np.take(spectrum, [half], axis) if n % 2 == 0 else 0
        spectrum = np.concatenate(ends, axis)
        at = [slice(None)] * 3
        at[axis] = slice(n - half, n - half + 1)
        if n % 2 == 0:
            spectrum[tuple(at)] += opposite
    g = np.where(at_nyquist, 0, k)
    return np.stack([np.fft.ifftn(-1j * g[i] * inverse * spectrum).real for i in range(3)], -1)


def test_the_second_order_without_aliases():
    """White noise has all modes up to the Nyquist frequencies; and the exact slope."""
    rng = np.random.default_rng(4)
    delta, v = rng.standard_normal((2, *SHAPE))
    plans = [PencilFFT(SHAPE, grid, real=True) for grid in grids()]
    last = plans[-1]
    weights = last.input.local_block(rng.standard_normal((*SHAPE, 3))[..., 0])[..., None]
    weights = jnp.asarray(np.broadcast_to(weights, (*weights.shape[:-1], 3)).reshape(-1, 3))

    def offset(delta, plan, **options):
        return lpt(delta, plan, BOX, cosmology(), A, **options).offset

    def weighted(delta):
        return jnp.sum(weights * offset(delta, last, dealias=True))

    @jax.jit
    def everything(fields, tangent):
        moved = [
            offset(delta, plan, dealias=True) - offset(delta, plan, order=1)
            for plan, delta in zip(plans, fields, strict=True)
        ]
        x = fields[-1]
        moved.append(offset(x, last) - offset(x, last, order=1))
        ends = [weighted(x + tangent), weighted(x - tangent)]  # exact: of second order
        return moved, jnp.sum(jax.grad(weighted)(x) * tangent), ends

    fields = [jnp.asarray(plan.input.local_block(delta)) for plan in plans]
    moved, slope, ends = everything(fields, jnp.asarray(last.input.local_block(v)))
    d2, today = float(growth(cosmology(), A).d2), float(growth(cosmology(), 1.0).d1)
    # On so many points nothing comes back where it is kept.
    whole = _second_order(delta / today, finer=tuple(2 * n + 1 for n in SHAPE))
    whole *= d2 * np.array(SHAPE) / BOX
    errors = []
    for plan, psi2 in zip([*plans, last], moved, strict=True):
        expected = np.stack([plan.input.local_block(whole[..., i]) for i in range(3)], -1)
        errors.append(_worst(np.asarray(psi2) - expected.reshape(-1, 3)) / np.abs(whole).max())
    *without, plain = errors
    assert max(without) <= 1e-12
    assert plain >= 0.1
    slope, plus, minus = (CONTROL.allreduce(float(x)) for x in (slope, *ends))
    assert abs(slope - (plus - minus) / 2) <= 1e-11 * abs(slope)


def _residuals(terms, k):
    """A displacement is put into the equations of motion in matter domination (Catelan 1995, eq.
    2-4): what is left of their divergence and of their curl. Each term is a power of the scale
    factor and its field."""
    # With ' = d/dln a the acceleration is psi'' + psi' / 2, and its divergence 3/2 (J - 1).
    psi = sum(field for _, field in terms)
    pull = sum((n * n + n / 2) * field for n, field in terms)

    def slopes(fields):
        spectra = np.fft.fftn(fields, axes=(1, 2, 3))
        return np.fft.ifftn(1j * k[None] * spectra[:, None], axes=(2, 3, 4)).real

    x, a = slopes(psi), slopes(pull)  # [i, j], the derivative of component i along axis j
    x = np.moveaxis(x + np.eye(3)[..., None, None, None], (0, 1), (-2, -1))
    a = np.moveaxis(a, (0, 1), (-2, -1))
    j = np.linalg.det(x)
    divergence = np.einsum("...ji,...ij->...", np.linalg.inv(x), a) * j - 1.5 * (j - 1)
    curls = np.einsum("...lj,...lk->...jk", a, x)
    return np.abs(divergence).max(), np.abs(curls - np.swapaxes(curls, -1, -2)).max()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_what_the_equations_of_motion_leave(order):
    """In matter domination the rest is of the next order in the density, also of the curl."""
    n, side = 24, 24.0
    plan = PencilFFT((n, n, n), alone(), real=True)
    waves = np.zeros((n, n, n), complex)
    rng = np.random.default_rng(1)
    for wave in ((0, 0, 1), (0, 1, 0), (1, 0, 1), (1, -1, 0), (1, 1, 1)):
        waves[wave] = np.exp(2j * np.pi * rng.random())
    delta = np.fft.ifftn(waves).real * n**3
    flat = cosmology(Omega_c=0.95, Omega_b=0.05)
    a = 0.5

    @jax.jit
    def moved(delta):
        return [lpt(delta, plan, side, flat, a, order=o, dealias=True).offset for o in range(1, 4)]

    k = 2 * np.pi * np.stack(np.meshgrid(*[np.fft.fftfreq(n)] * 3, indexing="ij"))
    left = []
    for amplitude in (0.02, 0.01):
        orders = np.diff([np.zeros((n**3, 3)), *moved(jnp.asarray(amplitude * delta))], axis=0)
        fields = [(i + 1, x.T.reshape(3, n, n, n)) for i, x in enumerate(orders[:order])]
        left.append(_residuals(fields, k))
    divergence, curl = np.log2(left[0]) - np.log2(left[1])
    assert abs(divergence - (order + 1)) < 0.15
    # Gradients have a curl of third order at the earliest.
    assert abs(curl - max(order + 1, 3)) < 0.15 or left[0][1] < 1e-12


def test_the_third_order_on_every_grid():
    """The same on a rank alone, and the slope in the field."""
    rng = np.random.default_rng(4)
    delta, v = 0.1 * rng.standard_normal((2, *SHAPE))
    plans = [PencilFFT(SHAPE, grid, real=True) for grid in (alone(), *grids())]
    last = plans[-1]
    weights = np.stack([last.input.local_block(x) for x in rng.standard_normal((6, *SHAPE))])

    def everything(delta, plan):
        p = lpt(delta, plan, BOX, cosmology(), A, order=3, dealias=True)
        return jnp.concatenate([p.offset, p.momentum], axis=1).T.reshape(
            6, *plan.input.local_shape
        )

    def weighted(delta):
        return jnp.sum(weights * everything(delta, last))

    @jax.jit
    def run(fields, tangent):
        x = fields[-1]
        slope = jnp.sum(jax.grad(weighted)(x) * tangent)
        results = [everything(x, plan) for plan, x in zip(plans, fields, strict=True)]
        return results, slope, [weighted(x + s * 1e-5 * tangent) for s in (1, -1)]

    fields = [jnp.asarray(plan.input.local_block(delta)) for plan in plans]
    (whole, *others), slope, ends = run(fields, jnp.asarray(last.input.local_block(v)))
    for plan, block in zip(plans[1:], others, strict=True):
        assert_block(block, np.asarray(whole), plan.input, 1e-12)
    slope, plus, minus = (CONTROL.allreduce(float(x)) for x in (slope, *ends))
    assert abs(slope - (plus - minus) / 2e-5) <= 1e-7 * abs(slope)


@pytest.mark.wrong_types
def test_what_is_refused():
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    delta = jnp.zeros(plan.input.local_shape)
    with pytest.raises(ValueError, match="order must be 1, 2 or 3, got 4"):
        lpt(delta, plan, 1.0, cosmology(), 0.1, order=4)
    with pytest.raises(ValueError, match="order=1 has no second displacement to keep"):
        lpt(delta, plan, 1.0, cosmology(), 0.1, order=1, keep_displacements=True)
    with pytest.raises(ValueError, match=r"mesh_shape must be three positive sizes, got \(4, 4\)"):
        lpt(delta, plan, 1.0, cosmology(), 0.1, mesh_shape=(4, 4))
    with pytest.raises(ValueError, match="real=True"):
        lpt(delta, PencilFFT((4, 4, 4), grids()[0]), 1.0, cosmology(), 0.1)
    with pytest.raises(ValueError, match=r"lpt on rank .*: one field at a time"):
        lpt(delta[None], plan, 1.0, cosmology(), 0.1)
    with pytest.raises(TypeError, match=r"lpt on rank .* complex128"):
        lpt(delta + 0j, plan, 1.0, cosmology(), 0.1)
    with pytest.raises(ValueError, match=r"lpt on rank .*: box_size must be a positive length"):
        lpt(delta, plan, np.int64(0), cosmology(), 0.1)
    for a in (0.0, -0.5, jnp.float32(0)):
        with pytest.raises(ValueError, match="scale factors must be positive"):
            lpt(delta, plan, 1.0, cosmology(), a)


def test_whole_numbers():
    """No factor is rounded to the dtype of the field."""
    plan = PencilFFT((4, 4, 4), grids()[0], real=True)
    delta = plan.input.local_block(random((4, 4, 4), "int32"))
    both = jax.jit(lambda *x: [lpt(y, plan, 9.0, cosmology(), 0.1, order=1).offset for y in x])
    np.testing.assert_array_equal(*both(delta, delta.astype(float)))
