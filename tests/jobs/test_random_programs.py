"""Random programs of mixed collectives give what a model in NumPy gives; see random_programs.py,
which runs ten thousand operations where it is called by hand."""

import re
import subprocess

import pytest

from tools import launcher

pytestmark = pytest.mark.timeout(120)


def test_some_hundred_operations():
    """The same numbers every time: what fails here can be repeated."""
    ended = subprocess.run(
        launcher.command(
            3, "-m", "tests.jobs.random_programs", "--operations", "600", "--runs", "12"
        ),
        env=launcher.environment(JAX_DISABLE_MOST_OPTIMIZATIONS="1"),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"600 operations in 2 programs on 3 ranks.* 0 mismatches", ended.stdout)
