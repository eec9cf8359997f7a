"""Waits of a rank for others before programs run, which the rank does not keep to itself."""

import sys
import time
from collections.abc import Callable

_SECONDS_TO_REPORT = 10.0
# The first wait of all ranks for each other.
ALL_IMPORT = (
    "all ranks of MPI_COMM_WORLD to import pfftjax; import it on every rank, or set "
    "PFFTJAX_LAZY_WORLD=1 and pass a communicator of the ranks that use it"
)


def wait_for(done: Callable[[], bool], rank: int, size: int, what: str) -> None:
    """Poll until something is done, and say after a while what this rank waits for."""
    report = time.monotonic() + _SECONDS_TO_REPORT
    while not done():
        if time.monotonic() > report:
            sys.stderr.write(f"pfftjax: rank {rank} of {size} waits for {what}\n")
            report += 6 * _SECONDS_TO_REPORT
        time.sleep(1e-4)
