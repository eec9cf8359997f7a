"""Four components that lie together at each point of a mesh, beside one after the other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import Pencil
from pfftjax.pm import _fours, _painting
from pfftjax.pm._assignment import Assignment
from pfftjax.pm._positions import Positions
from tests.distributed import grids
from tests.helpers import RANK, assert_close, random
from tests.pm.universe import at_home

pytestmark = pytest.mark.mpi

# Shapes on which a kernel meets itself, or a rank has no cells; and (points, shift).
SHAPES = (5, 4, 3), (1, 7, 2), (6, 1, 9)
KERNELS = (2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)


def _cases(kernels, dtypes):
    """(the operands of both primitives, their parameters)"""
    for shape in SHAPES:
        pencil = Pencil(shape, grids()[-1])
        cells, fractions, used = at_home(pencil, 9, seed=3, smooth=True)
        away = np.random.default_rng(4).integers(-50, 50, cells.shape)
        for (points, shift), dtype in ((k, d) for k in kernels for d in dtypes):
            assignment = Assignment(points, shift=shift)
            offset = (cells + fractions - away)[RANK].astype(dtype)
            offset[used[RANK] :] = np.nan
            at = Positions(
                jnp.asarray(away[RANK], jnp.int32), jnp.asarray(offset), jnp.int32(used[RANK])
            )
            values = jnp.asarray(random((9, 4), dtype, 6 + RANK))
            field = jnp.asarray(random((*assignment.padded(pencil), 4), dtype, 5 + RANK))
            params = {"orders": _painting.VALUE, "assignment": assignment, "pencil": pencil}
            yield at, values, field, params


@pytest.mark.ranks(2)
def test_four_together_are_four_in_turn():
    """Painting has the same bits; rows that hold no particle are zero."""
    cases = list(_cases(KERNELS, ("float32", "float64")))

    @jax.jit
    def results(operands):
        found = []
        for (at, values, field), (*_, params) in zip(operands, cases, strict=True):
            paint, readout = (
                functools.partial(p.bind, *at, **params)
                for p in (_fours.paint_fours_p, _fours.readout_fours_p)
            )
            in_turn = [
                functools.partial(f, *at, **params) for f in (_fours._paint, _fours._readout)
            ]
            found.append((paint(values), in_turn[0](values)))
            found.append((readout(field, values), in_turn[1](field, values)))
        return found

    found = iter(results([case[:3] for case in cases]))
    for at, values, *_ in cases:
        for ours, theirs in next(found), next(found):
            tolerance = 1e-5 if values.dtype == "float32" else 1e-13
            for a, b in zip(ours, theirs, strict=True):
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                assert_close(a, b, tolerance)
            if len(ours) == 1:
                np.testing.assert_array_equal(*ours, *theirs)
            else:
                assert not any(np.asarray(x)[int(at.used) :].any() for x in ours)


@pytest.mark.ranks(2)
def test_derivatives():
    """Forward, reverse, and along a direction of what is found in reverse; under vmap as well."""
    cases = list(_cases(((2, 0), (4, 1)), ("float64",)))[:4]

    def loss(offset, values, field, *, functions, at, params):
        paint, readout = functions
        keep = at.used > jnp.arange(9)
        where = at.cell, jnp.where(keep[:, None], offset, 0), at.used
        (painted,) = paint(*where, values, **params)
        read, across = readout(*where, field + painted**2, values, **params)
        return jnp.vdot(read, values) + jnp.sum(jnp.sin(across))

    def derivatives(operands, case, functions):
        function = functools.partial(loss, functions=functions, at=case[0], params=case[3])
        tangents = [jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in operands]
        along = jax.jvp(function, operands, tangents)[1]
        to, again = jax.jvp(jax.grad(function, argnums=(0, 1, 2)), operands, tangents)
        batch = [jnp.stack([x, 2 * x]) for x in operands[1:]]
        each = jax.vmap(functools.partial(function, operands[0]))(*batch)
        return along, to, again, each

    ours = _fours.paint_fours_p.bind, _fours.readout_fours_p.bind
    theirs = _fours._paint, _fours._readout
    for case in cases:
        at, values, field, _ = case
        operands = [jnp.nan_to_num(at.offset), values, field]
        both = [
            jax.jit(functools.partial(derivatives, case=case, functions=functions))(operands)
            for functions in (ours, theirs)
        ]
        for a, b in zip(*map(jax.tree.leaves, both), strict=True):
            assert_close(a, b, 1e-11)


@pytest.mark.ranks(1)
def test_a_kernel_without_slopes_is_refused():
    """Its readout has no derivative in positions."""
    at, values, *_ = next(_cases(((2, 0),), ("float64",)))
    pencil = Pencil(SHAPES[0], grids()[-1])
    field = jnp.zeros((*pencil.local_shape, 4))
    with pytest.raises(TypeError, match="'ngp' have no derivative in positions"):
        _fours.readout_fours(field, values, at, pencil, Assignment(1))
