"""Every operation under every transformation, against the same program on all blocks at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from pfftjax import collectives as pc
from pfftjax._runtime.ffi import native
from tests.helpers import BASIC, CASES, CONTROL, RANK, SIZE, assert_close, blocks, random

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 3), pytest.mark.messages]
MATRIX = CASES if SIZE == 3 else [case for case in CASES if case.name in BASIC]
each_case = pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.name)
# One operation stands for all in these: they test the transformation.
two_cases = pytest.mark.parametrize("case", [CASES[0], CASES[4]], ids=lambda case: case.name)


class Setup:
    """A nonlinear loss around one operation, distributed and on all blocks at once."""

    def __init__(self, case):
        self.case = case
        self.X, self.x = blocks(case.shape, seed=3)
        self.V, self.v = blocks(case.shape, seed=4)
        self.X, self.V = jnp.asarray(self.X), jnp.asarray(self.V)
        out = jax.eval_shape(case.model, self.X).shape
        self.W = jnp.asarray(random(out, seed=5))
        self.theta, self.vtheta = jnp.asarray(0.7), jnp.asarray(1.3)

    def loss(self, x, theta):
        """Return the loss, the same on every rank, of this rank's block and a shared parameter."""
        y = self.case.apply(jnp.tanh(pc.replicate(theta) * x))
        return pc.allreduce(jnp.sum(self.W[RANK] * jnp.sin(y) ** 2))

    def model(self, X, theta):
        """The same of all blocks."""
        return jnp.sum(self.W * jnp.sin(self.case.model(jnp.tanh(theta * X))) ** 2)

    def mine(self, gradients):
        """This rank's part of (gradient with respect to X, to theta)."""
        return gradients[0][RANK], gradients[1]

    def batch(self):
        """Three sets of blocks: (all of them, this rank's)."""
        XB = jnp.stack([self.X, 2 * self.X, self.X - 1])
        return XB, XB[:, RANK]


@pytest.fixture
def s(case):
    return Setup(case)


def check(f, g, *arguments, eager=False):
    """f, jitted and, where asked for, eager too, gives g."""
    expected = jax.jit(g)()
    assert_close(jax.jit(f)(*arguments), expected)
    if eager:
        assert_close(f(*arguments), expected)


both = functools.partial(jax.grad, argnums=(0, 1))


@each_case
def test_value_and_grad(s):
    def both_of(f):
        return jax.value_and_grad(f, (0, 1))

    def model():
        value, gradients = both_of(s.model)(s.X, s.theta)
        return value, s.mine(gradients)

    check(both_of(s.loss), model, s.x, s.theta, eager=True)


@each_case
def test_vjp_and_jvp(s):
    def ours(x, theta):
        pulled = jax.vjp(s.loss, x, theta)[1](jnp.asarray(2.0))
        return pulled, jax.jvp(s.loss, (x, theta), (s.v, s.vtheta))

    def model():
        pulled = jax.vjp(s.model, s.X, s.theta)[1](jnp.asarray(2.0))
        return s.mine(pulled), jax.jvp(s.model, (s.X, s.theta), (s.V, s.vtheta))

    check(ours, model, s.x, s.theta)


def _products(f, x, theta, v, vtheta, dot):
    """Hessian times (v, vtheta), forward over reverse, reverse over reverse and over forward."""

    def forward_reverse(x, theta):
        return jax.jvp(both(f), (x, theta), (v, vtheta))[1]

    def along(x, theta):
        gx, gtheta = both(f)(x, theta)
        return dot(gx, v) + gtheta * vtheta

    def directional(x, theta):
        return jax.jvp(f, (x, theta), (v, vtheta))[1]

    return forward_reverse, both(along), both(directional)


@each_case
@pytest.mark.parametrize("order", [0, 1, 2], ids=["fwd-rev", "rev-rev", "rev-fwd"])
def test_hessian_vector_product(s, order):
    ours = _products(
        s.loss, s.x, s.theta, s.v, s.vtheta, lambda a, b: pc.allreduce(jnp.vdot(a, b))
    )[order]
    theirs = _products(s.model, s.X, s.theta, s.V, s.vtheta, jnp.vdot)[order]
    check(ours, lambda: s.mine(theirs(s.X, s.theta)), s.x, s.theta)


@two_cases
def test_third_derivative_and_hessian_of_the_parameter(s):
    third = lambda f, x: jax.grad(jax.grad(jax.grad(lambda t: f(x, t))))  # noqa: E731
    check(third(s.loss, s.x), lambda: third(s.model, s.X)(s.theta), s.theta)
    hessian = lambda f, x: jax.hessian(lambda t: f(x, t))  # noqa: E731
    check(hessian(s.loss, s.x), lambda: hessian(s.model, s.X)(s.theta), s.theta)
    check(
        jax.jacfwd(lambda t: s.loss(s.x, t)),
        lambda: jax.grad(s.model, 1)(s.X, s.theta),
        s.theta,
    )


@two_cases
def test_linearize(s):
    y, f = jax.linearize(s.loss, s.x, s.theta)
    expected = jax.jvp(s.model, (s.X, s.theta), (s.V, s.vtheta))
    assert_close((y, f(s.v, s.vtheta)), expected)


@each_case
def test_vmap(s):
    XB, xb = s.batch()
    expected = jax.jit(jax.vmap(s.model, (0, None)))(XB, s.theta)
    check(jax.vmap(s.loss, (0, None)), lambda: expected, xb, s.theta, eager=True)
    last = jnp.moveaxis(xb, 0, -1)
    check(jax.vmap(s.loss, (-1, None)), lambda: expected, last, s.theta)


@each_case
def test_vmap_with_an_unbatched_operand(s):
    thetas = jnp.asarray([0.5, 0.7])
    expected = jax.jit(jax.vmap(s.model, (None, 0)))(s.X, thetas)
    check(jax.vmap(s.loss, (None, 0)), lambda: expected, s.x, thetas)
    # The operation itself unbatched, its surroundings batched.
    alone = jax.vmap(lambda t: s.case.apply(s.x) * t)(thetas)
    assert_close(alone, thetas.reshape(2, *[1] * (alone.ndim - 1)) * s.case.model(s.X)[RANK])


@each_case
def test_vmap_of_grad_and_grad_of_vmap(s):
    XB, xb = s.batch()
    gx, gtheta = jax.jit(jax.vmap(both(s.model), (0, None)))(XB, s.theta)
    each = (gx[:, RANK], gtheta)
    check(jax.vmap(both(s.loss), (0, None)), lambda: each, xb, s.theta)
    summed = both(lambda xb, t: jnp.sum(jax.vmap(s.loss, (0, None))(xb, t)))
    check(summed, lambda: (each[0], each[1].sum()), xb, s.theta)


@each_case
def test_vmap_of_vmap_sends_one_message(s):
    XB, xb = s.batch()
    single = jax.jit(s.case.apply)
    double = jax.jit(jax.vmap(jax.vmap(s.case.apply)))
    xbb = jnp.stack([xb, -xb])
    expected = jax.jit(jax.vmap(jax.vmap(s.case.model)))(jnp.stack([XB, -XB]))[:, :, RANK]
    assert_close(double(xbb), expected)
    assert _calls(lambda: double(xbb)) == _calls(lambda: single(s.x))


def _calls(f):
    jax.block_until_ready(f())
    jax.effects_barrier()
    before = native.calls(0)
    jax.block_until_ready(f())
    jax.effects_barrier()
    return native.calls(0) - before


def _scanned(f, wrap=lambda step: step):
    """Three steps that feed the loss back."""

    def total(x, theta):
        def step(carry, _):
            value = f(carry, theta)
            return carry * (1 + 0.1 * jnp.sin(value)), value

        return jnp.sum(jax.lax.scan(wrap(step), x, None, length=3)[1])

    return total


def _scanned_model(s):
    return _scanned(s.model)


def _replicated_feedback(s, wrap=lambda step: step):
    """`_scanned` on blocks: the total comes back into each rank's work through replicate."""

    def total(x, theta):
        def step(carry, _):
            value = s.loss(carry, theta)
            return carry * (1 + 0.1 * jnp.sin(pc.replicate(value))), value

        return jnp.sum(jax.lax.scan(wrap(step), x, None, length=3)[1])

    return total


@each_case
def test_scan(s):
    model = both(_scanned_model(s))
    check(both(_replicated_feedback(s)), lambda: s.mine(model(s.X, s.theta)), s.x, s.theta)


@each_case
def test_scan_of_checkpoint(s):
    ours = both(_replicated_feedback(s, jax.checkpoint))
    check(ours, lambda: s.mine(both(_scanned_model(s))(s.X, s.theta)), s.x, s.theta)


@two_cases
def test_hessian_vector_product_of_a_scan_of_checkpoint(s):
    ours, model = both(_replicated_feedback(s, jax.checkpoint)), both(_scanned_model(s))
    check(
        lambda x, t: jax.jvp(ours, (x, t), (s.v, s.vtheta))[1],
        lambda: s.mine(jax.jvp(model, (s.X, s.theta), (s.V, s.vtheta))[1]),
        s.x,
        s.theta,
    )


@each_case
def test_checkpoint_of_scan(s):
    ours = both(jax.checkpoint(_replicated_feedback(s)))
    check(ours, lambda: s.mine(both(_scanned_model(s))(s.X, s.theta)), s.x, s.theta)


@each_case
def test_checkpoint(s):
    ours = both(jax.checkpoint(s.loss))
    check(ours, lambda: s.mine(both(s.model)(s.X, s.theta)), s.x, s.theta, eager=True)


@two_cases
@pytest.mark.parametrize(
    "policy",
    [
        None,
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.nothing_saveable,
        pc.save_collectives,
        jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_saveable, pc.save_collectives
        ),
    ],
    ids=["default", "everything", "nothing", "collectives", "both"],
)
def test_policies(s, policy):
    ours = both(jax.checkpoint(s.loss, policy=policy))
    check(ours, lambda: s.mine(both(s.model)(s.X, s.theta)), s.x, s.theta)
    check(
        lambda x, t: jax.jvp(ours, (x, t), (s.v, s.vtheta))[1],
        lambda: s.mine(jax.jvp(both(s.model), (s.X, s.theta), (s.V, s.vtheta))[1]),
        s.x,
        s.theta,
    )


def _square(case):
    """The operation where its result has the shape of its operand, so that loops can repeat it."""
    shape = jax.eval_shape(case.model, jnp.zeros((SIZE, *case.shape))).shape[1:]
    if shape == case.shape:
        return case.apply, case.model
    if case.name in ("allgather", "allgather_split", "allgatherv", "alltoallv"):
        return (
            lambda x: case.apply(x).reshape(-1)[: x.size].reshape(x.shape),
            lambda X: case.model(X).reshape(SIZE, -1)[:, : X[0].size].reshape(X.shape),
        )
    return (
        lambda x: jnp.broadcast_to(case.apply(x), x.shape),
        lambda X: jnp.broadcast_to(case.model(X)[:, None], X.shape),
    )


@each_case
def test_while(s):
    apply, model = _square(s.case)

    def loop(f):
        return lambda x: jax.lax.while_loop(
            lambda state: state[0] < 3, lambda state: (state[0] + 1, 0.5 * f(state[1])), (0, x)
        )[1]

    check(
        lambda x: jax.jvp(loop(apply), (x,), (s.v,)),
        lambda: tuple(a[RANK] for a in jax.jvp(loop(model), (s.X,), (s.V,))),
        s.x,
    )
    XB, xb = s.batch()
    check(jax.vmap(loop(apply)), lambda: jax.vmap(loop(model))(XB)[:, RANK], xb)


@each_case
@pytest.mark.parametrize("branch", [True, False])
def test_cond(s, branch):
    apply, model = _square(s.case)

    def choose(f):
        return lambda x, p: jax.lax.cond(p, lambda x: 2 * f(jnp.sin(x)), lambda x: x**2, x)

    def loss(f):
        return jax.value_and_grad(lambda x, p: jnp.sum(choose(f)(x, p) ** 2))

    total = loss(model)(s.X, branch)
    value, gradient = jax.jit(loss(apply))(s.x, branch)
    assert_close((CONTROL.allreduce(float(value)), gradient), (float(total[0]), total[1][RANK]))


@each_case
def test_vmap_of_cond_with_a_batched_predicate(s):
    apply, model = _square(s.case)
    XB, xb = s.batch()
    p = jnp.asarray([True, False, True])

    def choose(f):
        return lambda x, p: jax.lax.cond(p, lambda x: 2 * f(x), lambda x: x**2, x)

    check(jax.vmap(choose(apply)), lambda: jax.vmap(choose(model))(XB, p)[:, RANK], xb, p)


@each_case
def test_inside_custom_vjp_and_custom_jvp(s):
    @jax.custom_vjp
    def ours(x):
        return s.case.apply(x) * 2

    transpose = jax.linear_transpose(s.case.apply, s.x)
    ours.defvjp(lambda x: (ours(x), ()), lambda _, c: (2 * transpose(c)[0],))

    def loss(x):
        return jnp.sum(s.W[RANK] * jnp.sin(ours(x)))

    def model(X):
        return jnp.sum(s.W * jnp.sin(2 * s.case.model(X)))

    check(jax.grad(loss), lambda: jax.grad(model)(s.X)[RANK], s.x)

    @jax.custom_jvp
    def other(x):
        return s.case.apply(x) * 2

    other.defjvp(lambda p, t: (other(*p), 2 * s.case.apply(*t)))
    pushed = jax.jit(lambda x: jax.jvp(other, (x,), (s.v,)))(s.x)
    assert_close(pushed, (2 * s.case.model(s.X)[RANK], 2 * s.case.model(s.V)[RANK]))


@each_case
def test_donated_operand(s):
    f = jax.jit(s.case.apply, donate_argnums=0)
    given = s.x + 0
    result = f(given)
    assert_close(result, s.case.model(s.X)[RANK])
    apply, model = _square(s.case)
    chain = jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (apply(c), None), x, None, length=3)[0],
        donate_argnums=0,
    )
    given = s.x + 0
    result = chain(given)
    assert given.is_deleted()
    assert_close(result, model(model(model(s.X)))[RANK])


@each_case
def test_ahead_of_time_compiled_and_called_twice(s):
    """JAX's C++ call path loses the token of an ordered effect on the second call."""
    compiled = jax.jit(s.case.apply).lower(s.x).compile()
    expected = s.case.model(s.X)[RANK]
    for factor in (1, 2, 3):
        assert_close(compiled(factor * s.x), factor * expected)


@each_case
def test_export(s):
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in native.registrations()]
    exported = export.export(jax.jit(s.loss), disabled_checks=checks)(s.x, s.theta)
    again = export.deserialize(exported.serialize())
    for _ in range(2):
        assert_close(again.call(s.x, s.theta), s.model(s.X, s.theta))
    assert_close(jax.jit(lambda x: again.call(x, s.theta))(s.x), s.model(s.X, s.theta))


@two_cases
def test_jit_inside_jit(s):
    inner = jax.jit(s.loss)
    check(
        both(lambda x, t: inner(x, t) + 2 * inner(2 * x, t)),
        lambda: s.mine(both(lambda X, t: s.model(X, t) + 2 * s.model(2 * X, t))(s.X, s.theta)),
        s.x,
        s.theta,
    )


@two_cases
def test_single_precision_complex(s):
    everything, x = blocks(s.case.shape, "complex64", seed=6)

    def loss(f):
        return lambda x: jnp.sum(jnp.abs(f(x + 1j * x**2)) ** 2)

    gradient = jax.jit(jax.grad(loss(s.case.apply)))(x)
    assert gradient.dtype == jnp.complex64
    expected = jax.jit(jax.grad(loss(s.case.model)))(jnp.asarray(everything))[RANK]
    assert_close(gradient, np.asarray(expected), 1e-5)
