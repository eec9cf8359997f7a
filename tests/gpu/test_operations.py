"""Every operation on arrays of GPUs: the ordinary tests of values, adjoints and derivatives, which
take whatever device JAX takes, and what is particular there."""

import jax
import jax.numpy as jnp
import pytest
from mpi4py import MPI

from pfftjax import ProcessGrid, halo_exchange
from pfftjax import collectives as pc
from pfftjax.pencils import Pencil
from tests.collectives.test_adjoint import (
    test_adjoint_identity as test_adjoint_identity,
)
from tests.collectives.test_adjoint import (
    test_hessian_of_a_squared_total as test_hessian_of_a_squared_total,
)
from tests.collectives.test_adjoint import test_loss_on_one_rank_only as test_loss_on_one_rank_only
from tests.collectives.test_alltoallv import (
    test_batches_with_counts_of_their_own as test_batches_with_counts_of_their_own,
)
from tests.collectives.test_reductions import (
    test_extremes_and_their_places as test_extremes_and_their_places,
)
from tests.collectives.test_rooted import test_gather_on_each_root as test_gather_on_each_root
from tests.collectives.test_rooted import (
    test_scatter_from_each_root as test_scatter_from_each_root,
)
from tests.collectives.test_sendrecv import (
    test_tags_tell_messages_apart as test_tags_tell_messages_apart,
)
from tests.collectives.test_values import (
    test_data_arrive_to_the_last_bit as test_data_arrive_to_the_last_bit,
)
from tests.collectives.test_values import test_reductions as test_reductions
from tests.collectives.test_values import test_shapes as test_shapes
from tests.gpu.helpers import assert_on_device, here_and_on_cpus
from tests.helpers import CASES, RANK, SIZE, assert_close, assert_equal, blocks
from tests.pencils.test_halo import test_any_halo as test_any_halo
from tests.pencils.test_transpose import (
    test_adjoint_and_transformations as test_adjoint_and_transformations,
)
from tests.pencils.test_transpose import test_dtypes as test_dtypes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("arrays"),
]


def test_results_are_on_the_device():
    """And an alltoall in a loop, whose operand is nobody's, does not take it for its result."""
    _, mine = blocks((SIZE, 3))
    pencil = Pencil((2 * SIZE, 5, 4), ProcessGrid((None, 1)))

    @jax.jit
    def everything(x):
        looped = jax.lax.fori_loop(0, 2, lambda _, x: pc.alltoall(x), x)
        return (
            looped,
            pc.allgather(x),
            halo_exchange(pencil.local_block(jnp.ones((2 * SIZE, 5, 4))), pencil, 1),
        )

    results = everything(mine)
    assert_on_device(results)
    assert_equal(results[0], mine)


def test_as_on_cpus():
    """Every operation with its adjoint, in one program on each."""
    operands = [blocks(case.shape)[1] for case in CASES]

    def everything(xs):
        results = []
        for case, x in zip(CASES, xs, strict=True):
            y, pull = jax.vjp(case.apply, x)
            results.append((y, pull(y)))
        return results

    for here, there in zip(*here_and_on_cpus(everything, operands), strict=True):
        assert_close(here, there)


@pytest.mark.parametrize("bytes_", [1 << 20, (1 << 24) + 24])
def test_large_exchanges(bytes_):
    """More than fits into a slot of staging, and not a multiple of it."""
    rows = bytes_ // 8
    x = jnp.arange(SIZE * rows, dtype="float64").reshape(SIZE, rows) + RANK * 1e12
    y = pc.alltoall(x)
    for rank in range(SIZE):
        assert bool(jnp.all(y[rank] == jnp.arange(RANK * rows, (RANK + 1) * rows) + rank * 1e12))
    total = pc.allreduce(x, MPI.SUM)
    assert_close(total[:, :5], (x[:, :5] - RANK * 1e12) * SIZE + 1e12 * SIZE * (SIZE - 1) / 2)


def test_long_programs():
    """Many operations one after the other, without a wait of the host's: what is sent is what was
    computed before, and what is computed after is from what has come."""

    @jax.jit
    def program(x):
        def step(x, _):
            y = pc.alltoall(jnp.sin(x) + 1)
            return jnp.cos(pc.allreduce(y) / SIZE), y.sum()

        return jax.lax.scan(step, x, None, length=50)

    here, there = here_and_on_cpus(program, blocks((SIZE, 1000))[1])
    assert_close(here, there, 1e-10)
