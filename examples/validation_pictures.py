"""The pictures of `validate.py`, which rank 0 draws."""

import functools
import itertools

import matplotlib
import numpy as np
from validation_universe import COMM

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def _by_rank_0(draw):
    """Let a function draw into a file, its first argument, on one rank and where one is named."""

    @functools.wraps(draw)
    def on_this_rank(file, *content):
        if file is not None and COMM.rank == 0:
            draw(file, *content)

    return on_this_rank


def _with_ratio():
    """A figure of curves and, below, of ratios to theory."""
    return plt.subplots(
        2, 1, figsize=(7, 6.5), sharex=True, layout="constrained", height_ratios=(3, 1)
    )


def _save(figure, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)


@_by_rank_0
def draw_multipoles(file, names, curve, table, rate, grown):
    """Multipoles beside Kaiser's: of the table's spectrum, and of the very modes of a run."""
    k, power, known = curve
    low = k < 0.15
    figure, (ax, below) = _with_ratio()
    fine = np.geomspace(k[0] / 1.2, 0.17, 200)
    linear = grown**2 * np.exp(np.interp(np.log(fine), np.log(table.k), np.log(table.linear)))
    factors = (
        1 + 2 / 3 * rate + rate**2 / 5,
        4 / 3 * rate + 4 / 7 * rate**2,
        8 / 35 * rate**2,
    )
    for order, (factor, name) in enumerate(zip(factors, names, strict=True)):
        color = f"C{order}"
        ax.plot(fine, fine * factor * linear, color=color, lw=1, label=f"{name}: Kaiser")
        ax.plot(k[low], (k * known[order])[low], "_", color=color, ms=12)
        ax.plot(k[low], (k * power[order])[low], "o", color=color, ms=4)
        if order < 2:
            below.plot(k[low], (power[order] / known[order])[low] - 1, "o-", color=color, ms=4)
    ax.plot([], [], "_", color="0.4", ms=12, label="Kaiser, these modes")
    ax.plot([], [], "o", color="0.4", ms=4, label="measured, mean of both signs")
    ax.set(ylabel=r"$k\,P_\ell(k)$ [(Mpc/$h)^2$]")
    ax.legend(fontsize=8)
    below.axhspan(-0.01, 0.01, color="0.9")
    below.set(
        xscale="log", xlabel=r"$k$ [$h$/Mpc]", ylabel="over these, less 1", ylim=(-0.04, 0.04)
    )
    _save(figure, file)


@_by_rank_0
def draw_lensing(file, ell, runs, theory):
    """C_l of convergence maps (runs, l) beside the integral, in bands of multipoles."""
    figure, (ax, below) = _with_ratio()
    per_log = ell * (ell + 1) / (2 * np.pi)
    ax.plot(ell, per_log * theory, color="0.4", label="integral over the runs' own P(k, z)")
    edges = np.linspace(ell[0], ell[-1] + 1, 9)
    bands = [(ell >= low) & (ell < high) for low, high in itertools.pairwise(edges)]
    modes = 2 * ell + 1

    def banded(values):
        return np.array([np.average(values[..., b], weights=modes[b], axis=-1) for b in bands])

    centre, found = banded(ell), banded(per_log * runs)
    ratio = banded(runs / theory) - 1
    ax.plot(centre, found, ".", color="C0", alpha=0.3)
    ax.plot(centre, found.mean(-1), "o", color="C0", ms=5, label="mean of the runs")
    ax.plot([], [], ".", color="C0", alpha=0.3, label="a run")
    ax.set(ylabel=r"$\ell(\ell + 1)\,C_\ell / 2\pi$ of the convergence")
    ax.legend(fontsize=8)
    of_mean = ratio.std(-1, ddof=1) / np.sqrt(ratio.shape[-1])
    below.axhspan(-0.02, 0.02, color="0.9")
    below.errorbar(centre, ratio.mean(-1), of_mean, fmt="o", color="C0", ms=4)
    below.set(xlabel=r"multipole $\ell$", ylabel="over the integral, less 1", ylim=(-0.12, 0.12))
    _save(figure, file)


@_by_rank_0
def draw_steps(file, k, ratios):
    """P(k) of runs in few steps over that of many: name -> ratio less 1."""
    figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
    ax.axhspan(-0.01, 0.01, color="0.9")
    for name, ratio in ratios.items():
        ax.plot(k, ratio, lw=1.2, label=name)
    ax.axvline(0.2, color="0.6", lw=0.8, ls=":")
    ax.set(
        xscale="log",
        xlabel=r"$k$ [$h$/Mpc]",
        ylabel="P(k) over that of 100 FastPM steps, less 1",
        ylim=(-0.05, 0.05),
    )
    ax.legend(fontsize=8)
    _save(figure, file)
