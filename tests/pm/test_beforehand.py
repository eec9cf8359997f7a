"""What is known while a program is traced is a constant of it; what is not, a part of it."""

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import pytest

from pfftjax import pm
from pfftjax.pm import _beforehand
from pfftjax.pm._beforehand import beforehand

pytestmark = pytest.mark.ranks(1)

ENDS = np.linspace(0.1, 1.0, 6)


def loops(function, *args):
    """How many loops the program of a function has."""
    text = str(jax.make_jaxpr(function)(*args))
    return text.count("scan[") + text.count("while[")


@pytest.mark.parametrize("integrator", [pm.fastpm, pm.leapfrog, pm.cola, pm.bullfrog])
def test_known_factors_are_constants(integrator):
    outputs = np.array([0.2, 0.7])

    def steps(cosmology):
        found = integrator(cosmology, ENDS, outputs=outputs)
        assert isinstance(found.outputs.stage, np.ndarray)
        return found._replace(outputs=found.outputs._replace(stage=None))

    known = jax.jit(lambda: steps(jax_cosmo.Planck15()))
    assert loops(known) == 0
    traced = jax.jit(steps)
    if integrator is not pm.leapfrog:  # which knows nothing of growth
        assert loops(traced, jax_cosmo.Planck15()) > 0
    for a, b in zip(*map(jax.tree.leaves, (known(), traced(jax_cosmo.Planck15()))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_no_trace_is_kept():
    """JAX ends a program that leaves arrays of another one's tracing behind, if it is asked to."""
    with jax.checking_leaks():
        kick = jax.jit(lambda: pm.fastpm(jax_cosmo.Planck15(), [0.2, 0.5]).kick)()
    np.testing.assert_allclose(kick, pm.fastpm(jax_cosmo.Planck15(), [0.2, 0.5]).kick, rtol=1e-12)


def test_arguments_that_cannot_be_compared():
    """A cosmology of a user's own, whose structure as a pytree has an array in it."""

    @jax.tree_util.register_pytree_node_class
    class Mine:
        def __init__(self, omega_m, table):
            self.omega_m, self.table = omega_m, table

        def tree_flatten(self):
            return (self.omega_m,), self.table

        @classmethod
        def tree_unflatten(cls, table, leaves):
            return cls(*leaves, table)

    @beforehand
    def doubled(cosmology):
        return jnp.asarray(cosmology.omega_m) * 2

    for _ in range(2):
        found = jax.jit(lambda: doubled(Mine(0.25, np.arange(3.0))))()
        assert float(found) == 0.5


def test_a_users_integrator_may_know_what_is_traced():
    @jax.jit
    def kicks(factor):
        def slower(cosmology, scale_factors):
            steps = pm.fastpm(cosmology, scale_factors)
            return steps._replace(kick=factor * steps.kick)

        return slower(jax_cosmo.Planck15(), ENDS).kick

    np.testing.assert_allclose(kicks(2.0), 2 * kicks(1.0))


def test_a_result_is_kept_and_each_precision_has_its_own():
    calls = []

    @beforehand
    def doubled(x):
        calls.append(x)
        return {"twice": jnp.asarray(x) * 2, "places": np.arange(2), "nothing": None}

    def program():
        found = doubled(1.5)
        assert isinstance(found["places"], np.ndarray)
        assert not found["places"].flags.writeable  # the next program has it, too
        assert found["nothing"] is None
        return found["twice"].at[()].add(1)

    assert [float(jax.jit(lambda: program())()) for _ in range(3)] == [4.0] * 3
    assert calls == [1.5]
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert float(jax.jit(lambda: program())()) == 4.0
    assert calls == [1.5] * 2
    doubled(1.5)  # outside of programs
    assert calls == [1.5] * 3


def test_the_latest_are_kept(monkeypatch):
    calls = []

    @beforehand
    def doubled(x):
        calls.append(x)
        return jnp.asarray(x) * 2

    monkeypatch.setattr(_beforehand, "_MOST_KEPT", 2)
    for x in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0):
        jax.jit(lambda x=x: doubled(x))()
    assert calls == [1.0, 2.0, 3.0, 2.0]


def test_what_is_wrong_raises_as_it_does_elsewhere():
    with pytest.raises(ValueError, match="scale factors must be positive"):
        jax.jit(lambda: pm.fastpm(jax_cosmo.Planck15(), [-1.0, 1.0]).kick)()
    with pytest.raises(ValueError, match="outputs must be between"):
        jax.jit(lambda: pm.fastpm(jax_cosmo.Planck15(), ENDS, outputs=[2.0]).kick)()
