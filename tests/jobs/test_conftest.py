"""The hooks of tests/conftest.py: a failure on one rank is a verdict on all ranks, and shown."""

import textwrap

import pytest

from tests.jobs.job import assert_ends_in_error, assert_succeeds
from tools import run

pytestmark = pytest.mark.timeout(240)

MODULE = """
import pytest
from mpi4py import MPI

comm = MPI.COMM_WORLD.Dup()

@pytest.fixture(scope="module")
def made_by_all():
    if comm.rank == 1:
        raise RuntimeError("the fixture of rank 1")
    return 1

@pytest.fixture
def taken_down_by_all():
    yield 1
    if comm.rank == 1:
        raise RuntimeError("the teardown of rank 1")

def test_setup(made_by_all):
    comm.Barrier()

def test_the_same_fixture(made_by_all):
    comm.Barrier()

def test_call():
    assert comm.rank == 0, "the assertion of rank 1"

def test_teardown(taken_down_by_all):
    comm.Barrier()

@pytest.mark.skipif(comm.rank == 1, reason="one rank")
def test_skipped_on_one():
    comm.Barrier()

def test_after_all_that():
    comm.Barrier()
"""
PYTEST = """
import sys
import pytest
arguments = ["-q", "--color=no", "-p", "tests.conftest", "--rootdir={0}", "-c/dev/null", "{0}"]
sys.exit(pytest.main(arguments))
"""
# What a program has of PREAMBLE.
MARK = """
import time
def failing():
    print(f"FAILING AT {time.time()}", flush=True)
"""


def write(folder, **modules):
    """A folder of test modules, and a program that runs them."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return PYTEST.format(folder)


def test_each_phase_of_a_test_has_one_verdict(tmp_path):
    """Nothing hangs, each failure is shown by the rank that had it, and the next test runs."""
    program = write(tmp_path, test_one_rank=MODULE)
    assert_ends_in_error(
        program,
        "the fixture of rank 1",
        "the assertion of rank 1",
        "the teardown of rank 1",
        "test_call: call failed on rank 1",
        r"setup failed on rank\(s\) \[1\]",
        r"call failed on rank\(s\) \[1\]",
        r"teardown failed on rank\(s\) \[1\]",
        r"skipped on rank\(s\) \[1\] only",
        "1 failed, 2 passed, 1 warning, 4 errors|1 failed, 2 passed, 4 errors",
        preamble=MARK,
    )


def test_a_module_left_out_is_a_test_that_never_ran(tmp_path):
    """`importorskip` of a module's whole escapes no count of what ran."""
    program = write(
        tmp_path,
        test_left_out="""
            import pytest
            pytest.importorskip("no_such_module")
            def test_one(): pass
        """,
        test_there="def test_two(): pass",
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    assert run.never_ran(logs) == []
    assert_succeeds(program, ranks=1, preamble="", PFFTJAX_TEST_LOG=str(logs / "one.jsonl"))
    assert run.never_ran(logs) == ["test_left_out.py"]


def test_a_rank_that_fails_while_others_wait_in_the_test(tmp_path):
    """It shows its failure, and ends the job."""
    program = write(
        tmp_path,
        test_stuck="""
            from mpi4py import MPI
            from tests import conftest
            conftest._SECONDS_FOR_A_VERDICT = 1.0
            def test_one():
                assert MPI.COMM_WORLD.rank == 0, "the assertion of rank 1"
                MPI.COMM_WORLD.Barrier()
        """,
    )
    assert_ends_in_error(
        program,
        "the assertion of rank 1",
        "call failed on rank 1; the others are stuck in it",
        preamble=MARK,
    )
