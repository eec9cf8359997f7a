"""What import pfftjax checks, and says."""

import os
import pathlib
import subprocess
import sys

import pytest

from tools import launcher

pytestmark = pytest.mark.timeout(240)


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


def test_processes_of_another_mpi():
    """Its mpirun starts several, and each is alone; what a rank runs beside it is rightly so."""
    name, size = (
        ("PMI_RANK", "PMI_SIZE")
        if launcher.family() == "openmpi"
        else ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    )
    ended = _python("import pfftjax", **{name: "0", size: "2"})
    assert ended.returncode == 0, ended.stderr
    assert "RuntimeWarning" in ended.stderr
    assert "started 2 processes, but each of them is a job of its own" in ended.stderr
    assert "started" not in _python("import pfftjax", **{name: "1", size: "2"}).stderr
    rank = """
import subprocess, sys
from mpi4py import MPI
shell = f"{sys.executable} -c 'import pfftjax; print(1, flush=True)'; true"
subprocess.run(shell, shell=True, check=True)
"""
    ended = _python(rank, **{name: "0", size: "2"})
    assert ended.stdout.strip() == "1", ended.stderr
    assert "started" not in ended.stderr


def test_a_jax_that_was_tested():
    """All that pfftjax changes inside of it is there."""
    ended = _python(
        "import warnings; warnings.simplefilter('error', RuntimeWarning); import pfftjax"
    )
    assert ended.returncode == 0, ended.stderr


def test_a_jax_that_is_newer_or_another_one():
    """It is said once, with what is degraded."""
    newer = "import jax; jax.__version_info__ = (0, 99, 1)\n"
    ended = _python(newer + "import pfftjax; print(pfftjax.collectives.allreduce(2.0))")
    assert ended.stdout.strip() == "2.0", ended.stderr
    assert ended.stderr.count("RuntimeWarning") == 1
    assert "this is 0.99.1. Degraded: nothing that pfftjax knows of" in ended.stderr
    another = """
from jax._src import ad_checkpoint, dispatch
tokens = dispatch.RuntimeTokenSet
get = tokens.get_token_input
tokens.get_token_input = lambda self, eff, devices, more=None: get(self, eff, devices)
del ad_checkpoint._insert_reduce_precision
import pfftjax
print(pfftjax.collectives.allreduce(2.0))
"""
    ended = _python(another)
    assert ended.stdout.strip() == "2.0", ended.stderr
    assert "waits for the one before it; a policy of jax.checkpoint cannot" in ended.stderr


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


# Another mpi4py for each further ABI that the MPI of this environment has (Makefile).
OTHER_ABIS = [folder for folder in [pathlib.Path(sys.prefix) / "abi"] if folder.exists()]


@pytest.mark.parametrize("abi", [None, *OTHER_ABIS], ids=lambda abi: abi.name if abi else "own")
def test_every_abi(abi):
    """What a handle is decides which backend is loaded, whatever the MPI says of itself.

    An mpi4py on the standard ABI was given the backend for MPICH's, and died in the import.
    """
    path = {} if abi is None else {"PYTHONPATH": os.fspath(abi)}
    code = """
from unittest import mock
from mpi4py import MPI
with mock.patch.object(MPI, "Get_library_version", lambda: "Another MPI 1.0"):
    import pfftjax
print(pfftjax.info().mpi_family, MPI._sizeof(MPI.COMM_WORLD), pfftjax.info().mpi_implementation)
"""
    ended = _python(code, **path)
    families = ("abi 8",) if abi else ("openmpi 8", "mpich 4")
    assert ended.stdout.strip() in [f"{family} None" for family in families], ended.stderr
    if abi:  # all other tests are of the own one
        _tests_of(abi)


def _tests_of(abi):
    """The doctor, and tests of what an ABI may change: types, reductions, statuses, wildcards."""
    tests = [f"tests/collectives/test_{name}.py" for name in ("messages", "reductions")]
    pytest = [
        "-m",
        "pytest",
        "--with-mpi",
        "-q",
        *tests,
        "-k",
        "all_dtypes or user or status or arguments",
    ]
    for arguments in (["-m", "pfftjax", "doctor"], pytest):
        ended = subprocess.run(
            launcher.command(2, *arguments),
            env=launcher.environment(PYTHONPATH=os.fspath(abi)),
            cwd=launcher.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "(abi)" in ended.stdout or " passed" in ended.stdout


def test_import_does_not_start_a_backend():
    """jax.distributed.initialize must still be possible."""
    code = """
import pfftjax
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""
    assert _python(code).stdout.strip() == "False"


def test_memory_stays_between_calls():
    """Freed arrays keep their pages, unless the options or malloc's own say no."""
    code = """
import ctypes, resource
import pfftjax
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.free.argtypes = [ctypes.c_void_p]
def faults_of_a_call():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [c.malloc(24_000_000) for _ in range(6)]
    for array in arrays:
        c.memset(ctypes.c_void_p(array), 1, ctypes.c_size_t(24_000_000))
    for array in arrays:
        c.free(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults_of_a_call(), faults_of_a_call()
print(faults_of_a_call())
"""

    def faults(**environment):
        ended = _python(code, **environment)
        assert ended.returncode == 0, ended.stderr
        return int(ended.stdout)

    # Six arrays of 24 MB have 35,000 pages of 4 KiB, or 69 of 2 MiB.
    fresh = faults(PFFTJAX_KEEP_BYTES="0")
    assert fresh > 60
    assert faults() < 0.1 * fresh
    assert faults(MALLOC_TRIM_THRESHOLD_="1000000") > 60
    assert faults(GLIBC_TUNABLES="glibc.malloc.trim_threshold=1000000") > 60
