"""A universe, from its first ripples to today.

The matter in a box of 512 Mpc/h falls together under its own gravity: 256³ particles and a mesh
of 512³ cells for the force, from the linear spectrum of Planck 2018 at a redshift of 9 to today,
by `pm.Simulation` in 20 BullFrog steps (Rampf, List & Hahn 2025). The movie needs no steps of
its own: between steps particles follow from the force of the nearest one. In the spectrum below,
points end at 0.9 of the particles' Nyquist wavenumber π n / L, to which an interlaced painting
is right to a per cent. Beyond half of it the force of the mesh is too soft, and the spectrum
falls below the fit to simulations of better resolution (HMcode-2020, Mead et al. 2021). The
largest waves must grow as linear theory says.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, draw_map, frame, planck, save, save_movie, slab, start
from scipy.ndimage import gaussian_filter

import pfftjax
from pfftjax import pm

SPACING = 2.0  # of particles [Mpc/h]
DEPTH, SMOOTHING = 16.0, 1.0  # of the slab that is shown, and of its picture [Mpc/h]
FRAMES, STEPS = 40, 20
UNIT = r" [Mpc/$h$]"


def main(size: int, out: Folder) -> list[Fact]:
    """Simulate, film, and measure."""
    theory = planck()
    box = SPACING * size
    run = pm.Simulation(
        pfftjax.PencilFFT((size,) * 3, pfftjax.ProcessGrid(), real=True),
        box,
        theory.cosmology,
        np.linspace(0.1, 1, STEPS + 1 if size >= 64 else 6),
        power=theory.power,
    )
    noise = jax.jit(lambda: pm.nested_noise(jax.random.key(4), run.plan, "float32"))()
    noise = jax.jit(lambda x: pm.fixed_amplitudes(x, run.plan))(noise)
    paint = jax.jit(lambda p: pm.density_contrast(p, run.mesh, kernel="tsc"))
    times = np.linspace(0.1, 1, FRAMES + 1 if out and size >= 64 else 2)[1:]
    cells = max(round(DEPTH / box * run.mesh.shape[2]), 1)
    particles, maps = None, []
    for particles in run.snapshots(noise, times, progress=size >= 128):
        if out:
            maps.append(slab(paint(particles), run.mesh.input, cells))

    @jax.jit
    def measured(particles, noise):
        linear, final = run.linear(noise), run.density(particles, interlaced=True)
        where = (run.plan, box)
        cross = pm.power_spectrum(final, *where, other=linear, kernel=run.kernel)
        growth = cross.power / pm.power_spectrum(linear, *where).power
        return pm.power_spectrum(final, *where, kernel=run.kernel), growth

    spectrum, growth = measured(particles, noise)
    k, power, modes = (np.asarray(x, float) for x in spectrum)
    seen = k < 0.9 * np.pi / SPACING
    curve = tuple(x[seen] for x in (k, power, modes))
    if out and FIRST:
        draw(maps, times, curve, theory, box, out)
    waves = f"growth of the waves at k = {k[0]:.3f} h/Mpc over linear theory, less 1"
    return [Fact(waves, float(growth[0]) - 1, 0.01 if size >= 128 else 0.1)]


def draw(maps, times, curve, theory, box, out):
    """The movie; the universe today and its spectrum."""
    bright = {"cmap": "magma", "vmin": -0.9, "vmax": 1.5, "interpolation": "bicubic"}

    def logarithm(image):
        # In voids the particles are further apart than the cells of the picture.
        smooth = gaussian_filter(image, SMOOTHING / box * image.shape[0], mode="wrap")
        return np.log10(np.maximum(1 + smooth, 1e-3))

    figure, ax = plt.subplots(figsize=(5.6, 5.0), layout="constrained")
    shown = draw_map(ax, logarithm(maps[0]), box, UNIT, **bright)
    figure.colorbar(shown, ax=ax, label=r"$\log_{10}(1 + \delta)$")
    frames = []
    for image, a in zip(maps, times, strict=True):
        shown.set_data(logarithm(image).T)
        ax.set_title(f"redshift {1 / a - 1:.2f}")
        frames.append(frame(figure))
    save_movie(frames, out / "universe.webp")
    plt.close(figure)

    figure, axes = plt.subplot_mosaic(
        [["map", "top"], ["map", "bottom"]],
        figsize=(12.6, 5.9),
        height_ratios=(3, 1),
        width_ratios=(1.15, 1),
        layout="constrained",
    )
    shown = draw_map(axes["map"], logarithm(maps[-1]), box, UNIT, **bright)
    depth = max(round(DEPTH), 1)
    axes["map"].set_title(f"Density today, a slab of {depth} Mpc/$h$")
    figure.colorbar(shown, ax=axes["map"], label=r"$\log_{10}(1 + \delta)$", shrink=0.9)
    k, power, _ = curve
    nyquist = np.pi / SPACING
    near = (theory.k > k[0] / 1.5) & (theory.k < nyquist)
    top, bottom = axes["top"], axes["bottom"]
    top.loglog(theory.k[near], theory.linear[near], "k--", lw=1, label="linear theory")
    top.loglog(theory.k[near], theory.nonlinear[near], "k-", lw=1, label="HMcode-2020")
    top.loglog(k, power, "o", ms=3, color="C3", label="this universe")
    top.set(ylabel=r"$P(k)$ [(Mpc/$h$)$^3$]", title="Its power spectrum")
    top.tick_params(labelbottom=False)
    top.legend()
    fit = np.exp(np.interp(np.log(k), np.log(theory.k), np.log(theory.nonlinear)))
    bottom.semilogx(k, power / fit, "o", ms=3, color="C3")
    bottom.axhline(1, color="k", lw=1)
    bottom.set(xlabel=r"$k$ [$h$/Mpc]", ylabel="ratio to HMcode", ylim=(0.7, 1.15))
    for ax in (top, bottom):
        ax.set_xlim(k[0] / 1.5, nyquist)
        ax.axvspan(0.5 * nyquist, nyquist, color="0.9", lw=0)
    bottom.text(0.97 * nyquist, 1.1, "force too soft", fontsize=8, va="center", ha="right")
    save(figure, out / "universe.jpg")


if __name__ == "__main__":
    start(main, 256)
