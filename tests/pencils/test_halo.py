"""Halos against np.take on the gathered array, and the adjoint of each against the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfftjax import Pencil, halo_exchange, halo_reduce
from tests.distributed import grids, total
from tests.helpers import CONTROL, RANK, SIZE, drawn, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.messages]


def _padded(x, pencil, widths, periodic):
    """What halo_exchange is to return, by indexing the whole array."""
    lead = x.ndim - len(pencil.axes)
    whole = [slice(None)] * x.ndim
    for dimension, axis in enumerate(pencil.split):
        start, count = pencil.range_of(axis)
        before, after = widths[dimension]
        n = pencil.global_shape[axis]
        index = np.arange(start - before, start + count + after)
        inside = (index >= 0) & (index < n) | periodic[dimension]
        x = np.take(x, index % n, axis=lead + axis)
        mask = np.ones(x.ndim, int)
        mask[lead + axis] = -1
        x = x * inside.reshape(mask)
    for axis in range(len(pencil.axes)):
        if axis not in pencil.split:
            start, count = pencil.range_of(axis)
            whole[lead + axis] = slice(start, start + count)
    return x[tuple(whole)].transpose(*range(lead), *(lead + axis for axis in pencil.axes))


@drawn(3)
@given(data=st.data())
def test_any_halo(data):
    """Uneven blocks, empty ones, widths beyond a neighbour's block and beyond the axis."""
    cases = [_case(data) for _ in range(12)]

    @jax.jit
    def padded_and_reduced(blocks, others):
        return [
            (
                halo_exchange(x, pencil, widths, periodic=periodic),
                halo_reduce(v, pencil, widths, periodic=periodic),
            )
            for x, v, (_, pencil, widths, periodic) in zip(blocks, others, cases, strict=True)
        ]

    blocks = [pencil.local_block(x) for x, pencil, _, _ in cases]
    expected = [_padded(*case) for case in cases]
    rng = np.random.default_rng(RANK)
    others = [rng.standard_normal(e.shape) + 1j * rng.standard_normal(e.shape) for e in expected]
    results = padded_and_reduced(blocks, others)
    for block, v, whole, (padded, reduced) in zip(blocks, others, expected, results, strict=True):
        np.testing.assert_array_equal(padded, whole)
        assert reduced.shape == block.shape
        size = total(np.abs(padded), np.abs(v)).real
        assert abs(total(padded, v) - total(block, reduced)) <= 1e-13 * max(size, 1e-300)


def _case(data):
    """(whole array, pencil, widths, periodic)"""
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * 3))
    grid = data.draw(st.sampled_from(grids()))
    split = data.draw(st.permutations(range(3)))[:2]
    axes = data.draw(st.permutations(range(3)))
    pencil = Pencil(shape, grid, tuple(split), tuple(axes))
    widths = data.draw(st.tuples(*[st.tuples(st.integers(0, 5), st.integers(0, 5))] * 2))
    periodic = data.draw(st.tuples(st.booleans(), st.booleans()))
    lead = tuple(data.draw(st.lists(st.integers(1, 2), max_size=1)))
    return random((*lead, *shape), "complex128", 1), pencil, widths, periodic


def test_derivatives_are_each_other():
    for grid in grids():
        pencil = Pencil((5, 7, 3), grid)
        x = jnp.asarray(pencil.local_block(random((5, 7, 3), "complex128")))
        for periodic in (True, (False, True)):
            pad = jax.jit(lambda x, p=pencil, r=periodic: halo_exchange(x, p, 2, periodic=r))
            add = jax.jit(lambda x, p=pencil, r=periodic: halo_reduce(x, p, 2, periodic=r))
            padded, pull = jax.vjp(pad, x)
            np.testing.assert_array_equal(pull(padded)[0], add(padded))
            reduced, pull = jax.vjp(add, padded)
            np.testing.assert_array_equal(pull(reduced)[0], pad(reduced))
            np.testing.assert_array_equal(jax.jvp(pad, (x,), (3 * x,))[1], 3 * padded)
            np.testing.assert_array_equal(
                jax.vmap(pad, 1, 1)(jnp.stack([x, -x], 1)), jnp.stack([padded, -padded], 1)
            )
            np.testing.assert_array_equal(
                jax.vmap(add, 3)(jnp.stack([padded, -padded], 3)), jnp.stack([reduced, -reduced])
            )


def test_mass_painted_across_a_boundary_has_its_gradient():
    """The gradient that other codes lose: of mass deposited in a neighbour's cells."""
    n = 8
    weights = random((n, n, n), seed=3)
    for grid in grids():
        pencil = Pencil((n, n, n), grid)
        (first, rows), (second, columns) = pencil.range_of(0), pencil.range_of(1)

        # One particle at the last corner of each block, and so partly in up to three others'.
        def deposited(offset, p=pencil, rows=rows, columns=columns):
            mesh = jnp.zeros(np.add(p.local_shape, (2, 2, 0)))
            a, b, c = offset
            for i, wi in ((0, 1 - a), (1, a)):
                for j, wj in ((0, 1 - b), (1, b)):
                    for k, wk in ((2, 1 - c), (3, c)):
                        mesh = mesh.at[rows + i, columns + j, k].add(wi * wj * wk)
            return halo_reduce(mesh, p, 1)

        def loss(offset, p=pencil, paint=deposited):
            return jnp.sum(jnp.asarray(p.local_block(weights)) * paint(offset))

        offset = jnp.asarray([0.3, 0.6, 0.2])
        mass = CONTROL.allreduce(float(jnp.sum(deposited(offset))))
        assert abs(mass - SIZE) < 1e-12
        # By hand: the trilinear interpolation of the weights at the particle.
        i, j = (first + rows - 1) % n, (second + columns - 1) % n
        corner = weights[np.ix_([i, (i + 1) % n], [j, (j + 1) % n], [2, 3])]

        def interpolated(offset, corner=corner):
            a, b, c = (jnp.stack([1 - t, t]) for t in offset)
            return jnp.einsum("ijk,i,j,k->", corner, a, b, c)

        gradient = jax.jit(jax.grad(loss))(offset)
        np.testing.assert_allclose(gradient, jax.grad(interpolated)(offset), rtol=1e-12)


def test_sums_of_other_dtypes():
    dtypes = ("float64", "int16", "bfloat16", "float16", "float32", "complex64")
    pencils = [Pencil((4, 5, 3), grid) for grid in grids()]

    @jax.jit
    def counts():
        """How often each cell appears, in each dtype."""
        return [
            [
                halo_reduce(halo_exchange(ones, pencil, (1, 2)), pencil, (1, 2))
                for ones in (jnp.ones(pencil.local_shape, dtype) for dtype in dtypes)
            ]
            for pencil in pencils
        ]

    for expected, *others in counts():
        for dtype, count in zip(dtypes[1:], others, strict=True):
            assert count.dtype == dtype
            np.testing.assert_array_equal(np.asarray(count).astype(complex), expected)
    # Along the first axis, 4 cells and 1 ghost on each side of each block.
    appearances = CONTROL.allreduce(float(jnp.sum(expected)))
    rows, columns = pencils[-1].grid.dims
    assert appearances == (4 + 2 * rows) * (5 + 4 * columns) * 3


@pytest.mark.wrong_types
def test_what_is_refused():
    grid = grids()[0]
    pencil = Pencil((4, 5, 6), grid)
    x = jnp.zeros(pencil.local_shape)
    here = rf" on rank {RANK} of {SIZE}: "
    with pytest.raises(ValueError, match="halo_exchange" + here + "the block has shape"):
        halo_exchange(jnp.zeros((9, 9, 9)), pencil, 1)
    with pytest.raises(ValueError, match="halo_reduce" + here + r".*, with its ghosts \("):
        halo_reduce(x, pencil, 1)
    with pytest.raises(ValueError, match="halo_exchange" + here + "a width cannot be negative"):
        halo_exchange(x, pencil, -1)
    with pytest.raises(TypeError, match="halo_exchange" + here + "a width is a static integer"):
        halo_exchange(x, pencil, (1, (1.5, 2)))
    with pytest.raises(TypeError, match="halo_exchange" + here + "a width is a static integer"):
        halo_exchange(x, pencil, 1.5)
    with pytest.raises(ValueError, match="halo_exchange" + here + "width and periodic"):
        halo_exchange(x, pencil, (1, 2, 3))
    with pytest.raises(TypeError, match="halo_reduce" + here + "cannot add bool"):
        halo_reduce(x.astype(bool), pencil, 0)
    for bad in ("no", 2, np.array([True, False])):
        with pytest.raises(TypeError, match="halo_exchange" + here + "periodic is True or False"):
            halo_exchange(x, pencil, 1, periodic=bad)
    for function in (halo_exchange, halo_reduce):
        with pytest.raises(TypeError, match=f"{function.__name__}: pencil must be a Pencil, as"):
            function(x, None, 1)
