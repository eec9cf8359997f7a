"""Tests on arrays of GPUs, of which several ranks may share one:

    JAX_ENABLE_X64=1 mpirun -n 4 python -m pytest --with-mpi -m gpu tests/gpu

Skipped where there is none. PFFTJAX_TEST_GPU_ON_CPU=1 runs them on CPUs, to try the tests
themselves.
"""

import os

import jax
import pytest

from pfftjax.collectives import has_cuda_support

ON_CPU = os.environ.get("PFFTJAX_TEST_GPU_ON_CPU") == "1"


def _why_not():
    if ON_CPU:
        return None
    if not has_cuda_support():
        return "this pfftjax was built without CUDA"
    if jax.default_backend() != "gpu":
        return "JAX has no GPU here"
    return None


@pytest.fixture
def arrays():
    """Arrays of GPUs, in the precision in which results are compared: products of matrices too."""
    why_not = _why_not()
    if why_not is None and not jax.config.values["jax_enable_x64"]:
        why_not = "set JAX_ENABLE_X64=1"
    if why_not is not None:
        pytest.skip(why_not)
    with jax.default_matmul_precision("highest"):
        yield
