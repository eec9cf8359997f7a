"""What exchanges cost on a cluster: the C++ core on a simulated MPI whose clock has the latencies
and rates of a machine (docs/design/simulated-mpi.md).

    python -m tools.simulate --clock slingshot --nodes 8 --ranks-per-node 32 alltoall 1024
    python -m tools.simulate --clock ethernet --nodes 8 --ranks-per-node 128 transpose 512 \\
        --grid 8x128 --axis 0 --method MESSAGES ALLTOALL
    python -m tools.simulate --clock --references    # all of benchmarks/results/simulated/
    python -m tools.simulate --clock --model         # beside benchmarks/model.py

SIZE is in bytes: for each pair of ranks (alltoall, alltoallv), of a rank's block (allgather,
reduce_scatter), of the vector (allreduce), of a message (ring: to the next rank; message: from
rank 0 to the next node; link: from all ranks of node 0 to the next one; incast: from one rank of
each node to rank 0). For a transpose it is n of n^3 complex64, from pencils along axis 2 to those
along axis 1 (--axis 1, rows of neighbours), or from there along axis 0 (--axis 0). A method of
transposition is a line of kMethods in tests/cpp/simulated/measured.cc; PLAIN, of other exchanges,
does without shared memory, as MPI's own collective does.
"""

import argparse
import dataclasses
import json
import subprocess

from tools import simulate
from tools.launcher import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "simulated"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Nanoseconds, bytes and bytes a nanosecond; tests/cpp/simulated/clock.h says what each is."""

    latency: float
    overhead: float
    gap: float
    rate: float
    copies: int = 0
    latency_in_node: float = 150
    overhead_in_node: float = 100
    flag: float = 100
    core_rate: float = 20
    memory_rate: float = 340
    cache: float = 4.5 * 2**20
    eager: float = 16384
    congestion: int = 1


MACHINES = {
    # One network adapter of 200 Gb/s for 128 cores, as Perlmutter's CPU nodes have it: the rate is
    # the adapter's, latency and both overheads make the 2 us that benchmarks/model.py has for a
    # short message.
    "slingshot": Machine(latency=1400, overhead=300, gap=5, rate=25),
    # TCP over 25 Gb/s: latency and both overheads make the 25 us that osu_latency shows for MPICH.
    "ethernet": Machine(latency=15_000, overhead=5_000, gap=200, rate=3.125, copies=1),
}
SOURCES = {
    "slingshot": {
        "rate": "200 Gb/s an adapter: De Sensi et al., SC20, arXiv:2008.08886",
        "latency + 2 overhead": "2 us, as benchmarks/model.py; how it is split is assumed",
        "gap": "assumed: 200 million packets a second",
        "copies": "none: the adapter matches and moves (glennklockwood.com/garden/slingshot)",
    },
    "ethernet": {
        "rate": "25 Gb/s, as between two c5.18xlarge of AWS (open-mpi/ompi issue 6521)",
        "latency + 2 overhead": "25 us: osu_latency of MPICH over TCP (gist "
        "3af692a5475bdd4ed836b5a18197a209 of jfgrimm); how it is split is assumed",
        "gap": "assumed: 5 million packets a second in the kernel",
        "copies": "the kernel copies on both sides",
    },
    "all": {
        "latency_in_node + 2 overhead_in_node": "0.35 us: osu_latency through shared memory on "
        "AWS hpc6a (ofiwg/libfabric pull request 8680)",
        "memory_rate": "assumed: 0.83 of 16 channels of DDR4-3200, 409.6 GB/s, two EPYC 7763",
        "cache": "L2 and a core's part of L3 of an EPYC 7763: 0.5 + 4 MiB",
        "core_rate, flag, eager": "assumed",
        "collectives": "MPICH's algorithms and default thresholds (Thakur, Rabenseifner and "
        "Gropp, 2005)",
    },
}


@dataclasses.dataclass(frozen=True)
class Case:
    """An exchange, its size, and the ranks that make it."""

    exchange: str
    size: int
    nodes: int
    ranks_per_node: int
    method: str | None = None
    grid: str | None = None
    axis: int | None = None

    def arguments(self) -> list[str]:
        """As the program takes them."""
        found = [self.exchange, str(self.size), "--nodes", str(self.nodes)]
        found += ["--ranks-per-node", str(self.ranks_per_node)]
        for name in ("method", "grid", "axis"):
            value = getattr(self, name)
            found += [] if value is None else [f"--{name}", str(value)]
        return found

    def __str__(self) -> str:
        """For people."""
        size = f"{self.size}^3" if self.exchange == "transpose" else f"{self.size} bytes"
        where = f", grid {self.grid}, axis {self.axis}" if self.grid else ""
        how = f", {self.method}" if self.method else ""
        return f"{self.exchange} {size}, {self.nodes} x {self.ranks_per_node} ranks{where}{how}"


def build(jobs=2):
    """The program for measurements: with the sizes of the core, which tests have no need of."""
    folder = ROOT / "build" / "simulated-clock"
    return simulate.build(folder=folder, jobs=jobs, has_sizes=True)


def run(program, machine, case, *more):
    """What the program says of one case; raises RuntimeError where it says that it is wrong."""
    command = [program, "--clock", *case.arguments()]
    for name, value in dataclasses.asdict(machine).items():
        command += ["--machine", f"{name}={value:.17g}"]
    ended = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{case}: {ended.stderr.strip() or f'ended with {ended.returncode}'}")
    return json.loads(ended.stdout)


def figures_of(machine, case, found):
    """The part of it that is the same on every machine, and how long the links take at least."""
    kept = ("seconds", "messages_between_nodes", "bytes_between_nodes")
    wire = 1e-9 * found["bytes_between_nodes"] / case.nodes / machine.rate
    asked = {name: value for name, value in dataclasses.asdict(case).items() if value is not None}
    return asked | {name: found[name] for name in kept} | {"wire_seconds": round(wire, 9)}


def show(case, figures, found):
    """One line."""
    print(
        f"{case}: {1e3 * figures['seconds']:.4f} ms ({1e3 * figures['wire_seconds']:.4f} on the "
        f"links); {figures['messages_between_nodes']} messages and "
        f"{figures['bytes_between_nodes']} bytes between nodes; here {found['real_seconds']:.1f} "
        f"s, {found['real_mebibytes']} MiB",
        flush=True,
    )


def record(name, machine, exchanges):
    """Puts these in place of the same cases in the machine's file."""
    path = RESULTS / f"{name}.json"
    fields = [field.name for field in dataclasses.fields(Case)]

    def case_of(entry):
        return tuple(str(entry.get(field, "")) for field in fields)

    before = json.loads(path.read_text())["exchanges"] if path.exists() else []
    all_cases = {case_of(entry): entry for entry in [*before, *exchanges]}
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": dataclasses.asdict(machine),
        "sources": SOURCES[name] | SOURCES["all"],
        "exchanges": [all_cases[key] for key in sorted(all_cases)],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


METHODS = ("MESSAGES", "ALLTOALL", "HIERARCHICAL")
GRIDS = ("8x128", "32x32", "128x8")


def references():
    """What other methods are measured against."""
    for exchange in ("alltoall", "alltoallv", "allgather", "reduce_scatter", "allreduce"):
        yield Case(exchange, 1024, 8, 32, "PLAIN")
    for size in (64, 256):  # where it differs from MPI's own
        for method in ("PLAIN", "HIERARCHICAL"):
            yield Case("alltoall", size, 8, 32, method)
    for grid in GRIDS:
        for axis in (1, 0):
            for method in METHODS:
                yield Case("transpose", 512, 8, 128, method, grid, axis)


def beside_the_model():
    """A dozen transposes, for which benchmarks/model.py has a formula."""
    yield from (case for case in references() if case.method == "MESSAGES")
    for n, nodes, ranks, grid in (
        (256, 8, 32, "16x16"),
        (128, 4, 16, "8x8"),
        (64, 8, 32, "16x16"),
    ):
        for axis in (1, 0):
            yield Case("transpose", n, nodes, ranks, "MESSAGES", grid, axis)
    yield Case("transpose", 256, 8, 32, "MESSAGES", "1x256", 1)
    yield Case("transpose", 256, 8, 32, "ALLTOALL", "1x256", 1)


def compare(program):
    """The clock's time over the model's, for each case; printed and written."""
    from benchmarks import model

    machine, rows = MACHINES["slingshot"], []
    print("clock over model (Slingshot, all of the link's rate):")
    for case in beside_the_model():
        found = run(program, machine, case)
        ranks, apart = _row(case)
        network = dataclasses.replace(model.SLINGSHOT, ranks_a_node=case.ranks_per_node)
        volume = case.size**3 * 8 / (case.nodes * case.ranks_per_node)
        formula = network.within(ranks, apart, volume) + network.between(ranks, apart, volume)
        ratio = found["seconds"] / formula
        print(f"  {case}: {1e3 * found['seconds']:.4f} / {1e3 * formula:.4f} ms = {ratio:.2f}")
        row = figures_of(machine, case, found)
        rows.append(row | {"model_seconds": round(formula, 9), "ratio": round(ratio, 3)})
    (RESULTS / "model.json").write_text(json.dumps({"slingshot": rows}, indent=1) + "\n")


def _row(case):
    """Ranks of a row along the axis, and how far apart they are."""
    rows, columns = map(int, case.grid.split("x"))
    return (columns, 1) if case.axis == 1 else (rows, columns)


def _changed(machine, changes):
    """The machine with numbers of the command line, which are NAME=VALUE."""
    numbers = {name: float(value) for name, _, value in (one.partition("=") for one in changes)}
    known = [field.name for field in dataclasses.fields(machine)]
    if unknown := [name for name in numbers if name not in known]:
        raise SystemExit(f"a machine has no {', '.join(unknown)}; it has {', '.join(known)}")
    return dataclasses.replace(machine, **numbers)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clock", nargs="?", choices=[*MACHINES], const="slingshot")
    parser.add_argument("exchange", nargs="?")
    parser.add_argument("size", nargs="?", type=int)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--method", nargs="+", help="as MESSAGES, ALLTOALL or PLAIN")
    parser.add_argument("--grid", help="rows x columns of the process grid, as 8x128")
    parser.add_argument("--axis", type=int, choices=(0, 1), default=1)
    parser.add_argument("--set", nargs="+", metavar="NAME=VALUE", default=[], dest="changes")
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--model", action="store_true")
    arguments = parser.parse_args()
    program = build()
    if arguments.model:
        compare(program)
        return 0
    if arguments.references:
        for name, machine in MACHINES.items():
            print(name)
            measure(program, name, machine, references(), is_kept=True)
        return 0
    if arguments.exchange is None or arguments.size is None:
        parser.error("give an exchange and a size, --references or --model")
    case = Case(arguments.exchange, arguments.size, arguments.nodes, arguments.ranks_per_node)
    methods = arguments.method or [None]
    if arguments.exchange == "transpose":
        if arguments.grid is None:
            parser.error("a transpose needs a --grid of as many ranks as there are")
        case = dataclasses.replace(case, grid=arguments.grid, axis=arguments.axis)
        methods = arguments.method or METHODS
    cases = [dataclasses.replace(case, method=method) for method in methods]
    machine = _changed(MACHINES[arguments.clock], arguments.changes)
    try:
        measure(program, arguments.clock, machine, cases, is_kept=not arguments.changes)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    return 0


def measure(program, name, machine, cases, is_kept):
    """Runs, prints and keeps them; not where the numbers are not those of the machine."""
    exchanges = []
    for case in cases:
        found = run(program, machine, case)
        exchanges.append(figures_of(machine, case, found))
        show(case, exchanges[-1], found)
    if is_kept:
        record(name, machine, exchanges)
