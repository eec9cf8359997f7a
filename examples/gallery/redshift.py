"""The same universe, as redshifts show it.

A telescope sees how fast a galaxy recedes, not how far away it is, and so places it too near or
too far by its own motion along the line of sight. Matter that falls into a wall from both sides
makes the wall look denser: structures are squashed along the line of sight, and the spectrum
depends on the angle to it. The plot has its multipoles (points) beside those of linear theory
(Kaiser 1987). They are the mean of two universes whose waves have opposite signs and fixed
amplitudes (Angulo & Pontzen 2016), at a redshift of 1. The lines are for an infinite volume; the
lowest shells have few waves, of which not all directions are there, and so scatter around them.
What is checked are these shells, beside linear theory of the very waves in them. On smaller
scales matter moves in ways that linear theory does not know.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, draw_map, planck, save, slab, start

import pfftjax
from pfftjax import observables, pm, spectral

SPACING, DEPTH, A = 8.0, 24.0, 0.5  # of the particles; of the slab [Mpc/h]; scale factor
UNIT = r" [Mpc/$h$]"
NAMES = ("monopole", "quadrupole", "hexadecapole")


def main(size: int, out: Folder) -> list[Fact]:
    """Simulate a pair, look at both, and compare with linear theory."""
    theory, box = planck(), SPACING * size
    plan = pfftjax.PencilFFT((size,) * 3, pfftjax.ProcessGrid((None, 1)), real=True)
    steps = np.linspace(0.1, A, 9 if size >= 64 else 4)
    run = pm.Simulation(plan, box, theory.cosmology, steps, power=theory.power)
    mesh = run.mesh

    @jax.jit
    def noise():
        return pm.fixed_amplitudes(pm.nested_noise(jax.random.key(5), plan, "float32"), plan)

    @jax.jit
    def seen(noise):
        particles = run.run(noise)
        moved = observables.redshift_space(particles, mesh, box, theory.cosmology, 1)
        delta = pm.density_contrast(moved, mesh, kernel="pcs")
        multipoles = observables.power_multipoles(delta, mesh, box, 1, kernel="pcs")
        # There are as many particles as points on this coarser mesh, where they show as fields.
        return [run.density(x) for x in (particles, moved)], multipoles

    @jax.jit
    def linear(noise):
        now, today = pm.growth(theory.cosmology, A), pm.growth(theory.cosmology, 1.0)
        rate = now.d1_rate / now.d1

        def kaiser(kx, ky, kz):
            k2 = kx**2 + ky**2 + kz**2
            return now.d1 / today.d1 * (1 + rate * ky**2 / jnp.where(k2 > 0, k2, 1))

        waves = spectral.apply(run.linear(noise), plan, box, kaiser)
        return observables.power_multipoles(waves, plan, box, 1), rate, now.d1 / today.d1

    white = noise()
    both = [seen(sign * white) for sign in (1, -1)]
    known, rate, grown = linear(white)
    k, expected = np.asarray(known.k, float), np.asarray(known.power, float)
    power = np.mean([np.asarray(pair[1].power, float) for pair in both], axis=0)[:, : len(k)]
    if out:
        cells = max(round(DEPTH / box * size), 1)
        maps = [slab(field, plan.input, cells) for field in both[0][0]]
        if FIRST:
            curves = (k, power, float(rate), float(grown))
            draw(maps, curves, theory, box, out)
    low = k < max(0.03, 1.5 * k[0])
    return [
        Fact(
            f"{NAMES[order]} over linear theory of the same modes, less 1, largest for k < 0.03",
            float(np.abs(power[order] / expected[order] - 1)[low].max()),
            bound if size >= 64 else 0.3,
        )
        for order, bound in ((0, 0.03), (1, 0.05))
    ]


def draw(maps, curves, theory, box, out):
    """Both maps, and the multipoles beside linear theory."""
    figure, axes = plt.subplots(
        1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=(1, 1, 1.25)
    )
    titles = ("where matter is", "where redshifts place it, seen from below")
    for ax, image, title in zip(axes, maps, titles, strict=False):
        bright = {"cmap": "magma", "vmin": -1, "vmax": 2.5, "interpolation": "bilinear"}
        draw_map(ax, image, box, UNIT, **bright)
        ax.set_title(title)
    axes[1].set_ylabel("")
    k, power, rate, grown = curves
    factors = (1 + 2 / 3 * rate + rate**2 / 5, 4 / 3 * rate + 4 / 7 * rate**2, 8 / 35 * rate**2)
    fine = np.geomspace(k[0] / 1.2, 0.3, 200)
    linear = grown**2 * np.exp(np.interp(np.log(fine), np.log(theory.k), np.log(theory.linear)))
    shown = k < 0.3
    for order, (factor, name) in enumerate(zip(factors, NAMES, strict=True)):
        color = f"C{order}"
        axes[2].plot(fine, fine * factor * linear, color=color, lw=1)
        axes[2].plot(k[shown], (k * power[order])[shown], "o", color=color, ms=3, label=name)
    axes[2].plot([], [], color="0.4", lw=1, label="linear theory")
    axes[2].set(xlabel=r"$k$ [$h$/Mpc]", ylabel=r"$k\,P_\ell(k)$ [(Mpc/$h)^2$]")
    axes[2].axhline(0, color="0.8", lw=0.8)
    axes[2].legend(fontsize=9)
    save(figure, out / "redshift.jpg")


if __name__ == "__main__":
    start(main, 64)
