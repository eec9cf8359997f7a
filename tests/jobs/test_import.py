"""What import pfftjax checks, and says."""

import subprocess
import sys

import pytest

from tests import launcher

pytestmark = pytest.mark.timeout(180)


def _python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=launcher.environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )


def test_without_mpirun():
    ended = _python("from pfftjax import collectives as pc; print(float(pc.allreduce(2.0)))")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "2.0"


def test_importing_twice_and_late():
    """After the backend has started, and without disturbing JAX."""
    code = """
import jax, jax.numpy as jnp
jnp.ones(3).block_until_ready()
import pfftjax, pfftjax.collectives
print(float(pfftjax.collectives.allreduce(2.0)), jax.default_backend())
"""
    ended = _python(code)
    assert ended.stdout.split() == ["2.0", "cpu"], ended.stderr


def test_thread_level():
    ended = _python("import pfftjax", MPI4PY_RC_THREAD_LEVEL="single")
    assert ended.returncode != 0
    assert "ImportError" in ended.stderr
    assert "MPI_THREAD_MULTIPLE" in ended.stderr
    assert "MPI4PY_RC_THREAD_LEVEL" in ended.stderr


def test_mpi_not_initialised():
    ended = _python("import mpi4py; mpi4py.rc.initialize = False; import pfftjax")
    assert "ImportError" in ended.stderr
    assert "Init_thread" in ended.stderr


def test_another_mpi_than_the_one_built_for():
    code = """
from unittest import mock
from mpi4py import MPI
import pathlib
with mock.patch.object(pathlib.Path, "glob", lambda self, pattern: []):
    import pfftjax
"""
    ended = _python(code)
    assert "ImportError" in ended.stderr
    assert "mpi4py runs on" in ended.stderr
    assert "mpicc of that MPI on PATH" in ended.stderr


def test_import_does_not_start_a_backend():
    """jax.distributed.initialize must still be possible."""
    code = """
import pfftjax
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""
    assert _python(code).stdout.strip() == "False"
