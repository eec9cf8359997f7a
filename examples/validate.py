"""Measures the particle-mesh simulation against theory, and writes the table docs/validation.md.

    mpirun -n 2 python examples/validate.py

One function for each kind of measurement, all in double precision; the status is not zero if one
of them is out of its bound. It runs on any number of ranks (`make validate` on 2).
"""

import argparse
import functools
import math
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import jax_cosmo
import numpy as np
import scipy.integrate
from mpi4py import MPI
from nbody_pm import TABLE, Input, conservation, gathered
from tqdm import tqdm
from validation_lensing import lensing
from validation_page import FOLDER, Row, between, document, error, with_rows
from validation_pictures import draw_steps
from validation_surveys import surveys
from validation_theory import amplitude_of_bispectrum, followed, one_loop
from validation_universe import COMM, Universe, everybody

import pfftjax
from pfftjax import pm

DOCUMENT = pathlib.Path(__file__).parents[1] / "docs" / "validation.md"


PASSED = "by the factors of the steps"
NAMES = {pm.fastpm: "FastPM", pm.bullfrog: "BullFrog", pm.cola: "COLA"}
AS_PUBLISHED = functools.partial(pm.cola, n_lpt=-2.5)


def rms(x):
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x))))


def growth_factors(table):
    """Growth factors of first and second order, against quadratures of SciPy in a."""
    cosmology = table.cosmology
    omega_m = float(cosmology.Omega_m)

    def e(a):
        return math.sqrt(omega_m / a**3 + 1 - omega_m)

    tight = {"epsabs": 0, "epsrel": 1e-11}
    d1 = 2.5 * omega_m * scipy.integrate.quad(lambda a: (a * e(a)) ** -3, 0, 1, **tight)[0]

    def rates(a, state):
        # (a^3 E D')' = 3/2 Omega_m S / (a^2 E), ' = d/da, with S = D1 and S = D2 - D1^2.
        x1, y1, x2, y2 = state
        slope, pull = 1 / (a**3 * e(a)), 1.5 * omega_m / (a**2 * e(a))
        return [slope * y1, pull * x1, slope * y2, pull * (x2 - x1**2)]

    a = 1e-3
    velocity = a**3 * e(a)
    state = [a, velocity, -3 / 7 * a**2, -6 / 7 * a * velocity]
    tight = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-20}
    d2 = scipy.integrate.solve_ivp(rates, (a, 1), state, **tight).y[2, -1]
    today = pm.growth(cosmology, 1.0)
    for name, value, expected in (("D1", today.d1, d1), ("D2", today.d2, d2)):
        yield Row(
            f"{name}(a = 1)",
            "",
            f"{float(value):.8f}",
            f"{expected:.8f}, by SciPy",
            "1e-6 of it",
            bool(abs(value / expected - 1) < 1e-6),
        )


def stepping(table):
    """Steps return the growing mode that they are made from: of first order, of first and second.

    Steps that are exact to first order have an error of the second, which falls with the square
    of their length.
    """
    cosmology = table.cosmology
    errors = {}
    for integrator, counts in (
        (pm.fastpm, (1, 5, 10, 20, 40)),
        (pm.bullfrog, (1, 3, 10)),
        (pm.cola, (1, 3, 10)),
    ):
        name = NAMES[integrator]
        for count in counts:
            a = np.linspace(0.1, 1, count + 1)
            program = jax.jit(lambda a=a, f=integrator: (pm.growth(cosmology, a), f(cosmology, a)))
            g, steps = program()
            start, end = (jax.tree.map(lambda x, i=i: x[i] if x.ndim else x, g) for i in (0, -1))
            x, p = followed(steps, start, float(cosmology.Omega_m))
            setting = f"{name}, {count} step{'s'[: count > 1]}"
            worst = max(abs(x[0] / end.d1 - 1), abs(p[0] / end.momentum - 1))
            yield error(f"D1 and its momentum {PASSED}", setting, float(worst), 1e-12)
            errors[name, count] = float(x[1] / end.d2 - 1)
            if integrator is not pm.fastpm:
                yield error(f"D2 {PASSED}", setting, abs(errors[name, count]), 1e-6)
            else:
                yield Row(
                    f"D2 {PASSED}", setting, f"{errors[name, count]:.2%}", "0 with many steps"
                )
    order = math.log2(errors["FastPM", 20] / errors["FastPM", 40])
    yield between(f"D2 {PASSED}: order", "FastPM, 20 and 40 steps", order, "2", 1.9, 2.1)


def convergence(table):
    """Positions today by number of steps, beside those of many."""
    universe = Universe(table, 32, 200.0)
    initial = universe.linear()

    def today(integrator, steps):
        a = np.linspace(0.1, 1, steps + 1)
        return everybody(universe.simulate(universe.lpt(initial, a[0]), a, integrator))[1]

    for integrator, name in NAMES.items():
        exact, errors = today(integrator, 320), {}
        for steps in (10, 20, 40, 80):
            errors[steps] = rms(today(integrator, steps) - exact) / rms(exact)
            what = "error of positions today, rms over rms displacement, beside 320 steps"
            setting = f"L = 200, 32^3, {steps} {name} steps"
            yield Row(what, setting, f"{errors[steps]:.1e}", "0 with many steps")
        order = math.log2(errors[40] / errors[80])
        what = "error of positions today: order"
        yield between(what, f"L = 200, 32^3, 40 and 80 {name} steps", order, "2", 1.5, 2.5)


def initial_spectrum(table):
    """The spectrum of the initial field against the table, shell by shell."""
    universe = Universe(table, 64, 1000.0)
    found = universe.spectrum(universe.linear())
    # The table's mean over the modes of each shell, without the code that is measured.
    whole = np.fft.fftfreq(universe.n, 1 / universe.n)
    m = np.sqrt(sum(np.meshgrid(*[whole**2] * 3, sparse=True))).ravel()
    shell = np.floor(m - 0.5).astype(int)
    inside = (shell >= 0) & (shell < universe.n // 2)
    k = 2 * np.pi / universe.box * m[inside]
    power = np.exp(np.interp(np.log(k), np.log(table.k), np.log(table.linear)))
    modes = np.bincount(shell[inside])
    expected = np.bincount(shell[inside], power) / modes

    ratio = np.asarray(found.power) / expected
    what, setting = "initial spectrum over the table, ", "L = 1000, 64^3"
    spread = 3 * math.sqrt(2 / modes.sum())
    value = float((modes * ratio).sum() / modes.sum())
    yield between(f"{what}mean of all modes", setting, value, "1", 1 - spread, 1 + spread)
    # A mean of |delta_k|^2 over N modes, conjugates counted, has the variance 2 / N of its square.
    spread = 3 * math.sqrt(2 / len(modes))
    value = float((modes / 2 * (ratio - 1) ** 2).mean())
    yield between(f"{what}chi^2 a shell", setting, value, "1", 1 - spread, 1 + spread)


def primordial_bispectrum(table):
    """The bispectrum of primordial non-Gaussianity, in all triangles of wide shells."""
    universe, f_nl = Universe(table, 64, 1000.0), 100.0
    plan, box, power = universe.plan, universe.box, universe.power

    @jax.jit
    def fields(noise):
        delta = pm.linear_field(noise, plan, box, power)
        return [
            pm.local_non_gaussianity(delta, plan, box, power, universe.cosmology, sign * f_nl)
            for sign in (1, -1)
        ]

    d1 = float(pm.growth(universe.cosmology, 1.0).d1)
    found = []
    for seed in range(4):
        # Amplitudes are fixed, so that few fields will do.
        noise = jax.jit(lambda seed=seed: fixed(universe, seed))()
        wholes = [COMM.bcast(gathered(field, plan.input)) for field in fields(noise)]
        found.append(amplitude_of_bispectrum(wholes, box, table, d1) / f_nl)
    what = "bispectrum for f_NL = 100 over theory, all triangles up to half of Nyquist's k"
    setting = "L = 1000, 64^3, mean of 4 fields of fixed amplitudes"
    yield between(what, setting, float(np.mean(found)), "1", 0.95, 1.05)


def linear_growth(table):
    """Growth of the largest scales over linear theory, by number of steps."""
    universe = Universe(table, 64, 1000.0)
    initial = universe.linear()

    def measured(steps, integrator):
        return float(universe.growth(universe.today(initial, steps, integrator), initial)[0]) - 1

    what, setting = "T - 1 of the lowest shell", "L = 1000, 64^3, {} {} steps"
    found = {steps: measured(steps, pm.fastpm) for steps in (5, 20)}
    for steps, value in found.items():
        yield between(what, setting.format(steps, "FastPM"), value, "0", -0.03, 0.01)
    difference = abs(found[5] - found[20])
    yield error(f"{what}: difference", setting.format("5 and 20", "FastPM"), difference, 2e-3)
    for steps in (5, 10, 40):
        value = f"{measured(steps, pm.leapfrog):.4f}"
        yield Row(what, setting.format(steps, "leapfrog"), value, "0 with many steps")


def fine_mesh_growth(table):
    """Growth by scale on a finer mesh, where the next order of perturbation theory is seen."""
    box = 1000.0
    universe = Universe(table, 64, box, finer=2)
    initial = universe.linear()
    on_mesh = refined(initial, universe)
    # The mean of both signs is free of the coupling of two modes to a third.
    signs = [(s, universe.today(s * initial, 10, pm.bullfrog)) for s in (1, -1)]
    growth = np.mean([universe.growth(final, s * on_mesh) for s, final in signs], axis=0) - 1
    k = np.asarray(universe.spectrum(on_mesh).k)
    # Spheres of as much volume as the mode zero, which is left out, and as all modes.
    least = 2 * np.pi / box * (3 / (4 * np.pi)) ** (1 / 3)
    for i in range(4):
        expected = one_loop(k[i], table, least, universe.n * least)
        yield Row(
            f"T - 1 at k = {k[i]:.4f}, mean of runs from +delta and -delta",
            f"L = {box:g}, 64^3 on a mesh of 128^3, 10 BullFrog steps",
            f"{growth[i]:.5f}",
            f"{expected:.5f}, one loop",
            "a tenth of it, and 1e-4",
            bool(abs(growth[i] - expected) < 0.1 * abs(expected) + 1e-4),
        )


def refined(initial, universe):
    """The same modes on the mesh: the Fourier series of the particle grid between its points."""
    whole = COMM.bcast(gathered(initial, universe.plan.input))
    n, half = universe.n, universe.n // 2
    kept = np.r_[0:half, 1 - half : 0]
    kept = np.ix_(kept, kept, kept[:half])
    spectrum = np.zeros((2 * n, 2 * n, n + 1), complex)
    spectrum[kept] = 8 * np.fft.rfftn(whole)[kept]
    on_mesh = np.fft.irfftn(spectrum, (2 * n,) * 3, axes=(0, 1, 2))
    return jnp.asarray(universe.mesh.input.local_block(on_mesh))


def nonlinear_spectrum(table, picture=None):
    """The spectrum today beside a converged run, and beside a fit to simulations."""
    box, n = 256.0, 64
    universe = Universe(table, n, box, finer=2)
    initial = universe.linear()

    def spectrum(initial, integrator, steps):
        final = universe.today(initial, steps, integrator)
        return universe.spectrum(final, kernel="cic")

    setting = f"L = {box:g}, {n}^3 on a mesh of {2 * n}^3, " + "{} steps"
    converged = spectrum(initial, pm.fastpm, 100)
    k, ratios = np.asarray(converged.k), {}
    for integrator, steps, bound in (
        (pm.bullfrog, 6, 0.01),
        (pm.bullfrog, 20, 0.005),
        (pm.cola, 6, 0.01),
        (pm.cola, 20, 0.005),
        (AS_PUBLISHED, 6, 0.1),
        (AS_PUBLISHED, 20, 0.02),
        (pm.fastpm, 20, 0.005),
    ):
        name = NAMES.get(integrator, "COLA (a^-2.5)")
        ratio = np.asarray(spectrum(initial, integrator, steps).power / converged.power) - 1
        ratios[f"{steps} {name} steps"] = ratio
        where = setting.format(f"{steps} {name}")
        worst = float(np.abs(ratio[k <= 0.2]).max())
        what = "P(k) over that of 100 FastPM steps, less 1"
        yield error(f"{what}: largest up to k = 0.2", where, worst, bound)
        yield Row(f"{what}: at k = 0.7", where, f"{ratio[np.abs(k - 0.7).argmin()]:.4f}", "0")
    draw_steps(picture, k, ratios)

    # Amplitudes are fixed and phases paired, so that a small box has the spectrum of many.
    noise = jax.jit(lambda: fixed(universe))()
    field = jax.jit(lambda noise: pm.linear_field(noise, universe.plan, box, universe.power))
    powers = [spectrum(field(s * noise), pm.bullfrog, 20).power for s in (1, -1)]
    power = np.mean(powers, axis=0)
    fit = np.exp(np.interp(np.log(k), np.log(table.k), np.log(table.nonlinear)))
    weights, setting = np.asarray(converged.modes), setting.format("20 BullFrog")
    what = "P(k) over HMcode-2020, two runs of fixed amplitudes: mean of {} < k < {}"

    def mean(low, high):
        of = (k > low) & (k < high)
        return float(np.average((power / fit)[of], weights=weights[of]))

    yield between(what.format(0.15, 0.25), setting, mean(0.15, 0.25), "1", 0.95, 1.05)
    # The particles' Nyquist wavenumber is 0.79.
    value = f"{mean(0.6, 0.8):.4f}"
    yield Row(what.format(0.6, 0.8), setting, value, "1 with more particles")


def aliases(table):
    """The spectrum of particles painted on a mesh, beside that on one four times as fine."""
    box, n = 256.0, 64
    universe = Universe(table, n, box, finer=2)
    a = np.linspace(0.1, 1, 11)
    final = universe.simulate(universe.lpt(universe.linear(), a[0]), a, pm.bullfrog)

    def spectrum(points, kernel, interlaced):
        plan = pfftjax.PencilFFT((points,) * 3, universe.grid, real=True)

        def measured(particles):
            density = pm.density_contrast(
                particles.rescaled(plan.input), plan, kernel=kernel, interlaced=interlaced
            )
            return pm.power_spectrum(density, plan, box, kernel=kernel)

        return jax.jit(measured)(final)

    exact = np.asarray(spectrum(4 * n, "tsc", interlaced=True).power)
    nyquist = np.pi * n / box
    for kernel, interlaced, right in (
        ("cic", False, 0.5),
        ("tsc", False, 0.7),
        ("pcs", False, 0.75),
        ("cic", True, 0.9),
        ("tsc", True, 0.9),
        ("pcs", True, 0.9),
    ):
        found = spectrum(n, kernel, interlaced)
        k, excess = np.asarray(found.k), np.asarray(found.power) / exact[: len(found.k)] - 1
        way = f"{kernel.upper()}, interlaced," if interlaced else kernel.upper()
        setting = f"L = {box:g}, {n}^3 particles, {way} on {n}^3"
        what = "P(k) of particles over that on a mesh four times as fine, less 1"
        worst = float(np.abs(excess[k <= right * nyquist]).max())
        yield error(f"{what}: largest up to {right} of Nyquist's k", setting, worst, 0.01)
        for part in (0.7, 0.8, 0.9):
            value = f"{excess[np.abs(k - part * nyquist).argmin()]:.4f}"
            yield Row(f"{what}: at {part} of Nyquist's k", setting, value, "0 without aliases")


def fixed(universe, seed=0):
    """White noise of fixed amplitudes."""
    plan = universe.plan
    return pm.fixed_amplitudes(pm.white_noise(jax.random.key(seed), plan.input), plan)


def pancake(table):
    """A plane wave, followed nearly until it breaks, against Zel'dovich's exact solution."""
    for n, bound in ((32, 2.5e-2), (64, 1e-2)):
        universe = Universe(table, n, 100.0)
        index = universe.plan.input.indices(0)
        wave = jnp.broadcast_to(jnp.cos(2 * jnp.pi / n * index), universe.plan.input.local_shape)
        a = jnp.linspace(0.1, 0.9, 21)
        # One rank may own the whole sheet.
        end = universe.simulate(universe.lpt(wave, a[0], order=1), a, capacity=n**3)
        cell, offset, _ = everybody(end)
        grown = pm.growth(table.cosmology, jnp.array([a[-1], 1.0])).d1
        exact = np.zeros_like(offset)
        exact[:, 0] = -float(grown[0] / grown[1]) * n / (2 * np.pi)
        exact[:, 0] *= np.sin(2 * np.pi / n * cell[:, 0])
        yield error(
            "Zel'dovich pancake that breaks at a = 1, at a = 0.9: rms error over rms displacement",
            f"{n}^3, 20 FastPM steps",
            rms(offset - exact) / rms(exact),
            bound,
            "0 on a fine mesh",
        )


def conserved(table):
    """Mass and momentum."""
    universe = Universe(table, 32, 200.0)
    a = jnp.linspace(0.1, 1, 11)
    end = universe.simulate(universe.lpt(universe.linear(), a[0]), a)
    mass, momentum = conservation(end, universe.density(end), COMM)
    setting = "L = 200, 32^3, 10 FastPM steps"
    yield error("painted mass over the number of particles, less 1", setting, mass, 1e-13)
    what = "total momentum over the sum of magnitudes of momenta"
    yield error(what, setting, momentum, 1e-12)


def reversal(table):
    """Forward in time and back to the beginning."""
    universe = Universe(table, 32, 200.0)
    a = jnp.linspace(0.1, 1, 11)
    start = universe.lpt(universe.linear(), a[0])
    _, *before = everybody(start)
    _, *after = everybody(universe.simulate(universe.simulate(start, a), a[::-1]))
    names = ("positions", "momenta")
    for name, x, y in zip(names, before, after, strict=True):
        what = f"forward in time and back: largest error of {name}, over their rms"
        setting = "L = 200, 32^3, 10 FastPM steps"
        yield error(what, setting, float(np.abs(y - x).max()) / rms(x), 1e-9)


def decomposition(table):
    """The same universe on this run's process grid and on one rank."""
    if COMM.size == 1:
        return
    here, alone = (Universe(table, 32, 200.0, comm=comm) for comm in (COMM, MPI.COMM_SELF))
    whole = np.asarray(alone.today(alone.linear(), 10))
    part = np.asarray(here.today(here.linear(), 10))
    worst = np.abs(part - here.mesh.input.local_block(whole)).max(initial=0)
    rows, columns = here.grid.dims
    yield error(
        f"density today on {rows} x {columns} ranks and on one: largest difference, over its "
        "largest value",
        "L = 200, 32^3, 10 FastPM steps",
        COMM.allreduce(float(worst), MPI.MAX) / float(np.abs(whole).max()),
        1e-10,
    )


def derivatives(table):
    """Derivatives of a loss today, against central differences."""
    universe = Universe(table, 16, 100.0)
    grid, pencil = universe.grid, universe.plan.input
    given = table.cosmology
    names = ("Omega_b", "h", "n_s", "sigma8", "Omega_k", "w0", "wa")
    rest = {name: float(getattr(given, name)) for name in names}

    def loss(noise, omega_c):
        cosmology = jax_cosmo.Cosmology(Omega_c=omega_c, **rest)
        delta = pm.linear_field(noise, universe.plan, universe.box, universe.power)
        a = jnp.linspace(0.1, 1, 6)
        start = pm.lpt(delta, universe.plan, universe.box, cosmology, a[0])
        final = pm.simulate(start, universe.plan, universe.box, cosmology, a)
        today = pm.density_contrast(final, universe.plan)
        return pfftjax.vdot(today, today, grid) / universe.n**3

    noise, direction = (pm.white_noise(jax.random.key(seed), pencil) for seed in (0, 1))
    omega_c = jnp.asarray(given.Omega_c, float)
    gradient = jax.jit(pfftjax.grad(loss, argnums=(0, 1), shared="omega_c"))
    slopes = gradient(noise, omega_c)
    along = (pfftjax.vdot(slopes[0], direction, grid), slopes[1])
    value = jax.jit(loss)
    # Small: the density has a kink where a particle goes from one cell to the next.
    small = 1e-6
    ways = ((small * direction, 0.0), (0 * direction, small))
    names = ("along a random direction of the white noise", "with respect to Omega_c")
    for name, slope, (dx, dy) in zip(names, along, ways, strict=True):
        ahead, behind = (value(noise + s * dx, omega_c + s * dy) for s in (1, -1))
        difference = float(ahead - behind) / (2 * small)
        yield Row(
            f"derivative of the variance of the density today {name}",
            "L = 100, 16^3, 5 FastPM steps",
            f"{float(slope):.8f}",
            f"{difference:.8f}, by central differences",
            "1e-6 of it",
            bool(abs(float(slope) / difference - 1) < 1e-6),
        )


# With the picture that some of them draw.
MEASUREMENTS = {
    growth_factors: None,
    stepping: None,
    initial_spectrum: None,
    primordial_bispectrum: None,
    linear_growth: None,
    fine_mesh_growth: None,
    convergence: None,
    nonlinear_spectrum: "steps.png",
    aliases: None,
    lensing: "convergence.png",
    pancake: None,
    conserved: None,
    reversal: None,
    decomposition: None,
    derivatives: None,
    surveys: "multipoles.png",
}


def main():
    """Measure everything, print the table and write it."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add = parser.add_argument
    add("--out", type=pathlib.Path, default=DOCUMENT, help="the page to write")
    names = [measurement.__name__ for measurement in MEASUREMENTS]
    add("--only", nargs="+", choices=names, help="these, in the page as it is (default: all)")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    table = Input(TABLE)
    first = COMM.rank == 0
    begin = time.perf_counter()
    rows = []
    chosen = [m for m in MEASUREMENTS if m.__name__ in (arguments.only or names)]
    bar = tqdm(chosen, disable=not first, unit="measurement")
    for measurement in bar:
        bar.set_postfix_str(measurement.__name__)
        folder, name = arguments.out.parent / FOLDER, MEASUREMENTS[measurement]
        rows += measurement(table, folder / name) if name else measurement(table)
    seconds = COMM.allreduce(time.perf_counter() - begin, MPI.MAX)
    if first:
        page = document(rows, seconds, COMM.size)
        if arguments.only:
            page = with_rows(arguments.out.read_text(), rows)
        print(page)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(page)
    sys.exit(any(row.ok is False for row in rows))


if __name__ == "__main__":
    main()
