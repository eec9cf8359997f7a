"""Derivatives with respect to what all ranks share, against a serial model of all ranks."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfftjax
from pfftjax._runtime.communicators import as_communicator
from pfftjax.collectives import allgather, allreduce, alltoall, replicate
from pfftjax.pm import Particles, lpt
from tests.helpers import CONTROL, RANK, SIZE, assert_close, blocks, random
from tests.pm.universe import cosmology

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

X, x = blocks((SIZE, 3))
THETA = jnp.array([0.7, -1.2])


def loss(x, theta, times=lambda t: t):
    """A shared parameter meets blocks before and after an exchange; a total goes on into work."""
    theta = times(theta)
    y = alltoall(jnp.sin(theta[0] * x)) * (1 + RANK)
    mean = allreduce(jnp.sum(y)) / SIZE
    return allreduce(jnp.sum((y - theta[1] * mean) ** 2)) + theta[0] ** 2


def model(X, theta):
    Y = jnp.swapaxes(jnp.sin(theta[0] * X), 0, 1) * (1 + jnp.arange(SIZE))[:, None, None]
    return jnp.sum((Y - theta[1] * jnp.sum(Y) / SIZE) ** 2) + theta[0] ** 2


def twice(theta):
    """What users do who know `replicate`, and have it once more deeper down."""
    return replicate(jnp.cos(replicate(theta)))


def test_a_plain_gradient_is_this_ranks_part():
    """Why all this is here."""
    part = jax.grad(lambda t: allreduce(jnp.sum(t[0] * x**2) + t[1] * RANK))(THETA)
    whole = pfftjax.grad(lambda t: allreduce(jnp.sum(t[0] * x**2) + t[1] * RANK), shared=0)(THETA)
    expected = jnp.array([np.sum(X**2), sum(range(SIZE))])
    assert_close(whole, expected)
    assert_close(part, jnp.array([jnp.sum(x**2), RANK]))
    if SIZE > 1:
        assert abs(part - expected).max() > 0.1


@pytest.mark.parametrize("how", ["eager", "outside", "inside"])
@pytest.mark.parametrize("times", [lambda t: t, replicate, twice])
def test_gradients_whatever_passes_replicate(how, times):
    def f(x, theta):
        return loss(x, theta, times)

    plain = jnp.cos if times is twice else (lambda t: t)
    expected = jax.value_and_grad(lambda X, t: model(X, plain(t)), (0, 1))(jnp.asarray(X), THETA)
    f = jax.jit(f) if how == "inside" else f
    both = pfftjax.value_and_grad(f, (0, 1), shared="theta", own=0)
    value, (by_x, by_theta) = (jax.jit(both) if how == "outside" else both)(x, THETA)
    assert_close(value, expected[0])
    assert_close(by_x, expected[1][0][RANK])
    assert_close(by_theta, expected[1][1])
    assert len(set(CONTROL.allgather(np.asarray(value).tobytes()))) == 1
    assert_close(pfftjax.grad(f, 1, shared=1)(x, THETA), expected[1][1])


def short_loss(x, theta):
    """What matters at the second order, in a program that compiles soon."""
    mean = allreduce(jnp.sum(jnp.sin(theta[0] * x)))
    return allreduce(jnp.sum((theta[1] * mean * x) ** 2))


def short_model(X, theta):
    return jnp.sum((theta[1] * jnp.sum(jnp.sin(theta[0] * X)) * X) ** 2)


def test_second_derivatives():
    f = pfftjax.grad(short_loss, 1, shared=1)
    v = jnp.array([0.3, 2.0])

    def of_theta(theta):
        return f(x, theta)

    def along(theta):
        return jnp.vdot(of_theta(theta), v)

    @jax.jit
    def products(theta):
        return (
            pfftjax.jvp(of_theta, (theta,), (v,), shared=0)[1],
            pfftjax.linearize(of_theta, theta, shared=0)[1](v),
            # Reverse over reverse, by ours and by JAX's own.
            pfftjax.grad(along, shared=0)(theta),
            jax.grad(along)(theta),
        )

    expected = jax.hessian(short_model, 1)(jnp.asarray(X), THETA)
    assert_close(jax.jit(pfftjax.hessian(short_loss, 1, shared=1))(x, THETA), expected)
    assert_close(jax.jit(pfftjax.jacrev(of_theta, shared=0))(THETA), expected)
    assert_close(products(THETA), (expected @ v,) * 4)


def test_mixed_second_derivatives():
    """A Hessian's product with a direction of both, and its block, this rank's."""
    W, w = blocks((SIZE, 3), seed=1)
    v = jnp.array([0.3, 2.0])
    expected = jax.jvp(
        jax.grad(short_model, (0, 1)), (jnp.asarray(X), THETA), (jnp.asarray(W), v)
    )[1]
    gradient = pfftjax.grad(short_loss, (0, 1), shared=1, own=0)
    product = pfftjax.jvp(
        gradient, (x, THETA), (w, v), shared=1, own=0, shared_result=(False, True)
    )[1]
    assert_close(product[0], expected[0][RANK])
    assert_close(product[1], expected[1])

    def along(x, theta):
        by_x, by_theta = gradient(x, theta)
        return allreduce(jnp.vdot(by_x, w)) + jnp.vdot(by_theta, v)

    again = jax.jit(pfftjax.grad(along, (0, 1), shared=1, own=0))(x, THETA)
    assert_close(again[0], expected[0][RANK])
    assert_close(again[1], expected[1])


def test_results_of_each_rank():
    """vjp and jacfwd of blocks, and the transpose of a linear approximation."""

    def field(theta):
        return jnp.sin(theta[0] * x) * (theta[1] + RANK)

    def fields(theta):
        return jnp.sin(theta[0] * X) * (theta[1] + jnp.arange(SIZE))[:, None, None]

    C, c = blocks((SIZE, 3), seed=2)
    options = {"shared": 0, "shared_result": False}
    expected = jax.vjp(fields, THETA)[1](jnp.asarray(C))[0]
    value, back = pfftjax.vjp(field, THETA, **options)
    assert_close(value, field(THETA))
    assert_close(back(c)[0], expected)
    _, along = pfftjax.linearize(field, THETA, **options)
    assert_close(along(THETA), jax.jvp(fields, (THETA,), (THETA,))[1][RANK])
    assert_close(jax.linear_transpose(along, THETA)(c)[0], expected)
    slopes = pfftjax.jacfwd(field, **options)(THETA)
    assert_close(slopes, jax.jacfwd(fields)(THETA)[RANK])


def test_jacobian_of_totals():
    def totals(x, theta):
        return allreduce(jnp.stack([jnp.sum(theta[0] * x), jnp.sum(jnp.sin(theta[1] * x))]))

    def totals_model(X, theta):
        return jnp.stack([jnp.sum(theta[0] * X), jnp.sum(jnp.sin(theta[1] * X))])

    expected = jax.jacrev(totals_model, (0, 1))(jnp.asarray(X), THETA)
    by_x, by_theta = pfftjax.jacrev(totals, (0, 1), shared=1, own=0)(x, THETA)
    assert_close(by_x, expected[0][:, RANK])
    assert_close(by_theta, expected[1])


def _looped(x, theta):
    def step(carry, k):
        mean = allreduce(jnp.sum(carry)) / (3 * SIZE * SIZE)
        return jnp.sin(carry * theta[0]) + k * mean * theta[1], mean

    y, means = jax.lax.scan(jax.checkpoint(step), x, jnp.arange(3.0))
    y = jax.lax.cond(theta[0] > 0, lambda y: alltoall(y), lambda y: y, y)
    y = jax.lax.fori_loop(0, 2, lambda i, y: y + allreduce(y) * theta[1], y)
    return allreduce(jnp.sum(y**2)) + jnp.sum(means) * theta[1]


def _looped_model(X, theta):
    y, total = X, 0.0
    for k in range(3):
        mean = jnp.sum(y) / (3 * SIZE * SIZE)
        y, total = jnp.sin(y * theta[0]) + k * mean * theta[1], total + mean
    y = jnp.swapaxes(y, 0, 1)
    for _ in range(2):
        y = y + jnp.sum(y, 0) * theta[1]
    return jnp.sum(y**2) + total * theta[1]


def test_control_flow():
    """Totals that go on into work of each rank without `replicate`, in loops and checkpoints."""
    expected = jax.grad(_looped_model, (0, 1))(jnp.asarray(X), THETA)
    for f in (_looped, jax.jit(_looped)):
        by_x, by_theta = jax.jit(pfftjax.grad(f, (0, 1), shared=1, own=0))(x, THETA)
        assert_close(by_x, expected[0][RANK])
        assert_close(by_theta, expected[1])


def test_a_batch_of_parameters():
    batch = jnp.stack([THETA, 2 * THETA, -THETA])
    expected = jax.vmap(jax.grad(model, 1), (None, 0))(jnp.asarray(X), batch)
    actual = jax.vmap(pfftjax.grad(loss, 1, shared=1), (None, 0))(x, batch)
    assert_close(actual, expected)


def test_partly_shared_trees():
    def f(model, scale):
        return allreduce(scale * jnp.sum(model["theta"] * model["field"] ** 2))

    model = {"field": x, "theta": jnp.asarray(1.5)}
    gradient = pfftjax.grad(f, (0, 1), shared={"model": {"theta": True, "field": False}, 1: True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_model, by_scale = gradient(model, 2.0)
    assert_close(by_model, {"field": 6 * x, "theta": jnp.asarray(2 * np.sum(X**2))})
    assert_close(by_scale, 1.5 * np.sum(X**2))


def test_a_cosmology():
    """d/dOmega_c of displacements, against differences; each rank alone has its own part."""
    plan = pfftjax.PencilFFT((8, 6, 5), pfftjax.ProcessGrid(), real=True)
    delta = plan.input.local_block(jnp.asarray(random((8, 6, 5))))
    weights = jnp.arange(3.0) - 1

    def f(universe):
        particles = lpt(delta, plan, 50.0, universe, 0.5, order=1)
        return allreduce(jnp.sum(jnp.sin(particles.offset) * weights + particles.momentum**2))

    @jax.jit
    def all_three(universe):
        return f(universe), pfftjax.grad(f, shared=0)(universe), jax.grad(f)(universe)

    step = 1e-5
    universe = cosmology(Omega_c=jnp.asarray(0.25))
    _, slope, alone = (y if i == 0 else y.Omega_c for i, y in enumerate(all_three(universe)))
    high, low = (
        all_three(cosmology(Omega_c=jnp.asarray(0.25 + sign * step)))[0] for sign in (1, -1)
    )
    assert_close(slope, (high - low) / (2 * step), 1e-6)
    if SIZE > 1:
        assert_close(sum(CONTROL.allgather(float(alone))), slope, 1e-9)
        assert abs(alone - slope) > 1e-3 * abs(slope)


def test_options_are_those_of_jax():
    def f(x, theta, n, *, power=2):
        total = allreduce(jnp.sum(theta * x**power) * n)
        return total, {"mine": x, "text": "as it is", "number": n}

    (value, aux), gradient = pfftjax.value_and_grad(f, 1, shared=[1, "power"], has_aux=True)(
        x, 2.0, 3, power=2
    )
    assert_close((value, gradient), (6 * jnp.sum(X**2), 3 * jnp.sum(X**2)))
    assert aux["text"] == "as it is"
    assert aux["number"] == 3
    assert_close(aux["mine"], x)
    assert_close(pfftjax.grad(f, 1, 1, has_aux=True)(x, 2.0, 3)[0], gradient)

    # Types are kept: a Python number makes no float64 out of float32.
    single = x.astype("float32")
    value, (by_x, by_theta) = pfftjax.value_and_grad(
        lambda x, t: allreduce(jnp.sum(t * x)), (0, 1), shared=1, own=0
    )(single, 2.0)
    assert (value.dtype, by_x.dtype) == ("float32", "float32")
    assert by_theta.dtype == jax.grad(lambda t: jnp.sum(t * single))(2.0).dtype

    squares = pfftjax.grad(lambda z: allreduce(z**2 * (1 + RANK)), shared=0, holomorphic=True)(
        1.0 + 2.0j
    )
    assert_close(squares, sum(2 * (1 + 2j) * (1 + rank) for rank in range(SIZE)))
    nothing = pfftjax.grad(lambda n: allreduce(1.0), shared=0, allow_int=True)(jnp.arange(3))
    assert nothing.dtype == jax.dtypes.float0


def test_a_part_of_the_ranks():
    half = CONTROL.Split(RANK % 2)
    weight = RANK + 1.0
    slope = pfftjax.grad(lambda t: allreduce(weight * t, comm=half), shared=0, comm=half)(1.0)
    assert_close(slope, sum(rank + 1.0 for rank in range(RANK % 2, SIZE, 2)))
    as_communicator(half, "test")  # keeps it


def _said(call):
    """The warnings of a call on any rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.block_until_ready(call())
    texts = [str(w.message) for w in caught if w.category is pfftjax.UndeclaredArgumentWarning]
    if texts:
        assert {w.filename for w in caught} == {__file__}
    return [text for each in CONTROL.allgather(texts) for text in each]


def test_what_nobody_has_declared_is_said_of_the_users_line():
    texts = _said(lambda: jax.jit(pfftjax.grad(lambda t: allreduce(3 * t)))(1.0))
    assert len(texts) == (SIZE > 1)


def test_what_nobody_has_declared_is_said_once():
    plan = pfftjax.PencilFFT((6, 5, 4), pfftjax.ProcessGrid(), real=True)
    block = plan.input.local_block(jnp.asarray(random((6, 5, 4))))

    def f(block, length):
        return allreduce(jnp.sum(length * plan.inverse(plan.forward(block)) ** 2))

    undeclared = pfftjax.grad(f, (0, 1))
    texts = _said(lambda: undeclared(block, 2.0))
    if SIZE == 1:
        assert not texts
        return
    (text,) = texts
    assert "pfftjax.grad on rank 0" in text
    assert "length of f, of shape ()" in text
    assert "shared='length'" in text
    assert "own='length'" in text
    assert not _said(lambda: undeclared(block, 3.0))


def test_what_is_known_is_differentiated_in_silence():
    shape = (6, 5, 4)
    plan = pfftjax.PencilFFT(shape, pfftjax.ProcessGrid(), real=True)
    block = plan.input.local_block(jnp.asarray(random(shape)))

    def f(a, b=0.0):
        return allreduce(jnp.sum(a**2) + jnp.sum(b * a))

    assert not _said(lambda: pfftjax.grad(f)(block))
    assert not _said(lambda: pfftjax.grad(f)(jnp.stack([block, block])))  # a batch
    assert not _said(lambda: pfftjax.grad(f, (0, 1), shared={"b": True}, own=0)(x, 2.0))
    rows = jnp.ones((7, 3))
    particles = Particles(rows.astype(int), rows, rows, jnp.int32(7), 7 * SIZE, shape)
    offset = lambda p: f(p.offset)  # noqa: E731
    assert not _said(lambda: pfftjax.grad(offset, allow_int=True)(particles))
    assert not _said(lambda: pfftjax.grad(f)(rows))


def _error(call):
    """What a call raises on every rank when it runs; empty where it raises nothing."""
    jax.effects_barrier()
    try:
        jax.block_until_ready(call())
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        pfftjax.collectives.recover()
        return str(error)
    return ""


@pytest.mark.skipif(SIZE == 1, reason="one rank has no other")
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_values_that_differ_are_refused_on_the_first_call(jit):
    def total_of_parts(x, theta, phase):
        return allreduce(jnp.sum(theta["a"] * jnp.cos(x + phase)))

    gradient = jit(pfftjax.grad(total_of_parts, (0, 1), shared=(1, "phase"), own=0))
    theta = {"a": jnp.array([1.0, 2.0, 3.0 + 0.5 * (RANK == SIZE - 1)]), "b": jnp.ones(2)}
    text = _error(lambda: gradient(x, theta, 0.0))
    assert f"theta['a'][2] is 3.5 on rank {SIZE - 1} and 3 on rank 0" in text
    assert "a shared argument of total_of_parts (test_shared.py:" in text
    same = {"a": jnp.ones(3), "b": jnp.ones(2)}
    text = _error(lambda: gradient(x, same, 0.25 * RANK))
    assert "phase is 0.25 on rank 1 and 0 on rank 0" in text
    assert not _error(lambda: gradient(x, same, 0.25))


@pytest.mark.skipif(SIZE == 1, reason="one rank has no other")
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_a_loss_that_was_not_summed_is_refused(jit):
    text = _error(lambda: jit(pfftjax.grad(lambda x: jnp.sum(x**2), own=0))(x))
    assert "the result of <lambda> (test_shared.py:" in text
    assert "must be the same on every rank, but it is" in text
    assert "return allreduce of it" in text
    text = _error(lambda: jit(pfftjax.grad(lambda x: jnp.where(RANK, jnp.nan, 1.0), own=0))(x))
    assert "it is nan on rank 1 and 1 on rank 0" in text


@pytest.mark.skipif(SIZE == 1, reason="one rank has no other")
def test_directions_that_differ_are_refused():
    total = lambda t: allreduce(jnp.sum(t * x))  # noqa: E731
    text = _error(lambda: pfftjax.jvp(total, (2.0,), (1.0 + RANK,), shared=0))
    assert "the tangent of a shared argument of <lambda>" in text


@pytest.mark.skipif(SIZE == 1, reason="one rank has no other")
def test_last_digits_may_differ(capfd):
    """Ranks' programs may round differently: said, and not refused."""
    theta = 1.5 * (1 + RANK * jnp.finfo("float64").eps)
    slope = pfftjax.grad(lambda t: allreduce(t * RANK), shared=0)(theta)
    assert_close(slope, float(sum(range(SIZE))))
    jax.effects_barrier()
    text = "".join(CONTROL.allgather(capfd.readouterr().err))
    assert "differs in its last digits: t is 1.5000000000000" in text
    assert text.count("differs in its last digits") == 1


@pytest.mark.parametrize("given", [{}, {"width": 3.0}])
def test_arguments_by_keyword_only(given):
    def loss(x, *, width=2.0):
        return allreduce(jnp.sum(width * x**2))

    gradient = pfftjax.grad(loss, own=0, shared="width")(x, **given)
    assert_close(gradient, 2 * given.get("width", 2.0) * x, 1e-12)
    partial = functools.partial(lambda x, width: loss(x, width=width), width=3.0)
    assert_close(pfftjax.grad(partial, own=0, shared="width")(x), 6 * x, 1e-12)


def test_errors_name_the_remedy():
    def f(x, theta):
        return allreduce(jnp.sum(theta * x))

    for error, match, call in [
        (ValueError, "names 'thta', but the arguments of f", lambda: {"shared": "thta"}),
        (TypeError, "has_aux, holomorphic and allow_int are keyword", lambda: {"shared": True}),
        (ValueError, "called with 2 positional", lambda: {"shared": 2}),
        (ValueError, "named as shared and as this rank's own", lambda: {"shared": 1, "own": 1}),
        (TypeError, "must be True, False", lambda: {"shared": {"theta": 1.0}}),
        (ValueError, "does not fit", lambda: {"shared": {"theta": {"a": True}}}),
        (ValueError, "argnums=3", lambda: {"argnums": 3}),
    ]:
        with pytest.raises(error, match=match):
            pfftjax.grad(f, **{"argnums": 1, **call()})(x, 2.0)
    if SIZE > 1:
        with pytest.raises(ValueError, match=r"for the result does not fit, as the result is "):
            pfftjax.jvp(f, (x, 2.0), (x, 1.0), shared=1, own=0, shared_result={"a": True})
    with pytest.raises(TypeError, match=r"a pair|two-element"):
        pfftjax.grad(f, 1, shared=1, has_aux=True)(x, 2.0)
    if SIZE > 1:
        for transform in (pfftjax.hessian, pfftjax.jacfwd):
            with pytest.raises(ValueError, match="theta is not named as shared"):
                transform(f, 1)(x, 2.0)


@pytest.mark.wrong_types
def test_types():
    with pytest.raises(TypeError, match="argnums must be integers"):
        pfftjax.grad(jnp.sum, "theta")(x)  # pyright: ignore[reportArgumentType]
    alone, keywords = "name each argument by itself", "has_aux, holomorphic and allow_int are"
    wrong = [([(0, 1)], alone), ({(0, 1): True}, alone), ([[0, 1]], alone), (1.5, keywords)]
    for one, remedy in wrong:
        with pytest.raises(TypeError, match=f"shared takes positions, names, .*{remedy}"):
            pfftjax.grad(jnp.sum, shared=one)(x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="shared=2, but the function was called with 1 pos"):
        pfftjax.grad(jnp.sum, shared=2)(x)
    with pytest.raises(TypeError, match="function to differentiate"):
        pfftjax.grad(None)(x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="primals must be a tuple"):
        pfftjax.jvp(jnp.sum, x, x)  # pyright: ignore[reportArgumentType]


def test_a_gathered_parameter():
    """Operations that are each other's exact adjoints stay what they are."""

    def f(theta):
        return allreduce(jnp.sum(allgather(theta * (1 + RANK)) ** 2 * (RANK + 1)))

    ranks = np.arange(1.0, SIZE + 1)
    expected = 2 * THETA * np.sum(ranks**2) * np.sum(ranks)
    assert_close(pfftjax.grad(f, shared=0)(THETA), expected)
