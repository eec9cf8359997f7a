"""Lensing by a light cone, beside the integral over the run's own spectra."""

import math

import jax
import numpy as np
from validation_page import Row, between
from validation_universe import COMM

import pfftjax
from pfftjax import pm
from pfftjax.observables import LightCone, convergence

HUBBLE_DISTANCE = 2997.92458  # c/H0 [Mpc/h]


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


def limber(ell, cosmology, ends, redshift, spectra):
    """C_l of the convergence by Limber's approximation, with spectra (a, k, P) in time order."""
    times = np.array([a for a, _, _ in spectra])
    k = spectra[0][1]
    table = np.log([power for _, _, power in spectra])
    nodes, weights = np.polynomial.legendre.leggauss(64)
    distance = ends[0] + (ends[1] - ends[0]) * (nodes + 1) / 2
    weights = weights * (ends[1] - ends[0]) / 2
    a = np.asarray(pm.scale_factor_at(cosmology, distance))
    source = float(pm.comoving_distance(cosmology, 1 / (1 + redshift)))
    kernel = 1.5 * float(cosmology.Omega_m) / HUBBLE_DISTANCE**2 * distance
    kernel *= np.maximum(0, 1 - distance / source) / a
    found = np.zeros(len(ell))
    for x, w, time, strength in zip(distance, weights, a, kernel, strict=True):
        at = np.array([np.interp(np.log(time), np.log(times), column) for column in table.T])
        power = np.exp(np.interp(np.log((ell + 0.5) / x), np.log(k), at))
        found += w * strength**2 / x**2 * power
    return found


def lensing_of(table, n, box, nside, ends, redshift, steps, highest, seeds):
    """Return C_l of convergence maps and those of Limber's integral with the runs' own spectra:
    means of runs of fixed amplitudes.
    """
    plan = pfftjax.PencilFFT((n,) * 3, pfftjax.ProcessGrid(comm=COMM), real=True)
    cosmology, edges = table.cosmology, np.linspace(ends[0], ends[1], 13)
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
    ell = np.arange(highest + 1)
    known = [(a, k[0], p) for a, p in zip(times, powers, strict=True)]
    theory = limber(ell, cosmology, ends, redshift, known)
    return angular_power(maps, nside, highest).mean(0), theory


def lensing(table):
    """The angular spectrum of the convergence beside Limber's integral over the run's spectra."""
    n, box, nside, ends, steps = 48, 400.0, 256, (300.0, 1100.0), 8
    low, high, seeds = 30, 100, 6
    measured, theory = lensing_of(table, n, box, nside, ends, 0.45, steps, high, seeds)
    ell = np.arange(high + 1)
    # Bilinear weights smooth maps as a tent along each axis, of a pixel's side.
    window = np.exp(-ell * (ell + 1) * (4 * np.pi / (12 * nside**2)) / 6)
    ratio = (measured / (theory * window))[low:]
    weights = 2 * ell[low:] + 1
    setting = (
        f"L = {box:g}, {n}^3, {steps} BullFrog steps, matter {ends[0]:g} to {ends[1]:g} away, "
        f"nside {nside}, sources at z = 0.45, mean of {seeds} runs of fixed amplitudes"
    )
    what = "C_l of the convergence over Limber's integral over the runs' own P(k, z)"
    mean = float(np.average(ratio, weights=weights))
    yield between(f"{what}: mean of {low} <= l <= {high}", setting, mean, "1", 0.98, 1.02)
    for first in (30, 50, 75):
        inside = (ell[low:] >= first) & (ell[low:] < first + 25)
        value = float(np.average(ratio[inside], weights=weights[inside]))
        where = f"{what}: mean of {first} <= l < {first + 25}"
        yield Row(where, setting, f"{value:.4f}", "1 with many runs")
