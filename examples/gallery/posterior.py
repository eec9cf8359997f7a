"""How well is the beginning known?

Galaxies trace the density with a bias, and their redshifts move them along the line of sight. From
such a noisy field the universe's initial conditions are inferred, and not the most probable ones
only: all ranks together draw samples of the posterior of each cell's white noise, and of the bias,
by microcanonical Langevin Monte Carlo (Robnik et al. 2023). Its gradients go through
Lagrangian perturbation theory, redshift space and painting. The mean of the samples shows what is
known, their deviation what is not: each sample has all the power of the truth, and agrees with it
where the data speak. `examples/infer.py` is the whole program, which goes on where it was stopped,
on any number of ranks.
"""

import types

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, TABLE, Fact, Folder, draw_map, save, slab, start
from infer import BIAS, Survey

import pfftjax

SPACING, NOISE = 10.0, 1.0
DEPTH = 40.0  # of the slab that is shown [Mpc/h]
UNIT = r" [Mpc/$h$]"


def sampled(survey: Survey, tuning: int, steps: int):
    """The true field, what is observed, and samples by their mean, deviation and last one."""
    truth, observed = jax.jit(survey.observe)()
    chain, step_size = survey.begin(observed, tuning)
    chain, (bias, _, _) = survey.go_on(observed, chain, step_size, 0, steps)
    mean = chain.total / steps
    deviation = jnp.sqrt(chain.square / steps - mean**2)
    last = jax.jit(survey.linear)(chain.state.position["field"])
    return truth, observed, mean, deviation, last, np.asarray(bias)


def main(size: int, out: Folder) -> list[Fact]:
    """Observe, sample, and compare with the truth."""
    settings = {"mesh": size, "box": SPACING * size, "noise": NOISE, "dtype": "float64"}
    survey = Survey(types.SimpleNamespace(**settings, seed=0, grid=None, linear_power=TABLE))
    tuning, steps = (500, 400) if size >= 32 else (60, 120)
    truth, observed, mean, deviation, last, bias = sampled(survey, tuning, steps)
    away = pfftjax.norm(mean - truth, survey.grid) / pfftjax.norm(deviation, survey.grid)
    k, of_mean, _ = survey.correlation(mean, truth)
    _, of_last, power = survey.correlation(last, truth)
    true_power = survey.correlation(truth, truth)[2]
    if out:
        planes = max(round(DEPTH / SPACING), 1)
        fields = (truth, observed, mean, last)
        maps = [slab(field, survey.plan.input, planes) for field in fields]
        if FIRST:
            curves = [np.asarray(x) for x in (k, of_mean, of_last, power / true_power)]
            draw(maps, survey.box, curves, bias, out)
    error = float(abs(np.mean(bias) - BIAS) / np.std(bias))
    return [
        Fact("distance of the truth in posterior deviations, less one", abs(float(away) - 1), 0.5),
        Fact("1 less correlation of the mean on the largest scales", float(1 - of_mean[0]), 0.2),
        Fact("error of the bias in posterior deviations", error, 4.0),
    ]


def draw(maps, box, curves, bias, out):
    """Fields above, correlations and the trace of the bias below."""
    figure, axes = plt.subplot_mosaic(
        [list("abcd"), list("rrtt")], figsize=(13, 6.8), layout="constrained"
    )
    truth, observed, mean, sample = maps
    most = float(np.abs(truth).max())
    field = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "interpolation": "bicubic"}
    galaxies = {"cmap": "magma", "vmin": -1, "vmax": float(np.quantile(observed, 0.995))}
    titles = ("The true beginning", "Galaxies observed", "Mean of samples", "One sample")
    for name, title, image in zip("abcd", titles, (truth, observed, mean, sample), strict=True):
        draw_map(axes[name], image, box, UNIT, **(galaxies if name == "b" else field))
        axes[name].set_title(title)
        if name != "a":
            axes[name].set_ylabel("")
    k, of_mean, of_last, ratio = curves
    axes["r"].plot(k, of_mean, "o-", ms=3, label="correlation of the mean with the truth")
    axes["r"].plot(k, of_last, "s-", ms=3, label="that of one sample")
    axes["r"].plot(k, ratio, "d:", ms=3, label="power of one sample over that of the truth")
    axes["r"].set(xlabel=r"$k$ [$h$/Mpc]", ylim=(-0.1, 1.4))
    axes["r"].legend(fontsize=9)
    axes["r"].grid(alpha=0.3)
    axes["t"].plot(bias, lw=0.8)
    axes["t"].axhline(BIAS, color="k", ls="--", lw=1)
    axes["t"].set(xlabel="step of the chain", title="Bias; dashed: the truth")
    save(figure, out / "posterior.jpg")


if __name__ == "__main__":
    start(main, 64)
