"""What tests on GPUs share."""

import jax
import pytest

from tests.gpu.conftest import ON_CPU


def assert_on_device(tree):
    """All arrays are where programs run by default."""
    for leaf in jax.tree.leaves(tree):
        (device,) = leaf.devices()
        assert device.platform == ("cpu" if ON_CPU else "gpu")


def here_and_on_cpus(function, *operands):
    """What a program gives on GPUs, and what the one for CPUs gives on the same operands."""
    here = jax.block_until_ready(jax.jit(function)(*operands))
    assert_on_device(here)
    jax.effects_barrier()
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        pytest.fail("no CPUs to compare with: set JAX_PLATFORMS=cuda,cpu")
    with jax.default_device(cpu):
        there = jax.block_until_ready(jax.jit(function)(*jax.device_put(operands, cpu)))
    jax.effects_barrier()
    return here, there
