"""The model of benchmarks/model.py beside published transforms on GPUs.

    python -m benchmarks.model_of_gpus

On GPUs the local work is that of passes through memory. The model hides nothing of an exchange,
as two of the libraries below exchange by NCCL, in one go, and transform when all of it is there.
Ranks of a node are linked to each other (`memory_bandwidth`), and share the connections of the
node; messages have no latency. Times are of one direction, from slabs to slabs, and do not come
back to the order of axes that they began with.

    cuDecomp     a DGX A100 of 8 GPUs with NVSwitch: NVIDIA/cuDecomp on GitHub,
                 benchmark/heatmap_scripts/sample/benchmark_c2c.dgxa100.8gpu.n2048*.csv, NCCL,
                 means of both directions. Its exchange alone is half of `at_results` for 1 x 8
    2DECOMP&FFT  Leonardo, nodes of 4 A100 (NVLink 3) and 400 Gb/s: 2decomp-fft/RunScalability4D2D
                 on GitHub, ResultsLeonardo, 2025-10, grids of 1 x N, NCCL, forward
    cuFFTMp      Selene, nodes of 8 A100 and 200 GB/s: the developers' blog of NVIDIA, "Multinode
                 Multi-GPU: Using NVIDIA cuFFTMp FFTs at Scale" (2022), single precision; it does
                 not say which direction. By NVSHMEM, which sends while it transforms

The memory and the links between GPUs are fitted to one transform of the DGX A100 and to one of a
node of Leonardo, whose exchanges were timed by themselves; and the share of Leonardo's network to
one on four nodes. Selene has the numbers of the DGX A100, and all of its network.
"""

import dataclasses
from collections.abc import Sequence

from benchmarks.model import Cores, Network, predict


@dataclasses.dataclass(frozen=True)
class Machine:
    """Nodes of GPUs, and what was published of them.

    Attributes:
        library: which was timed.
        gpus_a_node: that share `node_bandwidth`, in bytes per second.
        node_bandwidth: of all connections of a node, each way.
        fitted: the transform on one node that is right, as in `published`.
        exchange_ms: of that transform.
        published: mesh, dtype, GPUs and milliseconds.

    """

    library: str
    gpus_a_node: int
    node_bandwidth: float
    fitted: tuple[int, str, int, float]
    exchange_ms: float
    published: Sequence[tuple[int, str, int, float]]


DGX = Machine(
    "cuDecomp",
    8,
    200e9,
    (2048, "complex64", 8, 96.17),
    95.95 / 2,
    [(2048, "complex64", 8, 96.17), (2048, "complex128", 8, 178.32)],
)
LEONARDO = Machine(
    "2DECOMP&FFT",
    4,
    50e9,
    (1024, "complex64", 4, 31.74),
    12.335,
    [
        (512, "complex64", 4, 4.341),
        (512, "complex128", 4, 8.240),
        (1024, "complex64", 4, 31.74),
        (1024, "complex128", 4, 63.37),
        (512, "complex64", 8, 8.250),
        (512, "complex128", 8, 15.33),
        (1024, "complex64", 8, 58.78),
        (1024, "complex128", 8, 117.7),
        (512, "complex64", 16, 5.750),
        (512, "complex128", 16, 12.32),
        (1024, "complex64", 16, 44.85),
        (1024, "complex128", 16, 95.80),
        (2048, "complex64", 16, 518.6),
        (2048, "complex128", 16, 698.6),
        (1024, "complex64", 32, 26.30),
        (1024, "complex128", 32, 52.00),
        (2048, "complex64", 32, 252.1),
        (2048, "complex128", 32, 595.7),
        (2048, "complex64", 64, 120.7),
        (2048, "complex128", 64, 227.7),
        (2048, "complex64", 128, 57.64),
        (2048, "complex128", 128, 109.8),
    ],
)
# The one on several nodes that is right.
OVER_NODES = (1024, "complex64", 16, 44.85)
SELENE = dataclasses.replace(
    DGX,
    library="cuFFTMp",
    published=[(2048, "complex64", 8, 78.0), (2048, "complex64", 2048, 4.0)],
)


def milliseconds(n: int, dtype: str, gpus: int, model: tuple[Cores, Network]) -> float:
    """The model's time of one direction on slabs."""
    return 1e3 * predict((n,) * 3, (gpus, 1), dtype, *model)["total"]


def fit(machine: Machine, over_nodes: tuple[int, str, int, float] | None) -> tuple[Cores, Network]:
    """What makes `machine.fitted`, its exchange and `over_nodes` right."""
    n, _, gpus, ms = machine.fitted
    volume = 8.0 * n**3 / gpus
    sent = volume * (gpus - 1) / gpus
    network = Network(
        ranks_a_node=machine.gpus_a_node,
        latency=0.0,
        node_bandwidth=machine.node_bandwidth,
        memory_bandwidth=sent / (1e-3 * machine.exchange_ms),
        is_overlapped=False,
    )
    cores = Cores(0.0, 1e-3 * (ms - machine.exchange_ms) / volume)
    if over_nodes is not None:
        *case, ms = over_nodes
        whole = milliseconds(*case, (cores, network))
        half = milliseconds(*case, (cores, dataclasses.replace(network, efficiency=0.5)))
        # Half of the network doubles the time between nodes, and that alone.
        between = half - whole
        efficiency = between / (ms - (whole - between))
        network = dataclasses.replace(network, efficiency=efficiency)
    return cores, network


def checked() -> list[dict]:
    """Published times beside the model's."""
    rows = []
    for machine, over_nodes in ((DGX, None), (SELENE, None), (LEONARDO, OVER_NODES)):
        model = fit(machine, over_nodes)
        fitted = [over_nodes] + [machine.fitted] * (machine is not SELENE)
        for case in machine.published:
            n, dtype, gpus, ms = case
            rows.append(
                {
                    "library": machine.library,
                    "n": n,
                    "dtype": dtype,
                    "gpus": gpus,
                    "gpus_a_node": machine.gpus_a_node,
                    "published_ms": ms,
                    "model_ms": milliseconds(n, dtype, gpus, model),
                    "is_fitted": case in fitted,
                }
            )
    return rows


if __name__ == "__main__":
    for machine, over_nodes in ((DGX, None), (LEONARDO, OVER_NODES)):
        cores, network = fit(machine, over_nodes)
        print(
            f"{machine.library}: {1e-9 / cores.memory:.0f} GB/s of a GPU's array through a whole "
            f"transform, {1e-9 * network.memory_bandwidth:.0f} GB/s from each GPU of a node, "
            f"{network.efficiency:.0%} of the network"
        )
    for row in checked():
        print(
            f"  {row['library']:12} {row['n']:4}^3 {row['dtype']:10} {row['gpus']:4} GPUs: "
            f"{row['published_ms']:6.1f} ms, model {row['model_ms']:6.1f}"
            f" ({row['model_ms'] / row['published_ms'] - 1:+.0%}{', fitted' * row['is_fitted']})"
        )
