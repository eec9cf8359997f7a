"""What `validate.py` measures against: theory that is computed without pfftjax."""

import itertools
import math

import numpy as np
import scipy.integrate


def followed(steps, start, omega_m):
    """The growing mode to second order through the steps: [D1, D2] and their momenta at the end.

    The force on a particle displaced by D1 psi1 + D2 psi2 is 3/2 Omega_m (D1 psi1 + (D2 - D1^2)
    psi2).
    """
    x = np.array([start.d1, start.d2], float)
    p = float(start.scale_factor**2 * start.e) * np.array([start.d1_rate, start.d2_rate], float)
    if steps.first_drift is not None:
        x = x + float(steps.first_drift) * p
    for i, (kick, drift) in enumerate(zip(steps.kick, steps.drift, strict=True)):
        factor = 1 if steps.momentum is None else steps.momentum[i]
        pull = 1.5 * omega_m * np.array([x[0], x[1] - x[0] ** 2])
        p = float(factor) * p + float(kick) * pull
        x = x + float(drift) * p
        if steps.paths is not None:
            along = np.asarray(steps.paths.kick[i], float)
            p, x = p + along, x + float(drift) * along + np.asarray(steps.paths.drift[i], float)
    return x, p


def one_loop(k, table, least, most):
    """P13 / 2 P, by which the density today correlates less with the linear one.

    After Jain & Bertschinger (1994); the loop goes over wavenumbers from `least` to `most`. On
    large scales it is -61/210 k^2 s^2, s the displacement in one direction.
    """
    q = np.geomspace(least, most, 4000)
    r = q / k
    power = np.exp(np.interp(np.log(q), np.log(table.k), np.log(table.linear)))
    logarithm = np.log(np.abs((1 + r) / (1 - r)))
    kernel = 12 / r**2 - 158 + 100 * r**2 - 42 * r**4
    kernel += 3 / r**3 * (r**2 - 1) ** 3 * (7 * r**2 + 2) * logarithm
    return k**3 / (2016 * np.pi**2) * scipy.integrate.trapezoid(power * kernel, r)


def amplitude_of_bispectrum(fields, box, table, d1):
    """f_NL of two fields that have it with opposite signs, of one Gaussian field.

    Half of the difference of their bispectra has its noise only where f_NL has its signal. Sums
    over all closed triangles of three shells are sums over space of three filtered fields
    (Scoccimarro 2015). In theory, with delta = alpha phi (Dalal et al. 2008),

        B = 2 f_NL P1 P2 alpha3 / (alpha1 alpha2) + 2 permutations.
    """
    n = len(fields[0])
    k = 2 * np.pi * np.fft.fftfreq(n, box / n)
    k = np.sqrt(sum(np.meshgrid(*[k**2] * 3, sparse=True)))
    k[0, 0, 0] = 1
    power = np.exp(np.interp(np.log(k), np.log(table.k), np.log(table.linear)))
    transfer = np.sqrt(power / table.linear[0] * (table.k[0] / k) ** table.cosmology.n_s)
    alpha = 2 / 3 * k**2 * transfer * d1 * 2997.92458**2 / table.cosmology.Omega_m
    cell = (box / n) ** 3
    spectra = [cell * np.fft.fftn(field) for field in fields]
    edges = np.arange(1.5, n / 4, 2) * 2 * np.pi / box
    shells = [(low <= k) & (k < high) for low, high in itertools.pairwise(edges)]

    def filtered(values):
        """Sums over the modes of each shell, at each point of space."""
        return [np.fft.ifftn(np.where(shell, values, 0)).real * n**3 for shell in shells]

    ones, some = filtered(np.ones_like(k)), [filtered(x) for x in spectra]
    first, second, variance = filtered(power / alpha), filtered(alpha), filtered(power)
    measured = expected = 0.0
    for i, j, m in itertools.combinations_with_replacement(range(len(shells)), 3):
        triangles = np.sum(ones[i] * ones[j] * ones[m])
        if triangles < 0.5 * n**3:
            continue
        plus, minus = (np.sum(x[i] * x[j] * x[m]) for x in some)
        sums = ((i, j, m), (j, m, i), (m, i, j))
        theory = 2 * sum(np.sum(first[a] * first[b] * second[c]) for a, b, c in sums)
        weight = theory / np.sum(variance[i] * variance[j] * variance[m])
        measured += weight * (plus - minus) / (2 * box**3)
        expected += weight * theory
    return measured / expected


def tree_bispectrum(edges, triangles, box, table, grown):
    """The bispectrum of second-order perturbation theory in triangles of shells, and its variance
    in a Gaussian field, but for a factor; `edges` are in units of the lowest wavenumber.

    The kernel is a sum of products of powers of the wavenumbers, so that sums over triangles of
    modes are sums over space of products of three fields (Scoccimarro 2015):

        2 F2(k1, k2) = 5/7 + 3/14 (k3^2/k1^2 + k3^2/k2^2) - 5/14 (k1^2/k2^2 + k2^2/k1^2)
                       + 1/7 k3^4 / (k1^2 k2^2)
    """
    n = 2 * math.ceil(1.5 * edges[-1] + 1)
    m = np.fft.fftfreq(n, 1 / n)
    m = np.sqrt(sum(np.meshgrid(*[m**2] * 3, sparse=True)))
    m[0, 0, 0] = 1
    k = 2 * np.pi / box * m
    power = grown**2 * np.exp(np.interp(np.log(k), np.log(table.k), np.log(table.linear)))

    def filtered(values):
        """Sums over the modes of each shell, at each point of space."""
        shells = [(low <= m) & (m < high) for low, high in itertools.pairwise(edges)]
        return [np.fft.ifftn(np.where(shell, values, 0)).real * n**3 for shell in shells]

    less, some, more = (filtered(power * k**p) for p in (-2, 0, 2))
    one, square, fourth = (filtered(k**p) for p in (0, 2, 4))
    expected, variance = [], []
    for triangle in triangles:
        total = 0.0
        for a, b, c in (np.roll(triangle, turn) for turn in range(3)):
            products = 5 / 7 * some[a] * some[b] * one[c]
            products += 3 / 14 * (less[a] * some[b] + some[a] * less[b]) * square[c]
            products -= 5 / 14 * (more[a] * less[b] + less[a] * more[b]) * one[c]
            total += np.sum(products + 1 / 7 * less[a] * less[b] * fourth[c])
        i, j, third = triangle
        count = np.sum(one[i] * one[j] * one[third])
        # Each order of the modes of equal shells is one and the same triangle.
        orders = math.factorial(4 - len(set(triangle))) if len(set(triangle)) < 3 else 1
        expected.append(total / count)
        variance.append(orders * np.sum(some[i] * some[j] * some[third]) / count**2)
    return np.array(expected), np.array(variance)
