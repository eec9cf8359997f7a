"""Arrays past 2^31 bytes arrive to the last one: PFFTJAX_TEST_REAL_SIZES=1; see sizes.py."""

import os
import subprocess

import pytest

from tools import launcher

# GiB, of both ranks together; the largest case has 12 GiB of arrays.
MOST = 16.0

pytestmark = [pytest.mark.timeout(400), pytest.mark.memory]


def test_all_bytes_arrive():
    """By default a smaller array, in as many pieces: the real sizes take minutes."""
    is_large = os.environ.get("PFFTJAX_TEST_REAL_SIZES") == "1"
    n = (1 << 31 if is_large else 1 << 26) + 8
    extra = {} if is_large else {"PFFTJAX_MAX_CHUNK_BYTES": str(1 << 25)}
    ended = subprocess.run(
        launcher.command(2, "-m", "tests.jobs.sizes", "--bytes", str(n)),
        env=launcher.environment(**extra),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("0 wrong; at most ")
    assert float(last.split()[4]) < MOST, ended.stdout
