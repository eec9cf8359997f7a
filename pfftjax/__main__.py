"""``python -m pfftjax info`` and ``python -m pfftjax doctor``, on one rank or under a launcher."""

import argparse
import sys

from pfftjax.diagnostics.doctor import doctor
from pfftjax.diagnostics.info import info


def main() -> int:
    """Do what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pfftjax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, MPI, cores, options and devices; runs nothing")
    commands.add_parser(
        "doctor",
        help="compare ranks, check results, measure exchanges, and say what to change; under "
        "mpirun or srun with as many ranks as the job will have",
    )
    if parser.parse_args().command == "doctor":
        return doctor()
    here = info()
    if here.rank == 0 and not here.launched_rank:
        print(here)
    return 0


if __name__ == "__main__":
    sys.exit(main())
