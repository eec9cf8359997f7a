"""Draws the results of the benchmarks in docs/pictures: python -m benchmarks.plot"""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.scaling import STRONG, WEAK, weak_shape

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


CASES = {
    "256:complex64": "complex64",
    "256:float32": "float32 (real)",
    "256:complex128": "complex128",
}
NAMES = {
    "pfftjax": "pfftjax",
    "FFTW-MPI": "FFTW-MPI (destroys its input)",
    "mpi4py_fft": "mpi4py-fft (FFTW, NumPy arrays)",
    "mpi4jax": "jnp.fft and mpi4jax.alltoall",
    "jax shard_map": "jax.shard_map and all_to_all (gloo)",
}


def draw_fft():
    """Bars: forward and inverse together, the best of all rounds."""
    result = json.loads((ROOT / "benchmarks" / "results" / "fft-openmpi.json").read_text())
    figure, axis = plt.subplots(figsize=(8, 3.4))
    names = [name for name in NAMES if name in result["best_ms"]]
    width = 0.8 / len(names)
    cases = {case: label for case, label in CASES.items() if case in result["best_ms"]["pfftjax"]}
    for i, name in enumerate(names):
        entries = [result["best_ms"][name].get(case) for case in cases]
        heights = [e["forward_ms"] + e["inverse_ms"] if e else 0 for e in entries]
        places = [c + (i - (len(names) - 1) / 2) * width for c in range(len(cases))]
        bars = axis.bar(places, heights, 0.92 * width, label=NAMES[name])
        axis.bar_label(bars, [f"{h:.0f}" if h else "" for h in heights], fontsize=7, padding=1)
    axis.set_xticks(range(len(cases)), [f"256³ {label}" for label in cases.values()])
    axis.set_ylabel("forward and inverse [ms]")
    axis.set_title(f"3D FFT on {result['ranks']} ranks, one core each, Open MPI", size=10)
    axis.legend(fontsize=8)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "pictures" / "fft.png", dpi=130)


def draw_alltoall():
    """Lines: bandwidth over size, one panel for each MPI."""
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


def draw_scaling():
    """Lines: time over ranks, and the share of what the cores can copy."""
    path = ROOT / "benchmarks" / "results" / "scaling-openmpi.json"
    if not path.exists():  # python -m benchmarks.scaling makes it
        return
    runs = json.loads(path.read_text())
    ranks = [run["ranks"] for run in runs]
    figure, (strong, weak, share) = plt.subplots(1, 3, figsize=(11, 3.4))
    for shape in STRONG:
        name = "x".join(map(str, shape))
        times = [run["cases"][name]["ms"] for run in runs]
        (line,) = strong.plot(ranks, times, "o-", label=f"{shape[0]}³")
        strong.plot(ranks, [times[0] * ranks[0] / r for r in ranks], ":", color=line.get_color())
        share.plot(
            ranks, [run["cases"][name]["of_copy"] for run in runs], "o-", label=f"{shape[0]}³"
        )
    for shape in WEAK:
        names = ["x".join(map(str, weak_shape(shape, r))) for r in ranks]
        times = [run["cases"][name]["ms"] for run, name in zip(runs, names, strict=True)]
        (line,) = weak.plot(ranks, times, "o-", label=f"{shape[0]}³ a rank")
        weak.plot(ranks, [times[0]] * len(ranks), ":", color=line.get_color())
    for axis, title in ((strong, "strong scaling"), (weak, "weak scaling"), (share, "")):
        axis.set_xticks(ranks)
        axis.set_xlabel("ranks, one core each")
        axis.set_title(title, size=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        if axis is not share:
            axis.set_yscale("log")
            axis.set_ylabel("one direction, complex64 [ms]")
    share.set_title("read and written, of what the cores can copy", size=10)
    share.axhline(0.5, color="gray", lw=0.8, ls="--")
    share.set_ylim(0)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "pictures" / "scaling.png", dpi=110)


def main():
    draw_alltoall()
    draw_fft()
    draw_scaling()


if __name__ == "__main__":
    main()
