"""The C++ core on a simulated MPI: tests/cpp/simulated/ and tools/simulate.py."""

import subprocess

import pytest

from tools import simulate, simulated_faults

pytestmark = pytest.mark.timeout(600)
SCHEDULES = 8_000


@pytest.fixture(scope="module")
def program():
    return simulate.build()


def test_the_same_seed_is_the_same_run(program):
    """What failed once must fail again: in the same process, and in another."""
    command = [program, "--first", "0", "--seeds", "300"]
    once, twice = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--twice"])
    )
    assert once.splitlines()[-1] == twice.splitlines()[-1]
    other = [program, "--first", "1", "--seeds", "300"]
    moved = subprocess.run(other, capture_output=True, text=True, check=True).stdout
    assert moved.splitlines()[-1] != once.splitlines()[-1]


def test_every_schedule_is_right(program):
    done, failures = simulate.run_all(program, 0, SCHEDULES, 2)
    assert not failures, "\n".join(failures)
    assert done == SCHEDULES


def test_faults_can_be_planted():
    """Each fault's text is in the core. That each is found, `python -m tools.simulate --faults`
    shows."""
    for fault in simulated_faults.FAULTS:
        assert fault.old in (simulate.ROOT / "cpp" / fault.file).read_text(), fault.what
