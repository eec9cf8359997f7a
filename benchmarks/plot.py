"""Draws docs/pictures/alltoall.png from benchmarks/results: python -m benchmarks.plot"""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERIES = {
    "ours_us": ("pfftjax, inside a jitted program", "o-"),
    "raw_chained_us": ("raw MPI, each exchange on the last one's result", "s--"),
    "raw_us": ("raw MPI, the same two buffers each time", "^:"),
}


def size_name(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def main():
    results = [
        json.loads(path.read_text())
        for path in sorted((ROOT / "benchmarks" / "results").glob("collectives-*.json"))
    ]
    figure, axes = plt.subplots(
        1, len(results), figsize=(5.2 * len(results), 3.6), sharey=True, squeeze=False
    )
    for axis, result in zip(axes[0], results, strict=True):
        rows = result["alltoall"]
        sizes = [row["bytes"] for row in rows]
        for key, (label, style) in SERIES.items():
            # Bytes that a rank exchanges, its own block included, per microsecond: MB/s.
            axis.plot(sizes, [1e-3 * r["bytes"] / r[key] for r in rows], style, label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(sizes, [size_name(size) for size in sizes])
        axis.set_xlabel("size of the array on each rank")
        axis.set_title(f"{result['mpi']}, {result['ranks']} ranks, JAX {result['jax']}", size=10)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("alltoall [GB/s a rank]")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "pictures" / "alltoall.png", dpi=130)


if __name__ == "__main__":
    main()
