"""What the tests of files share."""

import contextlib
import pathlib
import tempfile

import pytest

from tests.helpers import CONTROL, RANK


@pytest.fixture
def folder():
    """A folder of all ranks, removed at the end."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory()) if RANK == 0 else None
        yield pathlib.Path(CONTROL.bcast(path))
        CONTROL.barrier()
