"""Transforms and redistributions between nodes, which are made of this one."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax import ExchangeMethod, Pencil, PencilFFT, PencilTransform, ProcessGrid, spectral
from pfftjax import collectives as pc
from pfftjax._runtime.options import options
from tests.distributed import TOLERANCE, Model, assert_block, grids, total
from tests.helpers import SIZE, random
from tests.nodes import PLACEMENTS, on_nodes

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.ranks(3, 4),
    pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to exchange with"),
    pytest.mark.skipif(not options.shared_memory, reason="no rank shares memory"),
]

SIDES = (1.0, 2.0, 3.0)
METHODS = (ExchangeMethod.MESSAGES, ExchangeMethod.HIERARCHICAL, ExchangeMethod.AUTOMATIC)


def by_methods(plan):
    return [dataclasses.replace(plan, method=method) for method in METHODS]


def assert_same_bits(results):
    """Every method has those of the first."""
    first, *others = map(jax.tree.leaves, results)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_transforms(placement):
    """Values, and the transposes of both directions, of complex and real arrays and of batches."""
    cases = [
        ((12, 10, 14), {"real": True}, "float64", ()),
        ((9, 7, 6), {"layout": "natural", "norm": "ortho"}, "complex64", (2,)),
        ((2, 3, 5), {}, "complex128", ()),  # blocks without elements
        ((13, 1, 8), {"real": True}, "float32", (3,)),
    ]
    with on_nodes(placement) as comm:
        plans = [
            (PencilFFT(shape, grid, **how), dtype, batch)
            for (shape, how, dtype, batch), grid in itertools.product(cases, grids(comm))
        ]

        @jax.jit
        def everything(operands):
            results = []
            for (plan, *_), (x, y) in zip(plans, operands, strict=True):
                of_methods = []
                for each in by_methods(plan):
                    forward, pull = jax.vjp(each.forward, x)
                    inverse, pull_inverse = jax.vjp(each.inverse, y)
                    of_methods.append((forward, inverse, pull(y)[0], pull_inverse(x)[0]))
                results.append(of_methods)
            return results

        operands, wholes = [], []
        for plan, dtype, batch in plans:
            X = random((*batch, *plan.shape), dtype, 1)
            Y = random((*batch, *plan.spectral_shape), np.result_type(dtype, np.complex64), 2)
            wholes.append((X, Y))
            operands.append((plan.input.local_block(X), plan.output.local_block(Y)))
        # Once more with other data: what is left for others must not be written over too early.
        again = [(2 * x, -y) for x, y in operands]
        first, second = everything(operands), everything(again)
        for (plan, dtype, _), (X, Y), results, scaled in zip(
            plans, wholes, first, second, strict=True
        ):
            assert_same_bits(results)
            assert_same_bits(scaled)
            model, tolerance = Model(plan), TOLERANCE[dtype]
            forward, inverse, transposed, inverse_transposed = results[1]
            assert_block(forward, model.forward(X), plan.output, tolerance)
            assert_block(scaled[1][0], 2 * model.forward(X), plan.output, tolerance)
            assert_block(inverse, model.inverse(Y), plan.input, tolerance)
            assert_block(transposed, model.forward_transposed(Y), plan.input, tolerance)
            assert_block(inverse_transposed, model.inverse_transposed(X), plan.output, tolerance)


@pytest.mark.parametrize("placement", PLACEMENTS[-1:], ids=str)
def test_what_has_several_arrays_or_is_not_fused(placement):
    """Gradients, divergences, their derivatives, cosines, transpositions; and < y, A x >."""
    shape = (6, 8, 5)
    with on_nodes(placement) as comm:
        for grid in grids(comm):
            plan = PencilFFT(shape, grid, real=True)
            walls = PencilTransform(shape, grid, ("dct2", "dst2", "fft"))
            z, y = Pencil(shape, grid), Pencil(shape, grid, (0, 2), (0, 2, 1))
            x = plan.input.local_block(random(shape, "float64", 3))
            c = walls.input.local_block(random(shape, "complex128", 4))
            moved = z.local_block(random((2, *shape), "int16", 5))

            @jax.jit
            def everything(x, c, moved, plan=plan, walls=walls, z=z, y=y):
                results = []
                for each, other in zip(by_methods(plan), by_methods(walls), strict=True):
                    how = {"plan": each, "box_size": SIDES}
                    of_scalar = functools.partial(spectral.gradient, **how)
                    of_vector = functools.partial(spectral.divergence, **how)
                    gradient, pull = jax.vjp(of_scalar, x)
                    divergence, pull_divergence = jax.vjp(of_vector, gradient)
                    there = pfftjax.transpose(moved, z, y, method=each.method)
                    results.append(
                        (
                            *(gradient, divergence, pull(gradient), pull_divergence(x)),
                            other.inverse(other.forward(c)),
                            *(there, pfftjax.transpose(there, y, z, method=each.method)),
                        )
                    )
                return results

            results = everything(x, c, moved)
            assert_same_bits(results)
            gradient, _, (pulled,), *_, back = results[1]
            np.testing.assert_array_equal(back, moved)
            ones = sum(total(u, u) for u in gradient)
            assert abs(ones - total(x, pulled)) <= 1e-12 * abs(ones)


@pytest.mark.parametrize("placement", PLACEMENTS[:1], ids=str)
def test_arrays_that_grow_take_a_larger_window(placement):
    with on_nodes(placement) as comm:
        grid = grids(comm)[-1]
        for n in (4, 70, 8):
            plan = PencilFFT((n, 6, n), grid)
            x = jnp.asarray(plan.input.local_block(random((n, 6, n), "complex64", n)))
            assert_same_bits([each.forward(x) for each in by_methods(plan)])


def test_fused_needs_one_node():
    with on_nodes(tuple(range(SIZE))) as comm:
        plan = PencilFFT((4, 4, 4), ProcessGrid((SIZE, 1), comm), method=ExchangeMethod.FUSED)
        with pytest.raises(Exception, match="these do not share any"):
            jax.block_until_ready(plan.forward(jnp.ones(plan.input.local_shape)))
        pc.recover()
