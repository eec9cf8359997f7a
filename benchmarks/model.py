"""What a transform will cost on more ranks than are at hand.

    python -m benchmarks.model                                      # fit, check, predict
    mpirun -n 64 python -m benchmarks.model --measure network.json  # of the machine at hand
    python -m benchmarks.model --network network.json               # predict for that machine
    python -m benchmarks.model --between-nodes                      # check on limited links

A transform of N points on R x C ranks is three local transforms and an exchange in each row and
in each column of the grid (slabs: one). Of b bytes a point and V = N / P points a rank,

    local     = V (a log2(N) b / 8 + m b)        arithmetic, and the passes through memory
    within    = (h - 1) latency + V b (h - 1) / q / memory bandwidth
    between   = (q - h) / h latency + V b (q - h) / q / (share of a node's network)

in rows of q ranks, h of which are on one node. Messages are those of
`ExchangeMethod.HIERARCHICAL`: one to each other node, with the parcels of all h ranks. Where such
a message is large it goes in k pieces, up to eight, which travel while the other pieces are
transformed. On slabs of a grid P x 1 one piece is cut again, into l parts, up to eight, for the
transform across all pieces. Of `between` so much less is seen as

    hidden    = min(between, (1 - 1 / k) local s + (1 - 1 / l) min(local t, between / k))

where s is the share of the local work that pieces overlap: that of the transforms before and
after the exchange, of two of three axes (slabs, and the first exchange of pencils) or of one (the
second); t is that of the third axis of those slabs.

`a` and `m` are fitted to this machine's measured transforms (fft-*.json), where the exchange is
part of the passes through memory; latency and bandwidth are measured, or given. What the model
leaves out: congestion beyond `efficiency`, and ranks that wait for slower ones.

`--between-nodes` fits what ranks of this machine need for their own work, TCP included, to the
transforms that benchmarks/methods.py has timed on a link without limit, and predicts those on
limited links from it and from the measured rate of each link.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Sequence

import numpy as np

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
# As `least_piece` in cpp/base/options.h and `kMost` in cpp/fft/pieces.h.
LEAST_PIECE, MOST_PIECES = 1 << 19, 8
# The exchanges of a transform overlap so much of the local work in their pieces: that of two axes,
# or of one. That of slabs P x 1 overlaps the rest in the parts of one piece.
OVERLAPPED = (2 / 3, 1 / 3)
BYTES = {"float32": 4.0, "complex64": 8.0, "float64": 8.0, "complex128": 16.0}


@dataclasses.dataclass(frozen=True)
class Cores:
    """One core: seconds a point and binary digit, and seconds a byte."""

    arithmetic: float
    memory: float

    def local(self, points: float, digits: float, width: float) -> float:
        """Seconds for `points` of `width` bytes."""
        return points * (self.arithmetic * digits * (width / 8) + self.memory * width)


@dataclasses.dataclass(frozen=True)
class Network:
    """Nodes and what is between them; seconds and bytes per second.

    Attributes:
        ranks_a_node: ranks that share a connection.
        latency: of one message.
        node_bandwidth: of the connection of one node, each way.
        memory_bandwidth: of one rank, between ranks of a node.
        efficiency: of the connection when all ranks send to all.
        is_overlapped: whether what goes between nodes goes in pieces, behind transforms.

    """

    ranks_a_node: int
    latency: float
    node_bandwidth: float
    memory_bandwidth: float
    efficiency: float = 1.0
    is_overlapped: bool = True

    def here(self, ranks: int, apart: int) -> int:
        """How many of a row of `ranks`, which are `apart` places from each other, share a node."""
        return min(ranks, max(self.ranks_a_node // apart, 1))

    def within(self, ranks: int, apart: int, volume: float) -> float:
        """Seconds of an exchange of `volume` bytes a rank, as far as it stays on a node."""
        others = self.here(ranks, apart) - 1
        return others * self.latency + volume * others / ranks / self.memory_bandwidth

    def between(self, ranks: int, apart: int, volume: float) -> float:
        """Seconds of what goes to other nodes."""
        here = self.here(ranks, apart)
        share = self.node_bandwidth * self.efficiency / self.ranks_a_node
        away = ranks - here
        return away / here * self.latency + volume * away / ranks / share

    def pieces(self, ranks: int, apart: int, volume: float, planes: int) -> int:
        """In how many pieces that goes, of so many planes; or parts, of a volume of one piece."""
        if not self.is_overlapped:
            return 1
        message = volume / ranks * self.here(ranks, apart)
        return max(min(int(message / LEAST_PIECE), MOST_PIECES, planes), 1)


def predict(
    shape: Sequence[int], grid: tuple[int, int], dtype: str, cores: Cores, network: Network
) -> dict[str, float]:
    """Seconds of one direction on a grid, and where they go: `exchange` is what is not hidden.
    Real dtypes are half spectra.
    """
    rows, columns = grid
    total = math.prod(shape)
    points = total / (rows * columns)
    width = BYTES[dtype]
    local = cores.local(points, math.log2(total), width)
    # Rows of the second dimension are neighbours, those of the first `columns` apart.
    rows_of = [(ranks, apart) for ranks, apart in ((columns, 1), (rows, columns)) if ranks > 1]
    exchanges = 0.0
    for row, overlapped in zip(rows_of, OVERLAPPED, strict=False):
        volume = points * width
        between = network.between(*row, volume)
        planes = shape[0] // rows
        pieces = network.pieces(*row, volume, planes)
        behind = local * overlapped * (1 - 1 / pieces)
        if columns == 1:
            parts = network.pieces(*row, volume / pieces, planes)
            behind += min(local * (1 - overlapped), between / pieces) * (1 - 1 / parts)
        exchanges += network.within(*row, volume) + max(between - behind, 0.0)
    return {"local": local, "exchange": exchanges, "total": local + exchanges}


def best_grid(n: int, ranks: int, *model) -> tuple[tuple[int, int], dict[str, float]]:
    """The grid that the model takes for the fastest, of those that leave no rank idle."""
    grids = [(ranks // c, c) for c in range(1, ranks + 1) if ranks % c == 0]
    able = [g for g in grids if max(g) <= n] or [grids[len(grids) // 2]]
    timed = [(predict((n,) * 3, grid, *model), grid) for grid in able]
    figures, grid = min(timed, key=lambda entry: entry[0]["total"])
    return grid, figures


def fit(path: pathlib.Path) -> tuple[Cores, list[tuple[str, float, float]]]:
    """Least squares of relative errors; the fit, and (case, measured, fitted) milliseconds."""
    result = json.loads(path.read_text())
    cases, rows = [], []
    for case, figures in result["best_ms"]["pfftjax"].items():
        size, dtype = case.split(":")
        n, width = int(size), BYTES[dtype]
        points = n**3 / result["ranks"]
        seconds = 1e-3 * (figures["forward_ms"] + figures["inverse_ms"]) / 2
        cases.append((case, seconds))
        rows.append([points * 3 * math.log2(n) * width / 8 / seconds, points * width / seconds])
    solution, *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    cores = Cores(*(max(float(v), 0.0) for v in solution))
    fitted = [
        (case, 1e3 * seconds, 1e3 * seconds * float(np.dot(row, solution)))
        for (case, seconds), row in zip(cases, rows, strict=True)
    ]
    return cores, fitted


def between_nodes(results: pathlib.Path) -> list[dict]:
    """Forward and inverse transforms on nodes of this machine, as benchmarks/methods.py has timed
    them, beside the model: what ranks need by themselves is fitted to links without limit.
    """
    found = []
    kept = json.loads(results.read_text())
    for nodes in dict.fromkeys(case.split(" on nodes ")[1].split(", ")[0] for case in kept):
        ranks = nodes.split(",")
        cases = {
            (int(case.split("^3")[0]), case.split("rate ")[1]): figures
            for case, figures in kept.items()
            if f"on nodes {nodes}, " in case
        }
        grid, each = (len(ranks), 1), ranks.count(ranks[0])

        def seconds(n, link, memory, overhead, grid=grid, each=each):
            network = Network(each, 0.0, 1e9 / 8 * link["gbit"], math.inf)
            # A link is busy as well while ranks wait for each other.
            cores = Cores(0.0, memory + overhead * grid[0] / (8.0 * n**3))
            return 2 * predict((n,) * 3, grid, "complex64", cores, network)["total"]

        # What is seen of a link depends on the local work, so the fit is repeated.
        memory = overhead = 0.0
        free = [(n, figures) for (n, rate), figures in cases.items() if rate == "none"]
        if len(free) < 2 or len(free) == len(cases):
            continue
        for _ in range(20):
            rows = []
            for n, figures in free:
                volume = 8.0 * n**3 / len(ranks)
                own = 2 * (volume * memory + overhead)
                link = seconds(n, figures["link"], memory, overhead) - own
                measured = 1e-3 * figures["HIERARCHICAL"]["ms"] - link
                rows.append([2 * volume / measured, 2 / measured])
            memory, overhead = map(float, np.linalg.lstsq(np.array(rows), np.ones(len(rows)))[0])
        for (n, rate), figures in cases.items():
            model = 1e3 * seconds(n, figures["link"], memory, overhead)
            measured = figures["HIERARCHICAL"]["ms"]
            found.append(
                {
                    "mpi": results.stem.split("-")[-1],
                    "nodes": nodes,
                    "n": n,
                    "gbit": figures["link"]["gbit"],
                    "is_fitted": rate == "none",
                    "measured_ms": measured,
                    "model_ms": round(model, 2),
                }
            )
    return found


# PencilFFTs.jl (J. I. Polanco, r2c in double precision, one direction), as quoted for nodes of 40
# cores, 32 ranks on each, and Omni-Path at 100 Gb/s: (n, ranks) -> milliseconds.
PUBLISHED = {(512, 128): 55.0, (512, 2048): 7.0, (1024, 1024): 88.0, (2048, 4096): 310.0}
OMNI_PATH = Network(32, 2e-6, 12.5e9, 5e9)
# Perlmutter's CPU nodes: 128 cores, one Slingshot connection of 200 Gb/s.
SLINGSHOT = Network(128, 2e-6, 25e9, 2.5e9)


def calibrated(cores: Cores, network: Network) -> Network:
    """With the efficiency that makes one published figure right: the one whose parts are known."""
    key = (1024, 1024)
    low, high = 0.05, 1.0
    middle = high
    for _ in range(60):
        middle = math.sqrt(low * high)
        trial = dataclasses.replace(network, efficiency=middle)
        seconds = predict((key[0],) * 3, (32, 32), "float64", cores, trial)["total"]
        low, high = (middle, high) if 1e3 * seconds > PUBLISHED[key] else (low, middle)
    return dataclasses.replace(network, efficiency=middle)


def measure(path: pathlib.Path) -> None:
    """Latency and bandwidth of alltoall between the ranks of this job, into `path`."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)

    def seconds(comm: MPI.Comm, bytes_a_pair: int, count: int) -> float:
        a = np.zeros(comm.size * bytes_a_pair, np.uint8)
        b = np.ones_like(a)
        times = []
        for _ in range(5):
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(count // 2):
                comm.Alltoall(a, b)
                comm.Alltoall(b, a)
            times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX) / (count // 2 * 2))
        return min(times)

    large = max(1 << 10, (1 << 25) // comm.size)
    figures = {"ranks_a_node": node.size, "latency": seconds(comm, 8, 100) / max(comm.size - 1, 1)}
    within = node.size > 1 and (node.size - 1) * large / seconds(node, large, 4)
    figures["memory_bandwidth"] = float(comm.allreduce(within or 1e9, MPI.MIN))
    if node.size < comm.size:
        away = (comm.size - node.size) * large
        figures["node_bandwidth"] = node.size * away / seconds(comm, large, 4)
    else:
        figures["node_bandwidth"] = 0.0
    if comm.rank == 0:
        path.write_text(json.dumps(figures, indent=1) + "\n")
        print(figures)


def report(cores: Cores, network: Network, name: str) -> list[dict]:
    """Predictions for complex64, printed as a table and returned."""
    print(f"\nPredicted on {name}, complex64, one direction: seconds (share of exchanges), grid")
    rows = []
    for n in (1024, 2048, 4096, 8192):
        for ranks in (10, 128, 1024, 8192, 98304):
            if n**3 * 32.0 / ranks > 64e9 or ranks > n * n:
                continue
            grid, figures = best_grid(n, ranks, "complex64", cores, network)
            rows.append({"n": n, "ranks": ranks, "grid": grid, **figures})
            share = figures["exchange"] / figures["total"]
            print(f"  {n:5}^3 {ranks:6} ranks: {figures['total']:9.4f} ({share:4.0%})  {grid}")
    return rows


def main() -> None:
    """Fit, check and predict, or measure."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE")
    parser.add_argument(
        "--network", type=pathlib.Path, metavar="FILE", help="the file that --measure wrote"
    )
    parser.add_argument("--between-nodes", action="store_true", help="only this check")
    parser.add_argument("--fft", type=pathlib.Path, default=RESULTS / "fft-openmpi.json")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    checked = [
        row for path in sorted(RESULTS.glob("methods-*.json")) for row in between_nodes(path)
    ]
    print("Between nodes of this machine, forward and inverse, complex64, HIERARCHICAL:")
    for row in checked:
        print(
            f"  {row['mpi']:8} nodes {row['nodes']:8} {row['n']:4}^3 {row['gbit']:6.2f} Gbit/s:"
            f" measured {row['measured_ms']:7.2f} ms, model {row['model_ms']:7.2f}"
            f" ({row['model_ms'] / row['measured_ms'] - 1:+.0%}{', fitted' * row['is_fitted']})"
        )
    if arguments.between_nodes:
        return

    cores, fitted = fit(arguments.fft)
    print(
        f"One core here: {1e9 * cores.arithmetic:.3f} ns a point and digit (complex64), "
        f"{1e-9 / cores.memory if cores.memory else math.inf:.1f} GB/s through memory"
    )
    for case, measured, model in fitted:
        print(f"  {case:>16}: measured {measured:7.2f} ms, model {model:7.2f}")

    omni_path = calibrated(cores, OMNI_PATH)
    print(
        f"\nPublished (PencilFFTs.jl), with {omni_path.efficiency:.0%} of the network, which "
        "makes 1024^3 right:"
    )
    checks = []
    for (n, ranks), published in PUBLISHED.items():
        columns = 32 if ranks % 32 == 0 and ranks // 32 <= n else 1
        grid = ranks // columns, columns
        model = 1e3 * predict((n,) * 3, grid, "float64", cores, omni_path)["total"]
        checks.append({"n": n, "ranks": ranks, "published_ms": published, "model_ms": model})
        print(f"  {n:5}^3 {ranks:5} ranks: {published:6.0f} ms, model {model:6.1f}")

    if arguments.network:
        network = Network(**json.loads(arguments.network.read_text()))
        if network.node_bandwidth == 0:
            parser.error(
                f"{arguments.network} was measured on one node, which says nothing of a network; "
                "measure on two or more"
            )
        rows = report(cores, network, arguments.network.stem)
    else:
        network = dataclasses.replace(SLINGSHOT, efficiency=omni_path.efficiency)
        rows = report(cores, network, "nodes of 128 ranks, 200 Gb/s each")
    results = RESULTS / "model.json"
    results.write_text(
        json.dumps(
            {
                "cores": dataclasses.asdict(cores),
                "network": dataclasses.asdict(network),
                "between_nodes": checked,
                "published": checks,
                "predicted": rows,
            },
            indent=1,
        )
        + "\n"
    )
    print(f"figures in {results.name}")


if __name__ == "__main__":
    main()
