"""Shared parameters that pass functions with derivative rules of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpi4py import MPI

import pfftjax
from pfftjax.collectives import allreduce, replicate
from tests.helpers import RANK, SIZE, assert_close, blocks

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 2, 3)]

X, x = blocks((SIZE, 3))
THETA = jnp.array([0.7, -1.2])


def test_rules_of_ones_own_and_other_reductions():
    @jax.custom_jvp
    def total(y):
        return allreduce(jnp.sum(y**2))

    total.defjvp(lambda p, t: (total(*p), 2 * allreduce(jnp.sum(p[0] * t[0]))))

    def f(theta):
        y = theta[0] * x + theta[1] * RANK
        force = jax.grad(lambda y: allreduce(jnp.sum(y**3)))(y)  # a gradient inside
        return total(y * allreduce(jnp.max(y), MPI.MAX)) + allreduce(jnp.sum(force))

    def f_model(theta):
        Y = theta[0] * X + theta[1] * jnp.arange(SIZE)[:, None, None]
        return jnp.sum((Y * jnp.max(Y)) ** 2) + jnp.sum(3 * Y**2)

    assert_close(pfftjax.value_and_grad(f, shared=0)(THETA), jax.value_and_grad(f_model)(THETA))

    @jax.custom_vjp
    def unclear(y):
        return allreduce(jnp.sum(y))

    unclear.defvjp(lambda y: (unclear(y), y), lambda y, c: (c * jnp.ones_like(y),))
    if SIZE > 1:
        with pytest.raises(NotImplementedError, match="custom_vjp"):
            pfftjax.grad(lambda t: unclear(t * x), shared=0)(1.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_rule_that_alone_sums_over_ranks_is_refused(wrap):
    """`replicate` as users of other libraries write it: the sum would be taken twice."""

    @jax.custom_vjp
    def by_hand(theta):
        return theta, jnp.arange(2)

    by_hand.defvjp(lambda theta: (by_hand(theta), None), lambda _, c: (allreduce(c[0]),))
    replicated = wrap(by_hand)
    if SIZE > 1:
        with pytest.raises(NotImplementedError, match="its backward pass may or may not sum"):
            pfftjax.grad(lambda t: allreduce(jnp.sum(replicated(t)[0] * x)), shared=0)(1.0)


def test_rules_that_have_nothing_to_do_with_ranks():
    """One that scales its cotangent, and one that refuses, and is not differentiated."""

    @jax.custom_vjp
    def scaled(theta):
        return theta, jnp.arange(2)

    traced = []

    def forward(theta):
        traced.append(theta)
        return scaled(theta), None

    scaled.defvjp(forward, lambda _, c: (10 * c[0],))

    @jax.custom_vjp
    def guarded(theta):
        return theta

    def refuse(_, cotangent):
        raise AssertionError("is not to be differentiated")

    guarded.defvjp(lambda theta: (theta, None), refuse)

    def f(theta):
        return allreduce(jnp.sum(scaled(theta)[0] * x + jax.lax.stop_gradient(guarded(theta))))

    assert_close(pfftjax.grad(f, shared=0)(1.0), 10 * np.sum(X))
    assert len(traced) <= 2  # to look into the rule, and to take it


def test_linear_solves_whose_operator_sums_over_ranks():
    """The normal equations of all ranks' rows: right in forward mode, refused in reverse."""
    b = np.array([1.0, -2.0, 0.5])

    def loss(theta, replicated=lambda v: v):
        w, _ = jax.scipy.sparse.linalg.cg(
            lambda v: theta * v + allreduce(x.T @ (x @ replicated(v))), allreduce(x.T @ x @ b)
        )
        return jnp.sum(w**2)

    def model(theta):
        rows = X.reshape(-1, 3)
        product = rows.T @ rows
        return jnp.sum(jnp.linalg.solve(product + theta * jnp.eye(3), product @ b) ** 2)

    expected = jax.grad(model)(2.0)
    slope = jax.jit(jax.vmap(pfftjax.jacfwd(loss, shared=0)))(jnp.array([1.0, 2.0]))
    assert_close(slope[1], expected, 1e-6)
    assert_close(jax.jit(jax.grad(lambda theta: loss(theta, replicate)))(2.0), expected, 1e-6)
    for reverse in (pfftjax.grad, pfftjax.hessian):
        for wrap in (jax.jit, jax.checkpoint, jax.vmap):
            where = jnp.ones(2) if wrap is jax.vmap else 2.0
            if SIZE > 1:
                with pytest.raises(NotImplementedError, match="operator of a linear solve"):
                    wrap(reverse(loss, shared=0))(where)


def test_linear_solves_whose_operator_is_each_ranks_own():
    """One whose solver alone sums over ranks has the derivatives of blocks."""
    b = jnp.ones((SIZE, 3))

    def descent(operator, right):
        def step(state):
            w, rest, size = state
            w += size / allreduce(jnp.sum(rest * operator(rest))) * rest
            rest = right - operator(w)
            return w, rest, allreduce(jnp.sum(rest**2))

        begin = jnp.zeros_like(right), right, allreduce(jnp.sum(right**2))
        return jax.lax.while_loop(lambda state: state[2] > 1e-28, step, begin)[0]

    def loss(theta):
        w = jax.lax.custom_linear_solve(lambda v: (theta + x**2) * v, b, descent, symmetric=True)
        return allreduce(jnp.sum(w**3))

    expected = np.sum(-3 / (2.0 + X**2) ** 4)
    assert_close(jax.jit(pfftjax.grad(loss, shared=0))(2.0), expected, 1e-9)
