"""The adjoint of every operation, across ranks: sum of <A x, y> is sum of <x, A* y>."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfftjax import collectives as pc
from tests.helpers import CASES, RANK, SIZE, assert_close, blocks, global_sum

pytestmark = [pytest.mark.mpi, pytest.mark.messages]

TOLERANCE = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "complex128": 1e-12}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_adjoint_identity(case, dtype):
    """Complex probes: a conjugated rule passes every real one."""
    _, x = blocks(case.shape, dtype, seed=1)
    y, vjp = jax.vjp(case.apply, x)
    _, cotangent = blocks(y.shape, dtype, seed=2)
    # JAX's vjp is the transpose, without conjugation.
    (back,) = vjp(cotangent)
    forward = global_sum(complex(np.sum(np.asarray(y) * np.asarray(cotangent))))
    backward = global_sum(complex(np.sum(np.asarray(x) * np.asarray(back))))
    size = global_sum(float(np.sum(np.abs(np.asarray(y) * np.asarray(cotangent)))))
    assert abs(forward - backward) <= TOLERANCE[dtype] * size
    nothing_arrives = SIZE == 1 and case.name in ("sendrecv_line", "sendrecv_status", "exscan")
    assert nothing_arrives or abs(forward) > 1e-3 * size  # the probe sees something


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_linear_transpose_twice_is_the_operation(case):
    everything, x = blocks(case.shape)
    y = case.apply(x)
    once = jax.linear_transpose(case.apply, x)
    twice = jax.linear_transpose(lambda c: once(c)[0], y)
    assert_close(twice(x)[0], case.model(jnp.asarray(everything))[RANK])


def test_gradient_of_a_total_loss():
    everything, x = blocks((3,))
    gradient = jax.grad(lambda x: jnp.sin(pc.allreduce(jnp.sum(x**2))))(x)
    total = np.sum(everything**2)
    assert_close(gradient, np.cos(total) * 2 * everything[RANK])


def test_gradient_with_respect_to_a_shared_parameter():
    everything, x = blocks((3,))

    def loss(theta):
        return pc.allreduce(jnp.sum(jnp.sin(pc.replicate(theta) * x)))

    assert_close(jax.grad(loss)(0.7), np.sum(everything * np.cos(0.7 * everything)))


@pytest.mark.mpi(min_size=2)
def test_without_replicate_the_gradient_is_a_part():
    """Why replicate exists; the docs tell of it."""
    everything, x = blocks((3,))
    part = jax.grad(lambda theta: pc.allreduce(jnp.sum(jnp.sin(theta * x))))(0.7)
    assert_close(part, np.sum(everything[RANK] * np.cos(0.7 * everything[RANK])))
    assert not np.isclose(part, np.sum(everything * np.cos(0.7 * everything)))


@pytest.mark.parametrize("mode", ["forward-reverse", "reverse-reverse", "reverse-forward"])
def test_hessian_of_a_squared_total(mode):
    """L = (sum of c theta)^2: a transpose rule that returns its argument gets this wrong."""
    c_all, c = blocks((3,))
    theta = jnp.asarray([0.3, -1.2, 0.8])
    v = jnp.asarray([1.0, -2.0, 0.5])

    def loss(theta):
        return pc.allreduce(jnp.sum(c * pc.replicate(theta))) ** 2

    def directional(theta):
        return jax.jvp(loss, (theta,), (v,))[1]

    product = {
        "forward-reverse": lambda t: jax.jvp(jax.grad(loss), (t,), (v,))[1],
        "reverse-reverse": lambda t: jax.grad(lambda t: jnp.vdot(jax.grad(loss)(t), v))(t),
        "reverse-forward": jax.grad(directional),
    }[mode]
    total = c_all.sum(0)
    assert_close(product(theta), 2 * total * (total @ v))
    assert_close(jax.jit(product)(theta), 2 * total * (total @ v))


@pytest.mark.parametrize("compile_it", [False, True])
def test_loss_on_one_rank_only(compile_it):
    """The others have a cotangent that is known to be zero, and must take part all the same."""
    everything, x = blocks((SIZE, 3))

    def loss(x):
        gathered = pc.allgather(pc.alltoall(x))
        return jnp.sum(jnp.sin(gathered)) if RANK == 0 else 0.0

    gradient = jax.grad(loss)
    assert_close((jax.jit(gradient) if compile_it else gradient)(x), np.cos(everything[RANK]))


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "scan", "exscan"])
def test_other_reductions_refuse_a_derivative(name):
    from mpi4py import MPI

    op = getattr(pc, name)
    x = jnp.ones(SIZE)
    with pytest.raises(TypeError, match=rf"^{name}: MPI\.PROD has no derivative"):
        jax.grad(lambda x: jnp.sum(op(x, MPI.PROD)))(x)
    # Where nothing is differentiated, there is nothing to refuse.
    jax.grad(lambda x: jnp.sum(x) + jnp.sum(op(jax.lax.stop_gradient(x), MPI.PROD)))(x)
