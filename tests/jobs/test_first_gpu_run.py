"""The command for a machine with a GPU, rehearsed on CPUs: tools/first_gpu_run.py."""

import subprocess
import sys

import pytest

from tools import launcher

pytestmark = pytest.mark.timeout(120)


def _rehearsed(out, *names):
    command = [sys.executable, "-m", "tools.first_gpu_run", "run", "--rehearse", "--out", str(out)]
    environment = launcher.environment()
    # Tests that are skipped there are not those of which `make test` keeps a list.
    environment.pop("PFFTJAX_TEST_LOG", None)
    return subprocess.run(
        [*command, "--only", *names],
        cwd=launcher.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_rehearsal(tmp_path):
    """Checks beside each other, and a timing after them."""
    ended = _rehearsed(tmp_path, "kernels-2", "doctor-2", "step")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert sorted(line.split(" in ")[0] for line in lines) == [
        "doctor-2: passed",
        "kernels-2: SKIPPED",  # without a GPU
        "step: passed",
    ]
    assert "ns_a_particle" in (tmp_path / "step.json").read_text()


def test_what_is_not_there(tmp_path):
    ended = _rehearsed(tmp_path, "operation")
    assert ended.returncode == 2
    assert "no steps ['operation']; there are ['checks', 'doctor-2'," in ended.stderr
