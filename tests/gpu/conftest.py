"""Tests on arrays of GPUs, of which several ranks may share one:

    JAX_ENABLE_X64=1 mpirun -n 4 python -m pytest --with-mpi -m gpu tests/gpu

Skipped where there is none. PFFTJAX_TEST_GPU_ON_CPU=1 runs them on CPUs, to try the tests
themselves.
"""

import os
import pathlib

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


def pytest_collection_modifyitems(items):
    here = [item for item in items if pathlib.Path(__file__).parent in item.path.parents]
    why_not = _why_not() if here else None
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if why_not:
            item.add_marker(pytest.mark.skip(reason=why_not))


@pytest.fixture
def full_precision():
    """In which the results of operations are compared: products of matrices too."""
    if not jax.config.values["jax_enable_x64"]:
        pytest.skip("set JAX_ENABLE_X64=1")
    with jax.default_matmul_precision("highest"):
        yield
