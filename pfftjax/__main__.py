"""``pfftjax``, or ``python -m pfftjax``: on one process, or under mpirun or srun on many."""

import argparse
import inspect
import sys

import pfftjax
from pfftjax._runtime import options
from pfftjax.diagnostics.bench import bench
from pfftjax.diagnostics.demo import demo
from pfftjax.diagnostics.doctor import doctor
from pfftjax.diagnostics.info import info
from pfftjax.diagnostics.self_test import self_test

_COMMANDS = {
    "info": "versions, MPI, cores, options and devices; runs nothing",
    "doctor": "compare ranks, check results, measure exchanges, and say what to change; with as "
    "many ranks as the job will have",
    "self-test": "operations, transforms and derivatives with known results",
    "demo": "a small universe, beside linear theory",
    "bench": "how long transforms take, beside those of JAX in one process",
    "options": "the variables PFFTJAX_..., and what they set",
}


def main() -> int:
    """Do what the arguments say; the exit status."""
    parser = argparse.ArgumentParser(prog="pfftjax", description=__doc__)
    parser.add_argument("--version", action="version", version=f"pfftjax {pfftjax.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    added = {name: commands.add_parser(name, help=text) for name, text in _COMMANDS.items()}
    for name, points in (("demo", 64), ("bench", 128)):
        added[name].add_argument(
            "--mesh", type=int, default=points, help=f"points along each axis ({points})"
        )
    arguments = parser.parse_args()
    here = info()
    first = here.rank == 0 and not here.launched_rank
    match arguments.command:
        case "doctor":
            return doctor()
        case "self-test":
            return self_test()
        case "demo":
            return demo(arguments.mesh)
        case "bench":
            return bench(arguments.mesh)
    if first:
        texts = {"info": str(here), "options": inspect.getdoc(options)}
        print(texts.get(arguments.command) or parser.format_help())
    return 0


if __name__ == "__main__":
    sys.exit(main())
