"""Haloes, and how many there should be.

Where matter has fallen together most there are haloes, the homes of galaxies. Friends of friends
finds them: two particles are friends if they are within a fifth of the mean distance, and a halo
is all that chains of friends hold together (Davis et al. 1985). `observables.friends_of_friends`
does so with the particles where they are, and finds the same haloes on any number of ranks.
Circles show those in a slab of the universe, as large as a sphere of 200 times the mean density
would be. How many there are of each mass follows from the linear spectrum by the collapse of
ellipsoids (Sheth & Tormen 1999), the line on the right. Haloes of fewer than a hundred particles,
in the shaded part, are of the size of the mesh's cells, on which the force is too soft.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from common import COMM, FIRST, Fact, Folder, draw_map, planck, save, slab, start
from matplotlib.patches import Circle
from scipy.ndimage import gaussian_filter

import pfftjax
from pfftjax import observables, pm

SPACING = 1.0  # of particles [Mpc/h]
DEPTH, SMOOTHING = 16.0, 0.7  # of the slab that is shown, and of its picture [Mpc/h]
STEPS = 20
ENOUGH = 100  # particles of a halo that the force resolves
UNIT = r" [Mpc/$h$]"
CRITICAL = 2.77536627e11  # density of a flat universe today [Msun/h / (Mpc/h)^3]


def main(size: int, out: Folder) -> list[Fact]:
    """Simulate, find the haloes, and count them."""
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
    (particles,) = run.snapshots(noise, [1.0], progress=size >= 64)
    catalogue, group = observables.friends_of_friends(
        particles, run.mesh.input, cosmology=theory.cosmology
    )
    haloes = catalogue.whole(run.plan.input.grid)

    members = COMM.allreduce(int(np.sum(np.asarray(group) >= 0)))
    facts = [Fact("members, less those that haloes say", members - int(haloes.length.sum()), 0)]
    least = ENOUGH * CRITICAL * theory.cosmology.Omega_m * SPACING**3
    mass = np.geomspace(least / 20, 1e16, 400)
    number = sheth_tormen(mass, theory)
    if size >= 96:
        expected = box**3 * cumulative(mass, number)[np.searchsorted(mass, least)]
        found = int(np.sum(haloes.length >= ENOUGH))
        facts.append(
            Fact("haloes of 100 particles over theory, less 1", float(found / expected) - 1, 0.25)
        )
    if out:
        density = jax.jit(lambda p: pm.density_contrast(p, run.mesh, kernel="tsc"))(particles)
        image = slab(density, run.mesh.input, max(round(DEPTH / box * run.mesh.shape[2]), 1))
        if FIRST:
            draw(image, haloes, mass, number, least, box, out)
    return facts


def sheth_tormen(mass, theory):
    """Haloes for each Mpc^3/h^3 and ln M: Sheth & Tormen (1999), equation 10."""
    density = CRITICAL * float(theory.cosmology.Omega_m)
    radius = (3 * mass / (4 * np.pi * density)) ** (1 / 3)
    x = radius[:, None] * theory.k
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    per_octave = window**2 * theory.k**3 * theory.linear / (2 * np.pi**2)
    sigma = np.sqrt(np.trapezoid(per_octave, np.log(theory.k), axis=1))
    nu2 = 0.707 * (1.686 / sigma) ** 2
    share = 0.3222 * np.sqrt(2 * nu2 / np.pi) * (1 + nu2**-0.3) * np.exp(-nu2 / 2)
    return share * density / mass * -np.gradient(np.log(sigma), np.log(mass))


def cumulative(mass, number):
    """Haloes of at least each mass."""
    each = (number[1:] + number[:-1]) / 2 * np.diff(np.log(mass))
    return np.append(np.cumsum(each[::-1])[::-1], 0)


def draw(image, haloes, mass, number, least, box, out):
    """The haloes in a slab over its density, and how many there are."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12.6, 5.9), width_ratios=(1.15, 1), layout="constrained"
    )
    smooth = gaussian_filter(image, SMOOTHING / box * image.shape[0], mode="wrap")
    bright = {"cmap": "magma", "vmin": -0.9, "vmax": 1.8, "interpolation": "bicubic"}
    shown = draw_map(left, np.log10(np.maximum(1 + smooth, 1e-3)), box, UNIT, **bright)
    figure.colorbar(shown, ax=left, label=r"$\log_{10}(1 + \delta)$", shrink=0.9)
    inside = (haloes.position[:, 2] < DEPTH) & (haloes.length >= ENOUGH)
    density = least / ENOUGH / SPACING**3
    radius = (3 * haloes.mass / (4 * np.pi * 200 * density)) ** (1 / 3)
    for (x, y, _), r in zip(haloes.position[inside], radius[inside], strict=True):
        left.add_patch(Circle((x, y), r, fill=False, color="cyan", lw=1.1))
    left.set_title(f"{inside.sum()} haloes in a slab of {DEPTH:.0f} Mpc/$h$")

    edges = np.geomspace(least / 5, max(haloes.mass.max() * 1.2, 10 * least), 14)
    counts = np.histogram(haloes.mass, edges)[0]
    middle, width = np.sqrt(edges[1:] * edges[:-1]), np.diff(np.log(edges))
    some = counts > 0
    error = np.sqrt(counts[some]) / width[some] / box**3
    found = counts[some] / width[some] / box**3
    right.errorbar(middle[some], found, error, fmt="o", ms=4, color="C3", label="this universe")
    near = (mass >= edges[0]) & (mass <= edges[-1])
    right.loglog(mass[near], number[near], "k-", lw=1, label="Sheth & Tormen (1999)")
    right.axvspan(edges[0], least, color="0.9", lw=0)
    right.set(
        xlabel=r"mass [$M_\odot/h$]",
        ylabel=r"d$n$/d$\ln M$ [($h$/Mpc)$^3$]",
        xlim=(edges[0], edges[-1]),
        title="How many there are",
    )
    right.legend()
    save(figure, out / "haloes.jpg")


if __name__ == "__main__":
    start(main, 128)
