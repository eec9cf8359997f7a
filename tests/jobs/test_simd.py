"""The code of the FFT and of the NUFFT for other processors than this one."""

import subprocess
import sys

import pytest

from pfftjax._runtime.ffi import native
from tests.jobs.job import compiled_by_tests
from tools import launcher

pytestmark = pytest.mark.timeout(300)

FILES = ("tests/fft/test_local.py", "tests/nufft/test_values.py")
TESTS = "test_lengths or test_two_axes or bits or several_tiles"


def _pytest(simd, folder):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--with-mpi", *FILES, "-k", TESTS],
        env=launcher.environment(
            PFFTJAX_SIMD=simd, JAX_DISABLE_MOST_OPTIMIZATIONS="1", **compiled_by_tests(folder)
        ),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )


# The widest is what all other tests run.
@pytest.mark.parametrize("simd", native.runnable_simd()[1:] or ["baseline"])
def test_every_version_of_the_transform(tmp_path, simd):
    ended = _pytest(simd, tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


@pytest.mark.parametrize("simd", native.runnable_simd()[1:2] or ["baseline"])
def test_another_version_on_two_ranks(tmp_path, simd):
    """Whole plans, whose transforms read and write columns, in single precision; `make matrix` has
    every version.
    """
    tests = ("tests/fft/test_values.py", "-k", "not float64 and not complex128")
    command = launcher.command(2, "-m", "pytest", "--with-mpi", "-q", *tests)
    ended = subprocess.run(
        command,
        env=launcher.environment(
            PFFTJAX_SIMD=simd,
            JAX_DISABLE_MOST_OPTIMIZATIONS="1",
            **compiled_by_tests(tmp_path),
        ),
        capture_output=True,
        text=True,
        check=False,
        cwd=launcher.ROOT,
    )
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


def test_an_unknown_name_is_refused(tmp_path):
    ended = _pytest("avx1024", tmp_path)
    assert ended.returncode != 0
    assert "PFFTJAX_SIMD='avx1024': set it to one of" in ended.stdout + ended.stderr
