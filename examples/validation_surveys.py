"""What `validate.py` measures of what surveys see: redshift space, and bispectra."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from validation_page import between, error
from validation_pictures import draw_multipoles
from validation_theory import tree_bispectrum
from validation_universe import Universe

import pfftjax
from pfftjax import observables, pm, spectral

# Particles lie close enough for the force between neighbours on their lattice, and it is early
# enough for the next order of perturbation theory, to matter less than a per cent at k < 0.03.
N, BOX = 64, 640.0
SCALE_FACTORS = np.linspace(0.1, 0.2, 4)
NAMES = ("monopole", "quadrupole", "hexadecapole")
# The edges of wide shells of wavenumbers, in fundamental ones, and which three of them triangles
# close in.
NUMBERS = np.arange(1.5, 10, 2)
KINDS = tuple(
    (i, j, k)
    for i, j, k in itertools.combinations_with_replacement(range(len(NUMBERS) - 1), 3)
    if NUMBERS[k] < NUMBERS[i + 1] + NUMBERS[j + 1]
)


def fixed(universe, seed=0):
    """The linear density contrast today of white noise of fixed amplitudes."""

    def field():
        noise = pm.white_noise(jax.random.key(seed), universe.plan.input)
        noise = pm.fixed_amplitudes(noise, universe.plan)
        return pm.linear_field(noise, universe.plan, universe.box, universe.power)

    return jax.jit(field)()


def pair(universe, initial, kernel="cic"):
    """The particles at the last scale factor, of a field and of its negative."""
    starts = [universe.lpt(sign * initial, SCALE_FACTORS[0]) for sign in (1, -1)]
    return [universe.simulate(start, SCALE_FACTORS, pm.bullfrog, kernel) for start in starts]


def surveys(table, picture=None):
    """Runs from both signs of a field, in whose mean all is left out that has an odd number of
    factors of the first order.
    """
    universe = Universe(table, N, BOX, finer=2)
    initial = fixed(universe)
    runs = pair(universe, initial)
    yield from kaiser(universe, initial, runs, table, picture)
    yield from tree_level(universe, initial, runs, table)


def kaiser(universe, initial, runs, table, picture):
    """Multipoles in redshift space over Kaiser's of the same modes (Kaiser 1987)."""
    plan, mesh, a = universe.plan, universe.mesh, float(SCALE_FACTORS[-1])
    lines = {"an axis": 2, "a diagonal": (1.0, 1.0, 1.0)}

    @jax.jit
    def seen(particles):
        found = []
        for n in lines.values():
            moved = observables.redshift_space(particles, mesh, BOX, universe.cosmology, n)
            density = pm.density_contrast(moved, mesh, kernel="pcs")
            found.append(observables.power_multipoles(density, mesh, BOX, n, kernel="pcs"))
        return found

    @jax.jit
    def theory(delta):
        now, today = (pm.growth(universe.cosmology, x) for x in (a, 1.0))
        rate = now.d1_rate / now.d1
        found = []
        for n in lines.values():
            unit = np.eye(3)[n] if isinstance(n, int) else np.array(n) / np.linalg.norm(n)

            def factor(*k, unit=unit):
                k2 = sum(q**2 for q in k)
                along = sum(q * x for q, x in zip(k, unit, strict=True))
                return 1 + rate * along**2 / jnp.where(k2 > 0, k2, 1)

            linear = spectral.apply(delta * now.d1 / today.d1, plan, BOX, factor)
            found.append(observables.power_multipoles(linear, plan, BOX, n))
        return found, rate, now.d1 / today.d1

    runs = [seen(run) for run in runs]
    expected, rate, grown = theory(initial)
    setting = f"L = {BOX:g}, {N}^3 on a mesh of {2 * N}^3, a = {a:g}"
    what = "{} in redshift space over Kaiser's of the same modes, less 1: {}"
    curves = []
    for number, line in enumerate(lines):
        power = np.mean([np.asarray(run[number].power) for run in runs], axis=0)
        known = np.asarray(expected[number].power)
        k, power = np.asarray(expected[number].k), power[:, : known.shape[1]]
        curves.append((k, power, known))
        ratio, where = power / known - 1, f"{setting}, along {line}"
        for order in (0, 1):
            worst = float(np.abs(ratio[order][k < 0.03]).max())
            yield error(what.format(NAMES[order], "largest up to k = 0.03"), where, worst, 0.01)
        # There is little of it, and much of that is the monopole in few modes.
        off = np.abs(power[2] - known[2]) / known[0]
        yield error(
            "hexadecapole less Kaiser's, over the monopole: largest up to k = 0.03",
            where,
            float(off[k < 0.03].max()),
            0.01,
        )
    draw_multipoles(picture, NAMES, curves[0], table, float(rate), float(grown))


def second_order(delta, plan, box):
    """The density contrast of second order of a linear one, in space:
    5/7 delta^2 + grad delta . grad phi + 2/7 (grad grad phi)^2, laplacian phi = delta.
    """
    phi = spectral.inverse_laplacian(delta, plan, box)
    pushes = spectral.gradient(phi, plan, box)
    slopes = spectral.gradient(delta, plan, box)
    total = 5 / 7 * delta**2 + sum(x * y for x, y in zip(slopes, pushes, strict=True))
    tides = (spectral.gradient(push, plan, box) for push in pushes)
    return total + 2 / 7 * sum(x**2 for tide in tides for x in tide)


class Triangles:
    """Bispectra in a universe of all `KINDS` of triangles of wide shells."""

    def __init__(self, universe):
        self.universe = universe
        self._measure, self._predict = jax.jit(self._measured), jax.jit(self._predicted)

    def measured(self, runs):
        """The mean over runs."""
        return np.mean([np.asarray(self._measure(run)) for run in runs], axis=0)

    def tree_level(self, delta):
        """That of second-order perturbation theory of a field today, and of its negative."""
        return np.asarray(self._predict(delta))

    def linear_growth(self):
        """The linear field at the last scale factor over that of today."""
        now, today = (pm.growth(self.universe.cosmology, a).d1 for a in (SCALE_FACTORS[-1], 1.0))
        return now / today

    def _of(self, field, **options):
        edges = tuple(NUMBERS * 2 * np.pi / BOX)
        options = {"triangles": KINDS, "edges": edges, **options}
        return observables.bispectrum(field, self.universe.mesh, BOX, **options).bispectrum

    def _measured(self, particles):
        density = pm.density_contrast(particles, self.universe.mesh, kernel="pcs")
        return self._of(density, kernel="pcs")

    def _predicted(self, delta):
        plan, mesh = self.universe.plan, self.universe.mesh
        # Products of its modes have no aliases on the finer mesh.
        spectrum = pfftjax.pad_spectrum(plan.forward(delta * self.linear_growth()), plan, mesh)
        first = mesh.inverse(spectrum)
        second = second_order(first, mesh, BOX)
        return (self._of(first + second) + self._of(second - first)) / 2


def tree_level(universe, initial, runs, table):
    """The bispectrum of matter over that of tree level, of the same modes and in the mean.

    Half of a field has a quarter of the next order. Steps have in them the force between particles
    that still lie nearly on a lattice, which more particles and a mesh that is finer beside them
    make small.
    """
    a = float(SCALE_FACTORS[-1])
    coarse, fine = Triangles(universe), Triangles(Universe(table, 3 * N // 2, BOX, finer=4))
    half = [universe.lpt(sign * initial / 2, a) for sign in (1, -1)]
    yield compared(coarse, initial / 2, half, "LPT of second order from half of the field", 0.03)
    yield compared(coarse, initial, runs, "three steps", 0.06)
    detailed = fixed(fine.universe)
    of_fine = pair(fine.universe, detailed, "tsc")
    yield compared(fine, detailed, of_fine, "three steps, TSC", 0.03)
    # The mean of some fields is that of theory, but for what is left of their own modes.
    growth = float(fine.linear_growth())
    expected, variance = tree_bispectrum(NUMBERS, KINDS, BOX, table, growth)
    weight = expected / variance
    fields = [fine.tree_level(fixed(fine.universe, seed)) for seed in range(6)]

    def amplitude(bispectrum):
        return float(np.sum(weight * bispectrum) / np.sum(weight * expected))

    of_its_modes = amplitude(fine.measured(of_fine)) / amplitude(fields[0])
    value = of_its_modes * amplitude(np.mean(fields, axis=0))
    where = f"{_setting(fine.universe)}, three steps, TSC, weighted mean, {len(fields)} fields"
    yield between("bispectrum over the integral of tree level", where, value, "1", 0.97, 1.03)


def compared(triangles, delta, runs, name, bound):
    """The row of runs from a field and its negative, beside tree level of the field."""
    found, same = triangles.measured(runs), triangles.tree_level(delta)
    worst = float(np.abs(found / same - 1).max())
    what = f"of the same modes, less 1: largest of {len(KINDS)} kinds of triangles"
    setting = f"{_setting(triangles.universe)}, {name}"
    return error(f"bispectrum over tree level {what}", setting, worst, bound)


def _setting(universe):
    last = f"a = {SCALE_FACTORS[-1]:g}, k < {NUMBERS[-1] * 2 * np.pi / BOX:.3f}"
    return f"L = {BOX:g}, {universe.n}^3 on a mesh of {universe.mesh.shape[0]}^3, {last}"
