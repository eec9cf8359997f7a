"""python -m pfftjax and its commands, as users start them."""

import re
import subprocess

import pytest

from tests.jobs.job import assert_succeeds
from tools import launcher

pytestmark = pytest.mark.timeout(120)


def _run(ranks, *arguments, **environment):
    """Under the launcher, or without one for 0 ranks."""
    command = launcher.command(ranks or 1, "-m", "pfftjax", *arguments)
    if ranks == 0:
        command = command[command.index("-m") - 1 :]
    return subprocess.run(
        command,
        env=launcher.environment(**environment),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_doctor(ranks):
    ended = _run(ranks, "doctor", PFFTJAX_CHEKC="1", JAX_COMPILATION_CACHE_DIR="")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("Operations, transforms and their gradient: right") == 1
    numbers = re.findall(
        r"alltoall of .*: ([\d.]+) (?:us|GB/s) in a jitted program, ([\d.]+) ", ended.stdout
    )
    assert len(numbers) == 2
    assert all(float(number) > 0 for pair in numbers for number in pair)
    assert "PFFTJAX_CHEKC in the environment means nothing to pfftjax: `pfftjax" in ended.stdout
    assert ended.stderr.count("did you mean PFFTJAX_CHECK?") == 1
    assert "hint: programs are compiled in each run: JAX_COMPILATION_CACHE_DIR" in ended.stdout
    assert ("rank 1 on" in ended.stdout) == (ranks == 2)


def test_a_wrong_result_sets_the_status():
    """On one rank of two, as a broken node would."""
    script = """
import sys
from unittest import mock
from mpi4py import MPI
import pfftjax.diagnostics.doctor
wrong = ["alltoall"] if MPI.COMM_WORLD.rank == 1 else []
with mock.patch.object(pfftjax.diagnostics.doctor, "wrong_operations", lambda comm: wrong):
    sys.exit(pfftjax.diagnostics.doctor.doctor())
"""
    ended = subprocess.run(
        launcher.command(2, "-c", script),
        env=launcher.environment(),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "transforms and their gradient: WRONG" in ended.stdout
    assert "alltoall gives a wrong result on rank 1: build pfftjax again" in ended.stdout


def test_values_on_gpus():
    """What is wrong there only is found, by name. The CPU stands for the GPU."""
    script = """
import dataclasses, sys
from unittest import mock
import jax
import pfftjax.diagnostics.doctor as module
cpu, asked, given = jax.local_devices()[0], [], module.info
def wrong_operations(comm):
    asked.append(jax.config.jax_default_device)
    return [] if len(asked) == 1 else ["alltoall"]
def info(**options):
    return dataclasses.replace(given(**options), platforms=("CUDA", "cpu"), gpus=("cuda:0",))
def local_devices(backend=None):
    asked.append(backend)
    return [cpu]
with (
    mock.patch.object(module, "wrong_operations", wrong_operations),
    mock.patch.object(module, "info", info),
    mock.patch.object(module, "_cpu", lambda: cpu),
    mock.patch.object(jax, "local_devices", local_devices),
):
    status = module.doctor()
assert asked == [cpu, "gpu", cpu], asked
sys.exit(status)
"""
    ended = subprocess.run(
        launcher.command(2, "-c", script),
        env=launcher.environment(),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "alltoall on GPUs gives a wrong result on ranks 0-1" in ended.stdout


def test_processes_that_are_no_job():
    """What an mpirun of another MPI does: each process is rank 0 of 1."""
    variables = {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"}
    ended = _run(0, "doctor", **variables, OMPI_COMM_WORLD_RANK="0", PMI_RANK="0")
    assert ended.returncode == 1
    assert "started 2 processes, but they are jobs of 1 each: start them" in ended.stdout
    ended = _run(0, "info", **variables, OMPI_COMM_WORLD_RANK="1", PMI_RANK="1")
    assert ended.returncode == 0
    assert ended.stdout == ""


def test_info_and_unknown_commands():
    ended = _run(2, "info")
    assert ended.returncode == 0
    assert ended.stdout.count("0 of 2 on") == 1
    assert "1 of 2 on" not in ended.stdout
    ended = _run(0)
    assert ended.returncode == 0
    assert "usage: pfftjax" in ended.stdout
    ended = _run(0, "nonsense")
    assert ended.returncode == 2
    assert "invalid choice: 'nonsense'" in ended.stderr


def test_the_other_commands():
    """One after the other in one job, as each would start its own."""
    script = """
import sys
from pfftjax.__main__ import main
for arguments in sys.argv[1:]:
    sys.argv[1:] = arguments.split()
    assert main() == 0, arguments
"""
    commands = ["options", "self-test", "demo --mesh 24", "bench --mesh 8"]
    ended = assert_succeeds(script, preamble="", arguments=commands, limit=100, JAX_ENABLE_X64="0")
    assert ended.output.count("PFFTJAX_MAX_CHUNK_BYTES") == 1
    assert ended.output.count("gradient are right on 2 ranks") == 1
    growth = re.findall(r"have ([\d.]+) of the power of linear theory", ended.output)
    assert len(growth) == 1
    assert 0.9 < float(growth[0]) < 1.1
    times = re.findall(r"(forward|inverse), (\w+) +([\d.]+) ([\d.]+) ms", ended.output)
    assert [name for name, *_ in times] == ["forward", "inverse"] * 2
    assert all(0 < float(best) <= float(median) for *_, best, median in times)
