"""Lensing by a light cone, beside the integral over the run's own spectra."""

import math

import jax
import numpy as np
from scipy.special import spherical_jn
from validation_page import Row, between
from validation_pictures import draw_lensing
from validation_universe import COMM

import pfftjax
from pfftjax import pm
from pfftjax.observables import LightCone, convergence

HUBBLE_DISTANCE = 2997.92458  # c/H0 [Mpc/h]
SHELLS = 12


def angular_power(sky, nside, highest):
    """C_l up to l = `highest` of maps (..., pixels) in the order of rings: those of the transform
    along each ring and of normalised Legendre functions over the rings.
    """
    count = 4 * np.minimum(nside, np.r_[1 : 2 * nside + 1, 2 * nside - 1 : 0 : -1])
    start = np.cumsum(count) - count
    ring = np.arange(1, 4 * nside)
    z = np.where(ring < nside, 1 - ring**2 / (3 * nside**2), (4 - 2 * ring / nside) / 3)
    z = np.where(ring > 3 * nside, (4 * nside - ring) ** 2 / (3 * nside**2) - 1, z)
    is_shifted = (ring < nside) | (ring > 3 * nside) | ((ring - nside) % 2 == 0)
    m = np.arange(highest + 1)
    waves = np.zeros((*sky.shape[:-1], highest + 1, len(ring)), complex)
    for i, (first, n) in enumerate(zip(start, count, strict=True)):
        modes = np.fft.fft(sky[..., first : first + n])
        shift = np.exp(-1j * np.pi / n * m) if is_shifted[i] else 1
        waves[..., i] = modes[..., m % n] * shift
    area = 4 * np.pi / sky.shape[-1]
    power = np.zeros((*sky.shape[:-1], highest + 1))
    seed = np.full(len(ring), math.sqrt(1 / (4 * np.pi)))
    for order in m:
        if order:
            seed = -seed * np.sqrt((1 - z**2) * (2 * order + 1) / (2 * order))
        before, now = np.zeros_like(seed), seed
        for degree in range(order, highest + 1):
            if degree > order:
                a, b = (4 * degree**2 - 1) / (degree**2 - order**2), (degree - 1) ** 2 - order**2
                b = math.sqrt(a * b / (4 * (degree - 1) ** 2 - 1)) if degree > 1 else 0.0
                before, now = now, math.sqrt(a) * z * now - b * before
            amplitude = area * (waves[..., order, :] @ now)
            power[..., degree] += (1 if order == 0 else 2) * np.abs(amplitude) ** 2
    return power / (2 * m + 1)


class LensingKernels:
    """The weight by which the density contrast at a distance adds to the convergence, for each
    Mpc/h: that of light (`kernel`), and that of a light cone's shells (`kernel_of_shells`).

    Distances `x` [Mpc/h] are the nodes of a rule of Gauss and Legendre, with weights `measure`.
    """

    def __init__(self, cosmology, cone, redshift, points=600):
        ends = cone.edges[0], cone.edges[-1]
        nodes, weights = np.polynomial.legendre.leggauss(points)
        self.x = x = ends[0] + (ends[1] - ends[0]) * (nodes + 1) / 2
        self.measure = weights * (ends[1] - ends[0]) / 2
        self.a = np.asarray(pm.scale_factor_at(cosmology, x))
        source = float(pm.comoving_distance(cosmology, 1 / (1 + redshift)))
        strength = 1.5 * float(cosmology.Omega_m) / HUBBLE_DISTANCE**2
        self.kernel = strength * x * np.maximum(0, 1 - x / source) / self.a
        # The density contrast of a shell is that of its particles, which are x^2 dx at a distance,
        # whatever the kernel is there: a mean with weights part(x) x^2.
        parts = np.asarray(cone.weights(x)).T * self.measure
        of_shells = (parts @ self.kernel) / (parts @ x**2)
        self.kernel_of_shells = x**2 * (of_shells @ parts) / self.measure

    def angular_power(self, ell, spectra):
        """C_l by both kernels, as integrals over spherical Bessel functions, of density contrasts
        with the spectra (a, k, P) at some times, whose modes keep their phases.
        """
        times, k = np.log([a for a, _, _ in spectra]), np.log(spectra[0][1])
        fine = np.linspace(k[0], k[-1], 2000)
        powers = np.array([np.interp(fine, k, np.log(power)) for _, _, power in spectra])
        now = np.array([np.interp(np.log(self.a), times, column) for column in powers.T])
        both = (np.stack([self.kernel, self.kernel_of_shells]) * self.measure).T
        found = []
        for degree in ell:
            waves = spherical_jn(degree, np.exp(fine)[:, None] * self.x) * np.exp(now / 2)
            cubes = np.exp(3 * fine)[:, None] * (waves @ both) ** 2
            found.append(2 / np.pi * np.trapezoid(cubes, fine, axis=0))
        return np.array(found).T


def lensing_of(table, n, box, nside, ends, redshift, steps, degrees, seeds):
    """Return C_l of the convergence maps of runs of fixed amplitudes (runs, l), and those of the
    integrals over their mean spectra by the kernel of light and by that of the shells.
    """
    plan = pfftjax.PencilFFT((n,) * 3, pfftjax.ProcessGrid(comm=COMM), real=True)
    cosmology, edges = table.cosmology, np.linspace(ends[0], ends[1], SHELLS + 1)
    lowest, highest = degrees
    simulation = pm.Simulation(
        plan,
        box,
        cosmology,
        np.linspace(0.1, 1, steps + 1),
        power=pm.tabulated(table.k, table.linear),
    )
    times = np.asarray(pm.scale_factor_at(cosmology, np.linspace(ends[1], ends[0], 6)))

    cone = LightCone(edges, nside)

    @jax.jit
    def measured(key):
        noise = pm.fixed_amplitudes(pm.white_noise(key, plan.input), plan)
        spectra, shells = simulation.run(
            noise, outputs=times, observe=simulation.power_spectrum, light_cone=cone
        )
        return [(x.k, x.power) for x in spectra], convergence(shells, cosmology, redshift)

    found = [measured(jax.random.key(seed)) for seed in range(seeds)]
    spectra = np.array([np.asarray(its, float) for its, _ in found])
    maps = np.array([np.asarray(kappa, float) for _, kappa in found])
    k, powers = np.mean(spectra, axis=0).swapaxes(0, 1)
    known = [(a, k[0], p) for a, p in zip(times, powers, strict=True)]
    # C_l of theory is smooth in l.
    some = np.arange(lowest, highest + 5, 5)
    theory = LensingKernels(cosmology, cone, redshift).angular_power(some, known)
    ell = np.arange(lowest, highest + 1)
    theory = np.exp([np.interp(np.log(ell), np.log(some), x) for x in np.log(theory)])
    return angular_power(maps, nside, highest)[:, lowest:], *theory


def lensing(table, picture=None):
    """The angular spectrum of the convergence beside the integral over the run's spectra."""
    n, box, nside, ends, steps = 48, 400.0, 256, (300.0, 1100.0), 8
    low, high, seeds = 30, 100, 6
    runs, by_light, by_shells = lensing_of(
        table, n, box, nside, ends, 0.45, steps, (low, high), seeds
    )
    ell = np.arange(low, high + 1)
    # Bilinear weights smooth maps as a tent along each axis, of a pixel's side.
    window = np.exp(-ell * (ell + 1) * (4 * np.pi / (12 * nside**2)) / 6)
    runs = runs / window
    draw_lensing(picture, ell, runs, by_shells)
    ratio = runs.mean(0) / by_shells
    setting = (
        f"L = {box:g}, {n}^3, {steps} BullFrog steps, {SHELLS} shells {ends[0]:g} to {ends[1]:g} "
        f"away, nside {nside}, sources at z = 0.45, mean of {seeds} runs of fixed amplitudes"
    )

    def mean(values, first, last):
        inside = (ell >= first) & (ell <= last)
        return float(np.average(values[inside], weights=2 * ell[inside] + 1))

    what = "C_l of the convergence over the integral over the runs' own P(k, z)"
    whole = f"mean of {low} <= l <= {high}"
    yield between(f"{what}: {whole}", setting, mean(ratio, low, high), "1", 0.98, 1.02)
    for first, last in ((30, 54), (55, 77), (78, 100)):
        where = f"{what}: mean of {first} <= l <= {last}"
        yield Row(where, setting, f"{mean(ratio, first, last):.4f}", "1 with many runs")
    value = mean(by_shells / by_light, low, high)
    where = f"that integral with the density of shells over that with each distance's: {whole}"
    yield Row(where, setting, f"{value:.4f}", "1 with many shells")
