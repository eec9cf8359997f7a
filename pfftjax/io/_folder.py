"""A folder that ranks write together, and that takes its name when all of it is there."""

import contextlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator

from mpi4py import MPI

from pfftjax._runtime.agreement import together

from ._mode import check_free


@contextlib.contextmanager
def new_folder(
    target: pathlib.Path,
    comm: MPI.Intracomm,
    operation: str,
    *,
    replace: bool,
    is_ours: Callable[[pathlib.Path], bool],
    kind: str,
) -> Iterator[pathlib.Path]:
    """A name beside `target` for a folder that takes its place at the end, or is removed.

    Collective over `comm`; all ranks must leave the body alike, with an error or without.

    Args:
        target: the path, the same on every rank.
        comm: of the ranks that write.
        operation: for the texts of errors.
        replace: whether what is there may be replaced.
        is_ours: whether what is there is of the same kind.
        kind: what that is, for the text of an error.

    """
    with together(comm, operation):
        if comm.rank == 0 and target.exists() and not is_ours(target):
            raise FileExistsError(f"{target} is there and is no {kind}; give another path")
        if comm.rank == 0 and not replace:
            check_free(target)
    number = comm.bcast(secrets.token_hex(4))
    temporary = target.with_name(f"{target.name}.tmp-{number}")
    before = target.with_name(f"{target.name}.old-{number}")
    try:
        yield temporary
        with together(comm, operation):
            if comm.rank == 0:
                # A folder cannot take the place of one that is not empty in one step.
                if not replace:
                    check_free(target)
                if target.exists():
                    os.rename(target, before)
                os.rename(temporary, target)
                shutil.rmtree(before, ignore_errors=True)
    except BaseException:
        if comm.rank == 0:
            if before.exists() and not target.exists():
                os.rename(before, target)
            shutil.rmtree(temporary, ignore_errors=True)
        raise
