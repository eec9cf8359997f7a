"""Paint and readout against sums over all particles and the whole mesh, with derivatives up to the
third."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from pfftjax import Pencil
from pfftjax._runtime.primitive import as_on_gpus
from pfftjax.pm import Positions, paint, readout
from tests.distributed import assert_block, grids, total
from tests.helpers import CONTROL, RANK, SIZE, drawn, random
from tests.pm.universe import at_home, interpolated, painted

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.ranks(1, 2)]

SMOOTH = ("cic", "tsc", "pcs")  # with derivatives in positions
KERNELS = ("ngp", *SMOOTH)


@dataclasses.dataclass(frozen=True)
class Case:
    """Particles of all ranks, each at home, with something to paint and something to read."""

    pencil: Pencil
    kernel: str
    u: Any  # (ranks, rows, 3) in cells
    used: Any
    values: Any  # (ranks, rows, components); 0 in unused rows
    field: Any  # (components, *global_shape)
    positions: Any  # of this rank
    plain: bool  # one component, which has no axis

    def operands(self):
        """(positions, values, field) of this rank."""
        values, field = self.values[RANK], self.pencil.local_block(self.field)
        return (self.positions, *((values[:, 0], field[0]) if self.plain else (values, field)))


def _draw(data):
    pencil = Pencil(
        data.draw(st.tuples(*[st.integers(1, 9)] * 3)), data.draw(st.sampled_from(grids()))
    )
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    components = data.draw(st.sampled_from([None, 1, 3]))
    rows = data.draw(st.integers(0, 20))
    cells, fractions, used = at_home(pencil, rows, data.draw(st.integers(0, 99)))
    mask = np.arange(rows) < used[:, None]
    values = random((SIZE, rows, components or 1), dtype, 1) * mask[..., None]
    field = random((components or 1, *pencil.global_shape), dtype, 2)
    far = data.draw(st.booleans())
    if far or used[RANK] < rows:
        # Cells and offsets that are many boxes away from where the particle is.
        away, boxes = np.random.default_rng(3).integers(-50, 50, (2, *cells.shape))
        offset = cells + fractions - away + boxes * pencil.global_shape
        offset[~mask] = np.nan  # nobody looks at them
        away = away.astype("int32")
        positions = Positions(away[RANK], offset[RANK].astype(dtype), used[RANK])
    else:
        positions = (cells + fractions)[RANK].astype(dtype)
    kernel = data.draw(st.sampled_from(KERNELS))
    return Case(
        pencil, kernel, cells + fractions, used, values, field, positions, components is None
    )


@drawn(3)
@given(data=st.data())
def test_against_sums(data):
    """Fewer planes than ranks, axes of length 1, where a kernel meets itself, and offsets of many
    boxes."""
    cases = [_draw(data) for _ in range(10)]

    @jax.jit
    def actual(operands):
        results = []
        for case, (at, values, field) in zip(cases, operands, strict=True):
            mesh, kernel = case.pencil, case.kernel
            results.append(
                (
                    paint(at, mesh, values=values, kernel=kernel),
                    readout(field, at, mesh, kernel=kernel),
                    paint(at, mesh, kernel=kernel),
                )
            )
        return results

    for case, results in zip(cases, actual([case.operands() for case in cases]), strict=True):
        weighted, read, counted = results
        tolerance = 1e-5 if case.values.dtype == "float32" else 1e-13
        mask = np.arange(case.u.shape[1]) < case.used[:, None]
        args = case.pencil.global_shape, case.kernel
        mesh = painted(case.u, case.values, *args)
        at_all = interpolated(case.field, case.u, case.kernel) * mask[..., None]
        counts = painted(case.u, mask[..., None], *args)[0]
        if case.plain:
            mesh, at_all = mesh[0], at_all[..., 0]
        assert weighted.dtype == read.dtype == counted.dtype == case.values.dtype
        assert_block(weighted, mesh, case.pencil, tolerance)
        assert_block(counted, counts, case.pencil, tolerance)
        assert read.shape == at_all[RANK].shape
        assert np.all(np.asarray(read)[case.used[RANK] :] == 0)
        error = np.abs(read - at_all[RANK]).max(initial=0)
        assert error <= tolerance * np.abs(case.field).max()
        mass = CONTROL.allreduce(float(jnp.sum(counted, dtype="float64")))
        assert abs(mass - case.used.sum()) <= tolerance * max(case.used.sum(), 1)


SHAPE = (5, 4, 3)


def _particles(pencil, rows=4):
    """(cells, fractions, mask) of all ranks, where kernels have all their derivatives."""
    cells, fractions, used = at_home(pencil, rows, seed=5, smooth=True)
    return cells, fractions, used, np.arange(rows) < used[:, None]


def test_each_is_the_adjoint_of_the_other():
    cases = [(Pencil(SHAPE, grid), kernel) for grid in grids() for kernel in KERNELS]
    operands = []
    for pencil, _ in cases:
        cells, fractions, used, _ = _particles(pencil)
        values, others = (random((SIZE, 4, 2), seed=s)[RANK] for s in (6, 7))
        field, mesh = (pencil.local_block(random((2, *SHAPE), seed=s)) for s in (8, 9))
        at = Positions(cells[RANK], fractions[RANK], used[RANK])
        operands.append((at, values, others, field, mesh))

    @jax.jit
    def both(operands):
        results = []
        for (pencil, kernel), (at, values, others, field, mesh) in zip(
            cases, operands, strict=True
        ):

            def put(values, at=at, pencil=pencil, kernel=kernel):
                return paint(at, pencil, values=values, kernel=kernel)

            def get(field, at=at, pencil=pencil, kernel=kernel):
                return readout(field, at, pencil, kernel=kernel)

            results.append((jax.vjp(put, values)[1](mesh)[0], get(mesh)))
            results.append((jax.vjp(get, field)[1](others)[0], put(others)))
            results.append((put(values), get(field)))
        return results

    results = iter(both(operands))
    for (pencil, _), (_, values, others, field, mesh) in zip(cases, operands, strict=True):
        used = _particles(pencil)[2][RANK]
        of_mesh, of_others, (painted_values, read_field) = (
            next(results),
            next(results),
            next(results),
        )
        np.testing.assert_array_equal(*of_mesh)
        np.testing.assert_array_equal(*of_others)
        size = total(np.abs(painted_values), np.abs(mesh)).real
        assert abs(total(painted_values, mesh) - total(values, of_mesh[0])) <= 1e-12 * size
        assert abs(total(read_field, others) - total(field, of_others[0])) <= 1e-12 * size
        assert np.all(np.asarray(of_mesh[0])[used:] == 0)


def _loss(put, get, offset, values, field):
    """This rank's part of a loss: nonlinear, with each as the argument of the other."""
    mesh = put(offset, values)
    at = get(field * (1 + jnp.sin(mesh)), offset)
    return jnp.sum(values * at**2)


@pytest.mark.parametrize("kernel", SMOOTH)
def test_derivatives_up_to_the_third(kernel):
    """Each against differences of the one before; the second in both orders."""
    grid = grids()[len(grids()) // 2]
    pencil = Pencil(SHAPE, grid)
    cells, fractions, used, _ = _particles(pencil)
    wholes = fractions, random((SIZE, 4, 2), seed=1), random((2, *SHAPE), seed=2)
    x, t = (
        (offset[RANK], values[RANK], pencil.local_block(field))
        for offset, values, field in (
            wholes,
            [random(a.shape, seed=s) for s, a in enumerate(wholes, 3)],
        )
    )

    def put(offset, values):
        at = Positions(cells[RANK], offset, used[RANK])
        return paint(at, pencil, values=values, kernel=kernel)

    def get(field, offset):
        at = Positions(cells[RANK], offset, used[RANK])
        return readout(field, at, pencil, kernel=kernel)

    def loss(x):
        return _loss(put, get, *x)

    def slope(x):
        return jax.jvp(loss, (x,), (t,))[1]

    def curvature(x):
        return jax.jvp(slope, (x,), (t,))[1]

    @jax.jit
    def derivatives(x):
        third = jax.jvp(curvature, (x,), (t,))[1]
        return loss(x), jax.jvp(jax.grad(loss), (x,), (t,)), jax.grad(slope)(x), third

    def along(x):
        return sum(total(a, b).real for a, b in zip(x, t, strict=True))

    step = 1e-5
    before, here, after = (
        jax.device_get(derivatives(tuple(a + s * step * b for a, b in zip(x, t, strict=True))))
        for s in (-1, 0, 1)
    )
    _, (gradient, product), same, third = here
    rate = total(after[0] - before[0], 1.0).real / (2 * step)
    assert abs(along(gradient) - rate) < 1e-7 * abs(rate)
    for a, b, actual in zip(before[1][0], after[1][0], product, strict=True):
        scale = CONTROL.allreduce(np.abs(actual).max(initial=0), MPI.MAX)
        assert np.abs((b - a) / (2 * step) - actual).max(initial=0) < 1e-7 * scale
    for a, b in zip(product, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    rate = (along(after[1][1]) - along(before[1][1])) / (2 * step)
    assert abs(total(third, 1.0) - rate) < 1e-7 * abs(rate)


@pytest.mark.parametrize("kernel", SMOOTH)
def test_tangents(kernel):
    """The derivative in each position, and in what is painted or read, equals differences."""
    pencils = [Pencil(SHAPE, grid) for grid in grids()]
    values, field = random((SIZE, 4, 2), seed=1), random((2, *SHAPE), seed=2)
    values_dot, field_dot = random(values.shape, seed=3), random(field.shape, seed=4)
    offset_dot = random((SIZE, 4, 3), seed=5)

    @jax.jit
    def tangents():
        results = []
        for p in pencils:
            cells, fractions, used, _ = _particles(p)
            cell, used = cells[RANK], used[RANK]

            def put(offset, values, cell=cell, used=used, p=p):
                return paint(Positions(cell, offset, used), p, values=values, kernel=kernel)

            def get(offset, field, cell=cell, used=used, p=p):
                return readout(field, Positions(cell, offset, used), p, kernel=kernel)

            offset = (fractions[RANK], offset_dot[RANK])
            for f, y in (
                (put, (values[RANK], values_dot[RANK])),
                (get, (p.local_block(field), p.local_block(field_dot))),
            ):
                results.append(jax.jvp(f, *zip(offset, y, strict=True))[1])
        return results

    results = iter(tangents())
    step = 1e-5
    for pencil in pencils:
        cells, fractions, _, mask = _particles(pencil)
        ends = []
        for s in (step, -step):
            u = cells + fractions + s * offset_dot
            v = (values + s * values_dot) * mask[..., None]
            read = interpolated(field + s * field_dot, u, kernel) * mask[..., None]
            ends.append((painted(u, v, SHAPE, kernel), read))
        mesh, at = ((a - b) / (2 * step) for a, b in zip(*ends, strict=True))
        assert_block(next(results), mesh, pencil, 1e-8)
        assert np.abs(next(results) - at[RANK]).max() < 1e-8 * np.abs(at).max()


def test_the_nearest_point_has_no_slope():
    """A zero would be no mistake that anybody sees. In what is painted there is one."""
    pencil = Pencil(SHAPE, grids()[0])
    cells, fractions, used, _ = _particles(pencil)
    field = pencil.local_block(random(SHAPE, seed=2))

    def read(offset, field):
        at = Positions(cells[RANK], offset, used[RANK])
        return jnp.sum(readout(field, at, pencil, kernel="ngp"))

    def put(offset, values):
        at = Positions(cells[RANK], offset, used[RANK])
        return jnp.sum(paint(at, pencil, values=values, kernel="ngp") ** 2)

    for function, operand in ((read, field), (put, jnp.ones(4))):
        with pytest.raises(TypeError, match=r"'ngp' have no derivative.* take 'cic'"):
            jax.grad(function)(jnp.asarray(fractions[RANK]), operand)
        slope = jax.jit(jax.grad(function, argnums=1))(jnp.asarray(fractions[RANK]), operand)
        assert np.abs(slope).max(initial=0) > 0 or used[RANK] == 0


def test_vmap_is_a_loop():
    pencil = Pencil(SHAPE, grids()[-1])
    cells, fractions, used, _ = _particles(pencil)
    offsets = jnp.asarray(np.stack([fractions[RANK], 1 - fractions[RANK]]))
    values = jnp.asarray(random((2, SIZE, 4), seed=1)[:, RANK])
    fields = jnp.asarray(pencil.local_block(random((2, *SHAPE), seed=2)))

    def put(offset, values):
        return paint(Positions(cells[RANK], offset, used[RANK]), pencil, values=values)

    def get(offset, field):
        return readout(field, Positions(cells[RANK], offset, used[RANK]), pencil, kernel="tsc")

    @jax.jit
    def both():
        results = []
        for f, x in ((put, values), (get, fields)):
            many = [
                jax.vmap(f)(offsets, x),
                jax.vmap(f, (1, None))(jnp.moveaxis(offsets, 0, 1), x[0]),
                jax.vmap(f, (None, -1))(offsets[0], jnp.moveaxis(x, 0, -1)),
            ]
            loops = [
                [f(offsets[i], x[i]) for i in range(2)],
                [f(offsets[i], x[0]) for i in range(2)],
                [f(offsets[0], x[i]) for i in range(2)],
            ]
            results.append((many, [jnp.stack(loop) for loop in loops]))
        return results

    for many, loops in both():
        for a, b in zip(many, loops, strict=True):
            np.testing.assert_array_equal(a, b)


def _refused(function, *args):
    """The text of the error that the program ends with on this rank."""
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(function)(*args))
    return str(raised.value)


def test_particles_that_are_not_here():
    grid = grids()[-1]  # slabs
    pencil = Pencil((2 * SIZE, 3, 4), grid)
    coordinates = f"on rank ({RANK}, 0) of a {SIZE} x 1 grid: particle 2"
    here = np.array([[2.0 * RANK, 0, 0]] * 4)

    def put(at):
        return paint(at, pencil)

    def get(at):
        return readout(jnp.zeros(pencil.local_shape), at, pencil, kernel="tsc")

    def assert_refused(function, at, *texts):
        if as_on_gpus(jax.default_backend()):  # where a kernel cannot raise
            assert np.isnan(jax.jit(function)(at)).all()
            return
        text = _refused(function, at)
        for part in texts:
            assert part in text

    for name, function in (("paint", put), ("readout", get)):
        for bad in (np.nan, np.inf, -np.inf, 1e300):
            at = here.copy()
            at[2, 1] = bad
            assert_refused(
                function,
                at,
                f"{name} {coordinates} has a position that is not finite, or 2^30 cells or more "
                "away",
            )
        if SIZE > 1:
            at = here.copy()
            at[2, 0] -= 0.25
            before = (2 * RANK - 1) % (2 * SIZE)
            assert_refused(
                function,
                at,
                f"{name} {coordinates} is in cell ({before}, 0, 0), but",
                f"starts at ({2 * RANK}, 0, 0) and has (2, 3, 4) cells",
            )
        for used in (-1, 5):
            at = Positions(np.zeros((4, 3), "int32"), here, np.int32(used))
            assert_refused(function, at, f"{name} of {used} particles in arrays of 4 rows")
    # And the ranks still agree on what comes next.
    assert abs(total(jax.jit(put)(here), 1.0) - 4 * SIZE) == 0


@pytest.mark.wrong_types
def test_what_is_refused():
    pencil = Pencil((4, 5, 6), grids()[0])
    at, field = np.zeros((2, 3)), np.zeros(pencil.local_shape)
    here = rf" on rank {RANK} of {SIZE}: "
    names = "kernel must be one of ngp, cic, tsc, pcs, got"
    with pytest.raises(ValueError, match="paint" + here + names):
        paint(at, pencil, kernel="pqs")
    with pytest.raises(ValueError, match="readout" + here + names):
        readout(field, at, pencil, kernel=["cic"])
    for bad in (np.zeros(3), np.zeros((2, 2)), np.zeros((1, 2, 3))):
        with pytest.raises(ValueError, match="paint" + here + r"positions must be \(rows, 3\)"):
            paint(bad, pencil)
    cell, used = np.zeros((2, 3), "int32"), np.int32(2)
    with pytest.raises(ValueError, match=r"readout.* and cells \(1, 3\)"):
        readout(field, Positions(cell[:1], at, used), pencil)
    with pytest.raises(ValueError, match=r"positions must be \(rows, 3\)"):
        paint(Positions(cell, at, np.zeros(2, "int32")), pencil)
    for bad in (at.astype("int32"), at.astype("float16"), at.astype("complex64")):
        with pytest.raises(TypeError, match=f"must be float32 or float64.*, got {bad.dtype}"):
            paint(bad, pencil)
    with pytest.raises(TypeError, match="cells int32, got float64 and int64"):
        paint(Positions(cell.astype("int64"), at, used), pencil)
    for bad in (np.zeros(3), np.zeros((2, 1, 1)), np.zeros(())):
        with pytest.raises(ValueError, match=r"paint.* values must be \(2,\) or \(2, components"):
            paint(at, pencil, values=bad)
    for bad in (field[0], field[None, None], np.zeros((9, 9, 9))):
        with pytest.raises(ValueError, match="readout" + here + "the field (has|must)"):
            readout(bad, at, pencil)
    spectrum = Pencil((4, 5, 6), grids()[0], split=(1, 2), axes=(1, 2, 0))
    for bad in (spectrum, Pencil((4, 5), grids()[0]), (4, 5, 6)):
        with pytest.raises(ValueError, match="must be a three-dimensional pencil in real space"):
            paint(at, bad)
        with pytest.raises(ValueError, match="must be a three-dimensional pencil in real space"):
            readout(field, at, bad)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_no_number_stays_where_it_is(kernel, dtype):
    """Several points of a line are computed with together, and one more than a kernel reaches."""
    mesh = Pencil((6, 6, 9), grids()[0])
    for z in range(9):
        at = (jnp.asarray(mesh.start, dtype) + jnp.asarray([0.3, 0.4, z + 0.2], dtype))[None]
        reached = paint(at, mesh, kernel=kernel) != 0
        field = jnp.where(reached, jnp.asarray(1, dtype), jnp.nan)
        assert bool(jnp.isfinite(readout(field, at, mesh, kernel=kernel)).all())
        infinite = paint(at, mesh, values=jnp.full(1, jnp.inf, dtype), kernel=kernel)
        np.testing.assert_array_equal(jnp.isfinite(infinite), ~reached)
