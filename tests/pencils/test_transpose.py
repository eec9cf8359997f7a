"""Redistribution: to the last bit, for every pair of pencils that differ in one split."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfftjax import Pencil, transpose
from tests.distributed import grids, methods, total
from tests.helpers import DTYPES, RANK, SIZE, drawn, random

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300), pytest.mark.messages]


def _check(cases):
    """(array, source, target), by every method, in one program: compiled before ranks wait for
    each other.
    """
    blocks = [source.local_block(x) for x, source, _ in cases]

    @jax.jit
    def moved(blocks):
        return [
            [transpose(block, source, target, method=method) for method in methods()]
            for block, (_, source, target) in zip(blocks, cases, strict=True)
        ]

    for ys, (x, _, target) in zip(moved(blocks), cases, strict=True):
        for y in ys:
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y, target.local_block(x))


@pytest.mark.parametrize("shape", [(4, 6, 8), (5, 3, 7), (1, 9, 2), (11, 1, 1)], ids=str)
def test_the_pencils_of_the_transform(shape):
    x = random((2, *shape), "complex128")
    cases = []
    for grid in grids():
        z = Pencil(shape, grid)
        y = Pencil(shape, grid, (0, 2), (0, 2, 1))
        k = Pencil(shape, grid, (1, 2), (1, 2, 0))
        pairs = [(z, y), (y, k), (k, y), (y, z), (z, z)] + [(z, k)] * (grid.dims[1] == 1)
        cases += [(x, source, target) for source, target in pairs]
    _check(cases)


def test_dtypes():
    shape = (3, 4, 5)
    _check(
        [
            (random(shape, dtype), Pencil(shape, grid), target)
            for dtype in DTYPES
            for grid in grids()
            for target in (
                Pencil(shape, grid, (2, 1), (2, 0, 1)),
                Pencil(shape, grid, (0, 2)),
            )
        ]
    )


@drawn(3)
@given(data=st.data())
def test_any_pair_of_pencils(data):
    """Any number of axes, memory orders and batch dimensions."""
    _check([_pair(data) for _ in range(12)])


def _pair(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=3, max_size=4)))
    lead = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    grid = data.draw(st.sampled_from(grids()))
    split = data.draw(st.permutations(range(len(shape))))[:2]
    dimension = data.draw(st.integers(0, 1))
    free = [axis for axis in range(len(shape)) if axis not in split]
    other = list(split)
    other[dimension] = data.draw(st.sampled_from([*free, split[dimension]]))
    source, target = (
        Pencil(shape, grid, tuple(s), tuple(data.draw(st.permutations(range(len(shape))))))
        for s in (split, other)
    )
    dtype = data.draw(st.sampled_from(["int8", "float32", "complex128"]))
    return random((*lead, *shape), dtype), source, target


def test_adjoint_and_transformations():
    shape = (5, 6, 7)
    x, v = (random((3, *shape), "complex128", seed) for seed in (1, 2))
    for grid in grids():
        # An order that is not its own inverse.
        z, y = Pencil(shape, grid), Pencil(shape, grid, (0, 2), (2, 0, 1))
        a, b = jnp.asarray(z.local_block(x)), jnp.asarray(y.local_block(v))

        def there(a, z=z, y=y):
            return transpose(a, z, y)

        moved, pull = jax.vjp(there, a)
        (back,) = pull(b)
        # A permutation across ranks: its transpose is the way back, to the last bit.
        np.testing.assert_array_equal(back, z.local_block(v))
        assert abs(total(moved, b) - total(a, back)) <= 1e-12 * abs(total(a, jnp.conj(a)))
        np.testing.assert_array_equal(jax.jvp(there, (a,), (2 * a,))[1], 2 * moved)
        for axis, out in itertools.product((0, 2, 3), (0, 1)):
            batched = jax.jit(jax.vmap(there, axis, out))(jnp.moveaxis(a, 0, axis))
            np.testing.assert_array_equal(jnp.moveaxis(batched, out, 0), moved)
        # One message for a batch of batches.
        jaxpr = jax.make_jaxpr(jax.vmap(there))(jnp.stack([a, a]))
        assert str(jaxpr).count("pencil_transpose[") == (grid.dims[1] > 1)

        def roundtrip(c, _, z=z, y=y):
            return transpose(jnp.sin(transpose(c, z, y)), y, z), None

        step = jax.checkpoint(roundtrip)
        scanned = jax.jit(lambda a, step=step: jax.lax.scan(step, a, None, length=2)[0])
        expected = np.sin(np.sin(x))
        np.testing.assert_allclose(scanned(a), z.local_block(expected), rtol=1e-13)
        real = jax.grad(lambda a, f=scanned: jnp.sum(jnp.real(f(a))))(jnp.real(a))
        expected = np.cos(np.sin(x.real)) * np.cos(x.real)
        np.testing.assert_allclose(real, z.local_block(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.wrong_types
def test_what_is_refused():
    here = rf"transpose on rank {RANK} of {SIZE}: "
    for grid in grids():
        z, k = Pencil((4, 5, 6), grid), Pencil((4, 5, 6), grid, (1, 2))
        x = jnp.zeros(z.local_shape)
        if 1 not in grid.dims:
            with pytest.raises(
                ValueError, match=here + r".*one split axis only; got \(0, 1\) and"
            ):
                transpose(x, z, k)
        with pytest.raises(ValueError, match=here + r"the block has shape \(9, 9, 9\), but this"):
            transpose(jnp.zeros((9, 9, 9)), z, Pencil((4, 5, 6), grid, (0, 2)))
        with pytest.raises(ValueError, match=here + r"the block has shape \(6,\)"):
            transpose(jnp.zeros(6), z, z)
        with pytest.raises(ValueError, match=here + r"x has 13 dimensions, and at most 12"):
            transpose(jnp.zeros((1,) * 10 + z.local_shape), z, z)
        with pytest.raises(ValueError, match=here + r"the pencils must have the same grid"):
            transpose(x, z, Pencil((4, 5, 7), grid))
        with pytest.raises(TypeError, match=r"transpose: pencil must be a Pencil, .* got tuple"):
            transpose(x, z, (4, 5, 6))
