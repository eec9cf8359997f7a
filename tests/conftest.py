"""Tests under MPI: one verdict for all ranks, no hang, one terminal.

A test that fails on one rank only would leave the others waiting in its next collective. After
each test, its set-up and its teardown the ranks compare outcomes: if any failed, all fail. A rank
that fails and finds nobody to compare with (they wait for it inside) shows its failure and ends
the job.
"""

import collections
import contextlib
import gc
import json
import os
import pathlib
import sys
import tempfile
import time
import traceback
import zlib

import pytest
from mpi4py import MPI

_CHECKS_TYPES = bool(os.environ.get("PFFTJAX_TEST_TYPES"))
if _CHECKS_TYPES:  # what functions take and return is what they say
    from jaxtyping import install_import_hook

    # As for Python's type checkers, an int is a float and a float is a complex number. It is a
    # text, for the hook writes it into each module, and names nothing of `tests`, which pytest
    # imports in a way of its own.
    install_import_hook(
        "pfftjax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )

if os.environ.get("JAX_COMPILATION_CACHE_DIR"):  # launcher.kept_programs sets it
    from tests import compiled_once

    compiled_once.install()

_RANK = MPI.COMM_WORLD.rank
_SIZE = MPI.COMM_WORLD.size
_VERDICTS = MPI.COMM_WORLD.Dup()
_SECONDS_FOR_A_VERDICT = 30.0


def pytest_addoption(parser):
    parser.addoption(
        "--share-ranks",
        action="store_true",
        help="leave out tests whose marker `ranks` does not name this number of ranks",
    )
    parser.addoption(
        "--every-other-case",
        action="store_true",
        help="leave out the second case of each test, the fourth, and so on",
    )


def pytest_collection_modifyitems(config, items):
    """Where all tests run on 2, 3 and 4 ranks, let these numbers share the work, by marker.

    Many ranks cost most on few cores. Derivatives and simulations run on four ranks, which have
    grids of rows and columns; tests that know no grids, or of which the parts run on four, run on
    three. Of a test with several cases and no marker, each runs on one rank and on one of these
    numbers, which take turns; the test's name decides which of them comes first.
    """
    shares, every_other = map(config.getoption, ("--share-ranks", "--every-other-case"))
    chosen, left_out = [], []
    cases = collections.Counter()
    for item in items:
        marker = item.get_closest_marker("ranks")
        if marker and not (marker.args and set(marker.args) <= {1, 2, 3, 4}):
            raise pytest.UsageError(f"{item.nodeid}: `ranks` takes numbers from 1 to 4")
        if item.get_closest_marker("wrong_types"):
            if marker and marker.args == (1,):
                raise pytest.UsageError(f"{item.nodeid}: `wrong_types` needs more than one rank")
            if _CHECKS_TYPES:
                item.add_marker(pytest.mark.skip(reason="hands over wrong types on purpose"))
        function = item.nodeid.partition("[")[0]
        number = cases[function]
        cases[function] += 1
        is_odd = number % 2 == 1
        # Who leaves out numbers of ranks in another way is not asked to share.
        if not (marker or item.get_closest_marker("skipif")) and hasattr(item, "callspec"):
            turn = zlib.crc32(function.encode()) + number
            is_elsewhere = _SIZE > 1 and _SIZE != 2 + turn % 3
        else:
            is_elsewhere = marker and _SIZE not in marker.args
        leaves = (shares and is_elsewhere) or (every_other and is_odd)
        (left_out if leaves else chosen).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def pytest_collection_finish():
    """Look for garbage rarely, and not among what JAX and the tests consist of: a tenth of the
    time of all tests went into that.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    gc.disable()  # while modules are imported
    config.addinivalue_line(
        "markers", "ranks(1, 2): the numbers of ranks on which --share-ranks runs a test; else all"
    )
    config.addinivalue_line(
        "markers", "messages: sends messages of its own; also run in small chunks"
    )
    config.addinivalue_line(
        "markers", "fully_optimised: order is at stake; also run with all of XLA's passes"
    )
    config.addinivalue_line("markers", "memory: large arrays, or measures; not in small chunks")
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line(
        "markers", "wrong_types: hands over wrong types; not where annotations are checked"
    )
    config.addinivalue_line("markers", "reproducer: repeats what once hung, or ended right jobs")
    if _RANK > 0:  # the report of rank 0 speaks for all
        config.pluginmanager.unregister(name="terminalreporter")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Clear what JAX has compiled: kept to the end, all modules' programs take 3 GB a rank."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def _gather_outcomes(code):
    """The codes of all ranks, or None if some rank does not answer."""
    import numpy as np

    mine = np.array([code])
    all_codes = np.empty(_SIZE, mine.dtype)
    request = _VERDICTS.Iallgather(mine, all_codes)
    limit = time.monotonic() + _SECONDS_FOR_A_VERDICT
    while not request.Test():
        if code == _FAILED and time.monotonic() > limit:
            return None
        time.sleep(1e-3)
    return all_codes


_PASSED, _SKIPPED, _FAILED = range(3)


def _share(outcome, item, phase):
    """Let a failure on one rank fail the phase of a test on all, so that they go on together."""
    error = outcome.excinfo
    if error is None:
        code = _PASSED
    else:
        code = _SKIPPED if issubclass(error[0], pytest.skip.Exception) else _FAILED
    if _SIZE == 1:
        return
    codes = _gather_outcomes(code)
    if code == _FAILED and (codes is None or _RANK > 0):
        stuck = "; the others are stuck in it" if codes is None else ""
        capture = item.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            sys.stderr.write(
                f"{''.join(traceback.format_exception(*error))}"
                f"{item.nodeid}: {phase} failed on rank {_RANK}{stuck}\n"
            )
            sys.stderr.flush()
    if codes is None:
        MPI.COMM_WORLD.Abort(1)
    elif code != _FAILED and _FAILED in codes:
        ranks = [rank for rank, other in enumerate(codes) if other == _FAILED]
        outcome.force_exception(AssertionError(f"{phase} failed on rank(s) {ranks}"))
    elif phase == "setup" and len(set(codes)) > 1:
        # The others would wait in the test for those that leave it out.
        ranks = [rank for rank, other in enumerate(codes) if other == _SKIPPED]
        outcome.force_exception(AssertionError(f"skipped on rank(s) {ranks} only"))


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_setup(item):
    _share((yield), item, "setup")


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item):
    _share((yield), item, "call")


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_teardown(item):
    _share((yield), item, "teardown")


def _log(nodeid, outcome):
    """Note for tools/run.py what became of a test, or of a module that may be left out whole."""
    log = os.environ.get("PFFTJAX_TEST_LOG")
    if log and _RANK == 0:
        with open(log, "a") as file:
            file.write(json.dumps({"test": nodeid, "outcome": outcome}) + "\n")


def pytest_collectreport(report):
    if report.nodeid.endswith(".py"):
        _log(report.nodeid, report.outcome)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    # A skipped test has a report for its set-up only.
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        _log(item.nodeid, report.outcome)


@pytest.fixture
def folder():
    """A folder of all ranks, removed at the end."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory()) if _RANK == 0 else None
        yield pathlib.Path(_VERDICTS.bcast(path))
        _VERDICTS.barrier()
