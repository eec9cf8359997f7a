"""Reductions: every one of MPI's in every operation and dtype, and those of users."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

from pfftjax import collectives as pc
from tests.collectives.reference import PAIRWISE, defined, drawn, identity, reduced
from tests.helpers import CONTROL, DTYPES, RANK, SIZE, assert_close, assert_equal, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3), pytest.mark.messages]

OPERATIONS = ("allreduce", "reduce", "scan", "exscan", "reduce_scatter")
ROOT = SIZE // 2


def _all(x, op):
    """The five operations on x of shape (SIZE, n)."""
    return (
        pc.allreduce(x, op),
        pc.reduce(x, op, ROOT),
        pc.scan(x, op),
        pc.exscan(x, op),
        pc.reduce_scatter(x, op),
    )


def _expected(X, reduce, neutral):
    """The same of all ranks' operands, X[rank], by `reduce` of a list."""
    X = list(X)
    return (
        reduce(X),
        reduce(X) if RANK == ROOT else X[RANK],
        reduce(X[: RANK + 1]),
        reduce(X[:RANK]) if RANK else neutral,
        reduce(X)[RANK],
    )


def _whole_numbers(dtype):
    """Small ones, (of all ranks, of this rank): every result is exact."""
    X = drawn(np.random.default_rng(11), (SIZE, SIZE, 9), dtype)
    return X, jnp.asarray(X[RANK])


@pytest.mark.parametrize("name", PAIRWISE)
def test_all_operations_and_dtypes(name):
    """In one program, to the last bit; on rank 0 exscan gives what changes nothing."""
    dtypes = [dtype for dtype in DTYPES if defined(name, dtype)]
    everything, mine = zip(*map(_whole_numbers, dtypes), strict=True)
    results = jax.jit(lambda xs: [_all(x, getattr(MPI, name)) for x in xs])(mine)
    if name.startswith("L"):  # what these give where nothing is combined are truth values too
        everything = [(X != 0).astype(X.dtype) for X in everything]
    for X, ours, x in zip(everything, results, mine, strict=True):
        expected = list(_expected(X, functools.partial(reduced, name), identity(name, X[0])))
        if RANK != ROOT:
            expected[1] = np.asarray(x)  # reduce leaves it alone
        for operation, y, e in zip(OPERATIONS, ours, expected, strict=True):
            assert y.dtype == X.dtype, operation
            np.testing.assert_array_equal(np.asarray(y), e, err_msg=f"{operation} {X.dtype}")


def test_rounding_is_that_of_one_addition_after_the_other():
    """Numbers that are not whole, where two ranks leave no order to choose."""
    X, x = blocks((SIZE, 40), "float32")
    for name, y in zip(OPERATIONS, jax.jit(lambda x: _all(x, MPI.SUM))(x), strict=True):
        e = _expected(X, lambda xs: np.sum(xs, 0, dtype=np.float32), np.zeros_like(X[0]))
        assert_close(y, e[OPERATIONS.index(name)], 0.0 if SIZE <= 2 else 1e-6)


@pytest.mark.parametrize("name", ["MIN", "MAX"])
def test_nan_wins(name):
    """In scans from the rank on that has it."""
    where = SIZE - 1

    @jax.jit
    def f(xs):
        return [_all(x, getattr(MPI, name)) for x in xs]

    dtypes = ("float16", "bfloat16", "float32", "float64")
    value = jnp.nan if RANK == where else float(RANK)
    for results in f([jnp.full((SIZE, 3), value, dtype) for dtype in dtypes]):
        whole, to_root, scanned, before, part = (np.asarray(y, np.float64) for y in results)
        assert np.isnan(whole).all()
        assert np.isnan(part).all()
        assert np.isnan(to_root).all() == (RANK in (ROOT, where))
        assert np.isnan(scanned).all() == (RANK == where)
        assert not np.isnan(before).any()


# ---- Extremes with their places -----------------------------------------------------------


@pytest.mark.parametrize("op", [MPI.MAXLOC, MPI.MINLOC], ids=["MAXLOC", "MINLOC"])
def test_extremes_and_their_places(op):
    """Values with many ties: the smallest index among those that attain the extreme."""
    X = np.random.default_rng(3).integers(0, 3, (SIZE, 40))
    J = np.random.default_rng(4).integers(-50, 50, (SIZE, 40))
    best = X.max(0) if op == MPI.MAXLOC else X.min(0)
    place = np.where(best == X, J, 1000).min(0)

    @jax.jit
    def f(pairs):
        return [pc.allreduce(pair, op) for pair in pairs]

    dtypes = [("float64", "int64"), ("int8", "int32"), ("bfloat16", "int8")]
    mine = [(jnp.asarray(X[RANK], a), jnp.asarray(J[RANK], b)) for a, b in dtypes]
    for (values, places), (a, b) in zip(f(mine), dtypes, strict=True):
        assert_equal(values, best.astype(jnp.dtype(a)))
        assert_equal(places, place.astype(b))
    for x64, dtype in ((True, "uint64"), (False, "uint32"), (False, "int16")):
        with jax.enable_x64(x64):
            pair = jnp.asarray(X[RANK], "float32"), jnp.asarray(J[RANK] + 50, dtype)
            assert_equal(pc.allreduce(pair, op)[1], (place + 50).astype(dtype))
    # Python numbers, and the place in an order of its own.
    value, rank = pc.allreduce((abs(RANK - 1), RANK), MPI.MINLOC)
    assert (int(value), int(rank)) == ((0, 1) if SIZE > 1 else (1, 0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_zeros_of_both_signs_and_several_nans(dtype):
    """All ranks have the same bits, whichever rank has what: -0 is less than 0."""
    quiet = np.array([np.nan, -np.nan], dtype)
    x = np.array([0.0 if RANK == 0 else -0.0, 0.0 if RANK else -0.0, quiet[RANK % 2]], dtype)
    for op, sign in ((MPI.MIN, True), (MPI.MAX, False)):
        found = np.asarray(pc.allreduce(jnp.asarray(x), op))
        assert np.all(np.signbit(found[:2]) == (sign if SIZE > 1 else np.signbit(x[:2])))
        assert np.isnan(found[2])
        everybody = CONTROL.allgather(found.tobytes())
        assert everybody == [everybody[0]] * SIZE


def test_extremes_and_their_places_with_nan():
    """A NaN is the extreme, and its place is where it is."""
    x = jnp.asarray([1.0 + RANK, jnp.nan if RANK == SIZE - 1 else 1.0, jnp.nan])
    for op in (MPI.MAXLOC, MPI.MINLOC):
        values, places = jax.jit(lambda x, op=op: pc.allreduce((x, jnp.full(3, RANK)), op))(x)
        assert np.isnan(values[1:]).all()
        assert not np.isnan(values[0])
        assert places.tolist() == [SIZE - 1 if op == MPI.MAXLOC else 0, SIZE - 1, 0]


def test_the_derivative_of_an_extreme_with_its_place():
    """Goes to the rank that attains it."""
    gradient = jax.jit(
        jax.grad(lambda x: 3 * pc.allreduce((x, jnp.asarray(RANK)), MPI.MAXLOC)[0])
    )(1.0 * RANK)
    assert float(gradient) == (3.0 if RANK == SIZE - 1 else 0.0)


@pytest.mark.parametrize(
    "pair",
    [
        jnp.ones(3),
        (jnp.ones(3),),
        (jnp.ones(3), jnp.ones(2, int)),
        (jnp.ones(3), jnp.ones(3)),
    ],
    ids=["no pair", "one", "shapes", "no integers"],
)
def test_what_is_no_pair(pair):
    with pytest.raises(TypeError, match=r"allreduce on rank .*MINLOC"):
        pc.allreduce(pair, MPI.MINLOC)


def test_extremes_with_their_places_only_where_they_mean_something():
    pair = jnp.ones((SIZE, 2)), jnp.ones((SIZE, 2), int)
    for call in (
        lambda: pc.scan(pair, MPI.MAXLOC),
        lambda: pc.exscan(pair, MPI.MAXLOC),
        lambda: pc.reduce(pair, MPI.MAXLOC, 0),
        lambda: pc.reduce_scatter(pair, MPI.MAXLOC),
    ):
        with pytest.raises(ValueError, match=r"take a pair .* in allreduce only"):
            call()


# ---- Operations of users ------------------------------------------------------------------


def _buffers(a, b, datatype):
    """The two buffers that MPI passes, as arrays; the second is the result."""
    del datatype
    return np.frombuffer(a, np.complex128), np.frombuffer(b, np.complex128)


def _absolute_maximum(a, b, datatype):
    a, b = _buffers(a, b, datatype)
    b[:] = np.where(abs(a) >= abs(b), a, b)


def _compose(a, b, datatype):
    """x -> p x + q as p + i q: first a, then b. Associative, and the order counts."""
    a, b = _buffers(a, b, datatype)
    b[:] = a.real * b.real + 1j * (b.real * a.imag + b.imag)


def _composed(xs):
    def two(a, b):
        return a.real * b.real + 1j * (b.real * a.imag + b.imag)

    return functools.reduce(two, xs)


def _take_the_left(a, b, datatype):
    a, b = _buffers(a, b, datatype)
    b[:] = a


def test_operations_of_users():
    """Commutative or not, in all operations, again and again."""
    X = random((SIZE, SIZE, 5), "complex128")
    X = np.round(4 * np.real(X)) + 1j * np.round(4 * np.imag(X))  # exact
    x = jnp.asarray(X[RANK])
    ops = {
        "largest": MPI.Op.Create(_absolute_maximum, commute=True),
        "composed": MPI.Op.Create(_compose, commute=False),
        "left": MPI.Op.Create(_take_the_left, commute=False),
    }
    models = {
        "largest": lambda xs: functools.reduce(lambda a, b: np.where(abs(a) >= abs(b), a, b), xs),
        "composed": _composed,
        "left": lambda xs: xs[0],
    }
    f = jax.jit(lambda x: {name: _all(x, op) for name, op in ops.items()})
    for _ in range(2):
        results = f(x)
        for name, model in models.items():
            expected = _expected(X, model, np.zeros_like(X[0]))
            for operation, y, e in zip(OPERATIONS, results[name], expected, strict=True):
                if name == "largest":  # ties: either of the two
                    y, e = abs(np.asarray(y)), abs(e)
                np.testing.assert_array_equal(y, e, err_msg=f"{operation} {name}")
    with pytest.raises(TypeError, match=r"an operation of the user's has no derivative"):
        jax.grad(lambda x: pc.allreduce(x, ops["left"]).real.sum())(x)
    batched = jax.jit(jax.vmap(lambda x: pc.scan(x, ops["composed"])))(x)
    assert_equal(batched, _composed(list(X[: RANK + 1])))


def test_an_operation_that_was_freed():
    """Refused by name; a new one that MPI gives the same handle is another operation."""
    left = MPI.Op.Create(_take_the_left, commute=False)
    x = jnp.asarray(complex(RANK))
    assert complex(pc.allreduce(x, left)) == 0
    left.Free()
    with pytest.raises(ValueError, match=r"allreduce on rank .*made by MPI\.Op\.Create"):
        pc.allreduce(x, left)
    largest = MPI.Op.Create(_absolute_maximum, commute=True)
    assert complex(pc.allreduce(x, largest)) == SIZE - 1
    largest.Free()


# ---- Derivatives --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MIN", "MAX"])
def test_the_derivative_of_an_extreme_with_ties(name):
    """As that of jnp.max on the gathered data: shared by those that attain it."""
    X = np.random.default_rng(5).integers(0, 2, (SIZE, 12)).astype(np.float64)
    w = jnp.asarray(random((12,), seed=6))
    over_ranks = {"MIN": jnp.min, "MAX": jnp.max}[name]

    def loss(x):
        return jnp.sum(w * pc.allreduce(x, getattr(MPI, name)) ** 2 + w * x)

    def model(X):
        return jnp.sum(w * over_ranks(X, 0) ** 2) + jnp.sum(w * X)

    x, v = jnp.asarray(X[RANK]), jnp.asarray(random((SIZE, 12), seed=7))
    X = jnp.asarray(X)
    y, gradient = jax.jit(jax.value_and_grad(loss))(x)
    assert_close(gradient, jax.grad(model)(X)[RANK])
    extreme, tangent = jax.jit(
        lambda x, v: jax.jvp(lambda x: pc.allreduce(x, getattr(MPI, name)), (x,), (v,))
    )(x, v[RANK])
    expected = jax.jvp(lambda X: over_ranks(X, 0), (X,), (v,))
    assert_close((extreme, tangent), expected)
    del y


def test_without_a_derivative():
    """An error that names the operation and what to do, and nothing is sent before it."""
    x = jnp.ones(SIZE)
    names = {
        "allreduce": ("PROD",),
        "scan": ("PROD", "MIN", "MAX"),
        "exscan": ("PROD", "MIN", "MAX"),
        "reduce_scatter": ("PROD", "MIN", "MAX"),
    }
    for operation, reductions in names.items():
        for name in reductions:

            def f(x, operation=operation, name=name):
                return getattr(pc, operation)(x, getattr(MPI, name)).sum()

            with pytest.raises(
                TypeError, match=rf"MPI\.{name} has no derivative here; use op=MPI\.SUM"
            ):
                jax.grad(f)(x)
            with pytest.raises(TypeError, match=r"jax\.lax\.stop_gradient"):
                jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x)
    with pytest.raises(TypeError, match=r"reduce: MPI\.PROD has no derivative"):
        jax.grad(lambda x: pc.reduce(x, MPI.PROD, 0).sum())(x)
    assert float(pc.allreduce(1.0)) == SIZE


def test_reductions_of_pytrees():
    tree = {"a": jnp.full((SIZE, 2), RANK), "b": [jnp.full(SIZE, 1.0)]}

    @jax.jit
    def f(tree):
        return _all(tree, MPI.SUM)

    total = SIZE * (SIZE - 1) // 2
    for operation, y in zip(OPERATIONS, f(tree), strict=True):
        assert jax.tree.structure(y) == jax.tree.structure(tree), operation
    whole, to_root, scanned, before, part = f(tree)
    assert int(whole["a"][0, 0]) == int(part["a"][0]) == total
    assert int(to_root["a"][0, 0]) == (total if RANK == ROOT else RANK)
    assert float(scanned["b"][0][0]) == RANK + 1
    assert int(before["a"][0, 0]) == RANK * (RANK - 1) // 2
