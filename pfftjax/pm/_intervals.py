"""Integrals over many intervals of scale factor at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.cache
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes from 0 to 1, weights, and those of the integrals from 0 to each node."""
    legendre = np.polynomial.legendre
    x, w = legendre.leggauss(points)
    # The polynomial that is one at a node and zero at the others is w sum (n + 1/2) P_n(x) P_n.
    inner = np.zeros((points, points))
    for n, p in enumerate(np.eye(points)):
        integral = legendre.legval(x, legendre.legint(p, lbnd=-1))
        inner += np.outer(integral, (n + 0.5) * legendre.legval(x, p))
    return (x + 1) / 2, w / 2, inner * w / 2


class Intervals:
    """From each start to its end, points in ln a for integrals. These are exact to 1e-10 for
    intervals of up to a factor of ten, and for those of many steps where all are short.
    """

    def __init__(self, start: jax.Array, end: jax.Array, steps: int) -> None:
        rules = gauss_legendre(16 if steps < 48 else 8)
        nodes, self.weights, self.inner = (jnp.asarray(x, start.dtype) for x in rules)
        self.length = jnp.log1p((end - start) / start)
        self.points = start * jnp.exp(nodes[:, None] * self.length)  # (nodes, n), scale factors

    def integral(self, rate: jax.Array) -> jax.Array:
        """(n,), of what is known at the points."""
        return self.length * (self.weights @ rate)

    def integral_to_points(self, rate: jax.Array) -> jax.Array:
        """(nodes, n), from the starts."""
        return self.length * (self.inner @ rate)
