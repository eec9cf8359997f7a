"""alltoall between nodes, which are made of this one: small blocks travel together."""

import jax
import numpy as np
import pytest

from pfftjax import collectives as pc
from pfftjax._runtime.options import options
from tests.distributed import total
from tests.helpers import RANK, SIZE, random
from tests.nodes import PLACEMENTS, on_nodes

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.ranks(3, 4),
    pytest.mark.skipif(SIZE == 1, reason="one rank has nobody to exchange with"),
    pytest.mark.skipif(not options.shared_memory, reason="no rank shares memory"),
]

# Blocks without bytes, and of few and of many, which go by MPI; and those between.
SHAPES = {"int8": (0,), "bool": (3,), "float32": (5, 7), "complex128": (16,), "float64": (9000,)}


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_alltoall(placement):
    """Block j of rank i is block i of rank j, also in a loop, where it goes in place; adjoint."""
    wholes = {dtype: random((SIZE, SIZE, *shape), dtype, 1) for dtype, shape in SHAPES.items()}

    with on_nodes(placement) as comm:

        @jax.jit
        def everything(blocks):
            once = {dtype: pc.alltoall(x, comm=comm) for dtype, x in blocks.items()}
            again = jax.lax.fori_loop(0, 3, lambda _, xs: pc.alltoall(xs, comm=comm), blocks)
            x = blocks["complex128"]
            return once, again, jax.vjp(lambda x: pc.alltoall(x, comm=comm), x)[1](x)[0]

        once, again, pulled = everything({dtype: x[RANK] for dtype, x in wholes.items()})
    for dtype, whole in wholes.items():
        np.testing.assert_array_equal(once[dtype], whole[:, RANK])
        np.testing.assert_array_equal(again[dtype], whole[:, RANK])
    x = wholes["complex128"][RANK]
    assert total(once["complex128"], x) == pytest.approx(total(x, pulled))
