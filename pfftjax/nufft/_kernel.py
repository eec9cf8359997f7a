"""The kernel that points are spread by: the exponential of a semicircle, exp(beta (sqrt(1 - z^2) -
1)) for |z| <= 1 (Barnett et al. 2019), and what follows from its width.
"""

import functools
import math
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

LEAST_WIDTH, MOST_WIDTH = 2, 16
UPSAMPLINGS = (2.0, 1.25)

# beta / width at twice as many mesh cells as modes, where the general formula is not the best
# (section 4.2 there, and the authors' code).
_SHAPES = {2: 2.20, 3: 2.26, 4: 2.38}
_SHAPE = 2.30


# Errors of a kernel of width w, the root of the mean square over points and modes, are at most
# factor exp(-w decay), by the upsampling: measured for each width, in three dimensions.
_ERRORS = {2.0: (40.0, math.log(10.0)), 1.25: (8.0, math.pi * math.sqrt(1 - 1 / 1.25))}


def width_for(tolerance: float, upsampling: float) -> int:
    """Mesh points along each axis that a point is spread to, for errors of that size."""
    factor, decay = _ERRORS[upsampling]
    return max(LEAST_WIDTH, math.ceil(math.log(factor / tolerance) / decay))


def least_tolerance(upsampling: float) -> float:
    """What the widest kernel reaches."""
    factor, decay = _ERRORS[upsampling]
    return max(1e-14, factor * math.exp(-MOST_WIDTH * decay))


def shape_of(width: int, upsampling: float) -> float:
    """The exponent beta."""
    if upsampling == 2.0:
        return _SHAPES.get(width, _SHAPE) * width
    return 0.97 * math.pi * width * (1 - 1 / (2 * upsampling))


def _values(z: np.ndarray, beta: float) -> np.ndarray:
    return np.exp(beta * (np.sqrt(np.maximum(1 - z * z, 0)) - 1))


@functools.lru_cache
def polynomials(width: int, upsampling: float) -> tuple[tuple[float, ...], ...]:
    """Coefficients, from the constant on, of the polynomial for each point that a point reaches.

    The weight of point i is a polynomial of 2 t - 1, for t in [0, 1] as of
    `pfftjax.pm` (cpp/pm/assignment.h): where the particle is beyond the place at which point 0
    becomes the first. As the kernel jumps by exp(-beta) at its ends, nothing is gained by
    polynomials that are closer to it than that.
    """
    beta = shape_of(width, upsampling)
    degree = width
    fits, worst = _fits(width, beta, degree)
    while worst > max(math.exp(-beta), 1e-14) and degree < width + 3:
        degree += 1
        fits, worst = _fits(width, beta, degree)
    return tuple(tuple(map(float, fit)) for fit in fits)


def _fits(width: int, beta: float, degree: int) -> tuple[list[list[float]], float]:
    """Polynomials through the Chebyshev points of each weight, and their largest error."""
    probes = np.linspace(-1, 1, 201)
    fits, worst = [], 0.0
    for i in range(width):

        def weight(s: Any, i: int = i) -> Any:
            return _values((2 * i + 1 - width - s) / width, beta)

        series = chebyshev.chebinterpolate(weight, degree)
        errors = np.abs(chebyshev.chebval(probes, series) - weight(probes))
        worst = max(worst, float(errors.max()))
        # A coefficient that vanishes at the end would be left out.
        powers = chebyshev.cheb2poly(series)
        fits.append([*powers, *(0.0,) * (degree + 1 - len(powers))])
    return fits, worst


@functools.lru_cache
def deconvolution(modes: int, mesh: int, width: int, upsampling: float) -> np.ndarray:
    """1 over the kernel's Fourier transform at each mode, in FFT order: float64 (modes,).

    The transform is the integral of the kernel times exp(-i k x), for x in mesh cells. With z =
    sin(theta) the square root is smooth, and the trapezoidal rule misses no more than what is at
    the ends, exp(-beta) / 12 times a squared step.
    """
    step = math.pi / 512
    theta = (np.arange(1, 512) - 256) * step
    weights = _values(np.sin(theta), shape_of(width, upsampling)) * np.cos(theta)
    k = np.abs(np.fft.fftfreq(modes, 1 / modes))
    phase = (math.pi * width / mesh) * k[:, None] * np.sin(theta)
    return 2 / (width * step * (np.cos(phase) @ weights))
