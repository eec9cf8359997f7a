"""gather and scatter, reduce and bcast: each rank as the root."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.helpers import DTYPES, RANK, SIZE, assert_close, assert_equal, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

SHAPES = [(), (0,), (3,), (2, 0), (2, 3)]


def test_gather_on_each_root():
    """All dtypes and shapes in one program; elsewhere the operand comes back."""
    everything = [random((SIZE, *s), d) for d, s in zip(DTYPES, 3 * SHAPES, strict=True)]

    @jax.jit
    def f(xs):
        return [[pc.gather(x, root) for x in xs] for root in range(SIZE)]

    for root, results in enumerate(f([jnp.asarray(x[RANK]) for x in everything])):
        for y, x in zip(results, everything, strict=True):
            assert_equal(y, x if RANK == root else x[RANK])


def test_scatter_from_each_root():
    everything = [random((SIZE, *s), d) for d, s in zip(DTYPES, 3 * SHAPES, strict=True)]

    @jax.jit
    def f(xs):
        return [
            [pc.scatter(x if RANK == root else jnp.zeros_like(x[0]), root) for x in xs]
            for root in range(SIZE)
        ]

    for results in f([jnp.asarray(x) for x in everything]):
        for y, x in zip(results, everything, strict=True):
            assert_equal(y, x[RANK])


def test_there_and_back():
    """scatter after gather is the identity, and so is its derivative."""
    X, x = blocks((2, 3))

    @jax.jit
    def f(x):
        for root in range(SIZE):
            x = pc.scatter(pc.gather(x, root), root)
        return x

    y, tangent = jax.jvp(f, (x,), (2 * x,))
    assert_equal(y, X[RANK])
    assert_equal(tangent, 2 * X[RANK])
    _, w = blocks((2, 3), seed=4)
    assert_close(jax.grad(lambda x: jnp.sum(w * f(x) ** 2))(x), 2 * w * x)


def test_derivatives_at_each_root():
    """The loss is on the root alone: with gather the others' gradients come from there."""
    X, x = blocks((3,))
    W = random((SIZE, 3), seed=9)
    w = jnp.asarray(W)

    def on_the_root(x, root):
        y = pc.gather(jnp.sin(x), root)
        return jnp.sum(w * y**2) if RANK == root else 0.0 * jnp.sum(y)

    def from_the_root(x, root):
        # The part that is not read depends on x too: JAX leaves constants out of derivatives.
        operand = jnp.sin(w * x) if RANK == root else 0 * x
        return jnp.sum((RANK + 1) * pc.scatter(operand, root) ** 2)

    @jax.jit
    def gradients(x):
        return [
            [jax.grad(loss)(x, root) for root in range(SIZE)]
            for loss in (on_the_root, from_the_root)
        ]

    gathered, scattered = gradients(x)
    factor = np.arange(1, SIZE + 1)[:, None]
    for root in range(SIZE):
        assert_close(gathered[root], (W * np.sin(2 * X))[RANK])
        expected = (factor * W * np.sin(2 * W * X[root])).sum(0)
        assert_close(scattered[root], expected if RANK == root else 0 * expected)


def test_batches_travel_in_one_message():
    X, x = blocks((4, 3))
    S = random((SIZE, 4, 3), seed=2)
    root = SIZE - 1

    @jax.jit
    def f(x, s):
        gathered = jax.vmap(lambda x: pc.gather(x, root), in_axes=1, out_axes=-1)(x)
        axis = 1 if RANK == root else 0
        block = jax.vmap(lambda s: pc.scatter(s, root), in_axes=axis)(s)
        return gathered, block

    s = jnp.asarray(S if RANK == root else S[0])
    gathered, block = f(x, s)
    assert_equal(gathered, X if RANK == root else X[RANK])
    assert_equal(block, S[RANK])
    text = str(jax.make_jaxpr(lambda x: jax.vmap(lambda x: pc.gather(x, root))(x))(x))
    assert text.count("gather[") == 1


def test_on_part_of_the_ranks():
    """The root is a rank of the communicator."""
    half = MPI.COMM_WORLD.Split(RANK % 2, -RANK)
    members = [r for r in range(SIZE) if r % 2 == RANK % 2][::-1]

    @jax.jit
    def f(x):
        gathered = pc.gather(x, half.size - 1, comm=half)
        return gathered, pc.scatter(jnp.arange(half.size) if half.rank == 0 else 0, 0, comm=half)

    gathered, place = f(RANK)
    assert gathered.tolist() == (members if RANK == members[-1] else RANK)
    assert int(place) == half.rank
    half.Free()


def test_what_scatter_refuses_on_the_root_only():
    where = f"scatter on rank {RANK} of {SIZE}"
    if RANK == 0:
        with pytest.raises(ValueError, match=rf"{where}: .*input must have shape \(nproc, \.\.\."):
            pc.scatter(jnp.ones((SIZE + 1, 2)), 0)
        with pytest.raises(ValueError, match=rf"reshape it to \({SIZE}, "):
            pc.scatter(1.0, 0)
    # Nothing was sent: all can go on.
    y = pc.scatter(jnp.ones((SIZE, 2)) if RANK == 0 else jnp.ones(2), 0)
    assert y.shape == (2,)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_roots_that_are_refused(name):
    operation = getattr(pc, name)
    with pytest.raises(ValueError, match=f"{name} on rank {RANK} of {SIZE}: root is {SIZE}"):
        operation(1.0, SIZE)
    with pytest.raises(ValueError, match="root is -1, but the ranks are 0 to"):
        operation(1.0, -1)
