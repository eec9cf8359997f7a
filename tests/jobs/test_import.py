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


FAULTS = """
import ctypes, resource
import pfftjax
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
c.free.argtypes = [ctypes.c_void_p]
def filled(size):
    array = c.malloc(size)
    c.memset(ctypes.c_void_p(array), 1, ctypes.c_size_t(size))
    return array
def faults_of_a_call(size, after=0):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [filled(size) for _ in range(6)]
    if after:  # it lies behind them, and stays
        filled(after)
    for array in arrays:
        c.free(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""


@pytest.mark.parametrize("size", [24_000_000, 100_000_000])
def test_memory_stays_for_the_next_call(size):
    """Freed arrays keep their pages, unless the options or malloc's own say no."""
    code = f"{FAULTS}for _ in range(3): found = faults_of_a_call({size})\nprint(found)"

    def faults(**environment):
        ended = _python(code, **environment)
        assert ended.returncode == 0, ended.stderr
        return int(ended.stdout)

    # Six arrays of 24 MB have 35,000 pages of 4 KiB, or 69 of 2 MiB.
    fresh = faults(PFFTJAX_KEEP_BYTES="0")
    assert fresh > 60
    assert faults() < 0.1 * fresh
    assert faults(MALLOC_ARENA_MAX="2") < 0.1 * fresh
    assert faults(MALLOC_TRIM_THRESHOLD_="1000000") > 60
    assert faults(GLIBC_TUNABLES="glibc.malloc.trim_threshold=1000000") > 60


def test_memory_goes_back_where_it_is_scarce():
    """All of it, also between arrays in use; then less is kept, until there is enough again."""
    code = (
        FAULTS
        + """
import jax, jax.numpy as jnp, time
from pfftjax._runtime.ffi import native
plan = pfftjax.PencilFFT((128, 128, 128), pfftjax.ProcessGrid(), real=True)
x = jnp.zeros(plan.input.local_shape)
def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
def look():
    time.sleep(2.2)  # longer than from one look to the next
    jax.block_until_ready(plan.forward(x))
large = 100_000_000
native.keep_freed_memory(1 << 20, most_in_use=1.0)
look()
before = megabytes()
faults_of_a_call(large, after=large // 2)
again = faults_of_a_call(large)
kept = megabytes() - before
native.keep_freed_memory(1 << 20, most_in_use=0.0)
look()
given_back = before + kept - megabytes()
scarce = faults_of_a_call(large)
look()
first, second = filled(7 * large), filled(7 * large)  # larger than the hole
held = megabytes()
c.free(first)
at_once = held - megabytes()
c.free(second)
native.keep_freed_memory(1 << 20, most_in_use=1.0)
enough = [faults_of_a_call(large) for _ in range(3)][2]
print(again, kept, given_back, scarce, at_once, enough)
"""
    )
    ended = _python(code)
    assert ended.returncode == 0, ended.stderr
    again, kept, given_back, scarce, at_once, enough = map(float, ended.stdout.split())
    assert kept > 500
    assert given_back > 500
    assert at_once > 600
    assert max(again, enough) < 60 < scarce


def test_how_much_memory_is_in_use(tmp_path):
    """That of the machine, or of a control group or one around it, without copies of files."""
    from pfftjax._runtime.ffi import native

    def share(groups, **files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_OF_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return native.memory_in_use(str(tmp_path / "proc"), str(tmp_path / groups))

    assert 0 < native.memory_in_use() < 1
    assert share("none") == 1  # nothing is known
    machine = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n"
    assert share("none", proc__meminfo=machine) == pytest.approx(0.2)
    # The second version, where the job has no limit, and its step has one of which half is used.
    assert share(
        "v2",
        proc__self__cgroup="0::/job/step\n",
        v2__job__memory_OF_max="max\n",
        v2__job__step__memory_OF_max="1000\n",
        v2__job__step__memory_OF_current="900\n",
        v2__job__step__memory_OF_stat="anon 500\nfile 500\ninactive_file 300\nactive_file 100\n",
    ) == pytest.approx(0.5)
    job = {"v2__job__memory_OF_max": "1000\n", "v2__job__memory_OF_current": "700\n"}
    assert share("v2", **job) == pytest.approx(0.7)
    high = {"v2__job__step__memory_OF_high": "800\n", "v2__job__memory_OF_max": "max\n"}
    assert share("v2", **high) == pytest.approx(0.625)
    # The first version, where a container sees its own group at the top.
    assert share(
        "v1",
        proc__self__cgroup="5:devices:/\n4:cpu,memory:/docker/7f\n1:name=systemd:/\n0::/\n",
        v1__memory__memory_OF_limit_in_bytes="1000\n",
        v1__memory__memory_OF_usage_in_bytes="950\n",
        v1__memory__memory_OF_stat="inactive_file 1\ntotal_inactive_file 50\n",
    ) == pytest.approx(0.9)
    # A number for no limit, and paths that are none.
    unlimited = {"v1__memory__memory_OF_limit_in_bytes": "9223372036854771712\n"}
    assert share("v1", **unlimited) == pytest.approx(0.2)
    assert share("v1", proc__self__cgroup="0::\n0::job\n4:memory\n:\n") == pytest.approx(0.2)
