"""HEALPix: pixels of equal area on the sphere (Gorski et al. 2005).

Rings of pixels are counted from the north pole, i = 1 to 4 nside - 1. In the caps, i < nside, ring
i has 4 i pixels at z = 1 - i^2 / (3 nside^2); elsewhere, 4 nside at z = 4/3 - 2 i / (3 nside), and
every other of these rings is shifted by half a pixel. Near the poles all is computed from 1 - |z|
without cancellation, so that float32 is enough for every nside.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfftjax._runtime.arrays import Indices, Reals, RealsLike

# The number of pixels of the next power of two is no int32.
_LARGEST = 8192


class _Direction(NamedTuple):
    """Points on the sphere: z, 1 - |z| to all its digits, and the longitude from 0 to 2 pi."""

    z: Reals
    to_pole: Reals
    longitude: Reals


def checked_nside(nside: object, operation: str, *, nested: bool = False) -> int:
    """`nside`, if it is the resolution of a map."""
    number = nside if isinstance(nside, int | np.integer) and not isinstance(nside, bool) else 0
    if not 1 <= number <= _LARGEST:
        raise ValueError(
            f"{operation}: nside must be an integer from 1 to {_LARGEST}, known while the program "
            f"is traced, got {nside!r}: a map has 12 nside^2 pixels"
        )
    if nested and number & (number - 1):
        raise ValueError(
            f"{operation}: nested pixels need an nside that is a power of two, got {number}; take "
            "such a one, or nested=False"
        )
    return int(number)


def _direction(vectors: Reals) -> _Direction:
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    across = x**2 + y**2
    length = jnp.sqrt(across + z**2)
    length = jnp.where(length > 0, length, 1)
    # Where a vector is on the axis, its longitude is zero, and so is the derivative.
    is_polar = across == 0
    longitude = jnp.arctan2(jnp.where(is_polar, 0, y), jnp.where(is_polar, 1, x))
    longitude = jnp.where(longitude < 0, longitude + 2 * np.pi, longitude)
    return _Direction(z / length, across / (length * (length + jnp.abs(z))), longitude)


def _as_vectors(vectors: RealsLike, operation: str) -> Reals:
    found = jnp.asarray(vectors)
    if not jnp.issubdtype(found.dtype, jnp.floating):
        found = found.astype(float)
    if found.ndim < 1 or found.shape[-1] != 3:
        raise ValueError(f"{operation}: vectors must be (..., 3), got {found.shape}")
    # Times powers of two, so that squares are numbers. No direction changes.
    longest = jax.lax.stop_gradient(jnp.max(jnp.abs(found), -1, keepdims=True))
    most = int(jnp.finfo(found.dtype).maxexp) - 2
    exponent = jnp.clip(jnp.frexp(longest)[1], -most, most)
    return found * jnp.ldexp(jnp.ones((), found.dtype), -exponent)


def directions(theta: RealsLike, phi: RealsLike) -> Reals:
    """Unit vectors of colatitudes and longitudes, in radians.

    Args:
        theta: from 0 at the north pole to pi.
        phi: of the same shape.

    Example:
        >>> directions(0.0, 0.0).tolist()
        [0.0, 0.0, 1.0]

    """
    theta, phi = jnp.asarray(theta, float), jnp.asarray(phi, float)
    across = jnp.sin(theta)
    return jnp.stack([across * jnp.cos(phi), across * jnp.sin(phi), jnp.cos(theta)], -1)


def pixels_of(vectors: RealsLike, nside: int, *, nested: bool = False) -> Indices:
    """The pixels in which vectors from the centre of the sphere end.

    Args:
        vectors: (..., 3), of any length; `directions` makes them of angles.
        nside: a map has 12 nside^2 pixels; at most 8192.
        nested: the nested order, for an nside that is a power of two; by default the order of
            rings, which is healpy's.

    Returns:
        int32 (...). It has no derivative: `interpolation_weights` has.

    Raises:
        ValueError: shapes or an nside that do not fit.

    Example:
        >>> pixels_of(jnp.array([[0.0, 0.0, 1.0], [1.0, 0.2, 0.1]]), 16).tolist()
        [0, 1314]
        >>> int(pixels_of(directions(0.5, 0.1), 16, nested=True))
        190

    """
    n = checked_nside(nside, "pixels_of", nested=nested)
    at = _direction(jax.lax.stop_gradient(_as_vectors(vectors, "pixels_of")))
    return _nested(at, n) if nested else _in_rings(at, n)


def _lines(at: _Direction, n: int) -> tuple[jax.Array, ...]:
    """Which quarter of the sphere, where in it, whether near the equator, and the two families
    of lines that bound pixels: how many of each are below.
    """
    turns = at.longitude * (2 / np.pi)
    quarter = jnp.clip(jnp.floor(turns), 0, 3)
    is_belt = jnp.abs(at.z) <= 2 / 3
    # Lines that rise and that fall with the longitude, in units of a pixel's side.
    middle, tilt = n * (0.5 + turns), n * 0.75 * at.z
    part = turns - quarter
    scale = n * jnp.sqrt(3 * at.to_pole)
    up = jnp.where(is_belt, middle - tilt, part * scale)
    down = jnp.where(is_belt, middle + tilt, (1 - part) * scale)
    # Rounding must not lead beyond a cap.
    most = jnp.where(is_belt, 8 * n, n - 1)
    up, down = (jnp.clip(jnp.floor(x), 0, most).astype(jnp.int32) for x in (up, down))
    return quarter.astype(jnp.int32), turns, is_belt, up, down


def _in_rings(at: _Direction, n: int) -> jax.Array:
    _, turns, is_belt, up, down = _lines(at, n)
    ring = n + 1 + up - down  # from the last one of the cap, which is 1
    shift = 1 - (ring & 1)
    along = ((up + down - n + shift + 1) // 2) % (4 * n)
    of_belt = 2 * n * (n - 1) + (ring - 1) * 4 * n + along
    i = up + down + 1  # from the nearer pole
    along = jnp.floor(turns * i).astype(jnp.int32) % (4 * i)
    of_cap = jnp.where(at.z > 0, 2 * i * (i - 1) + along, 12 * n**2 - 2 * i * (i + 1) + along)
    return jnp.where(is_belt, of_belt, of_cap)


def _nested(at: _Direction, n: int) -> jax.Array:
    """Twelve faces, each a square in which bits of both coordinates take turns."""
    quarter, _, is_belt, up, down = _lines(at, n)
    face_up, face_down = up // n, down // n
    face = jnp.where(
        face_up == face_down,
        (face_up & 3) + 4,
        jnp.where(face_up < face_down, face_up & 3, (face_down & 3) + 8),
    )
    x, y = down % n, n - 1 - up % n
    is_north = at.z >= 0
    face = jnp.where(is_belt, face, jnp.where(is_north, quarter, quarter + 8))
    x = jnp.where(is_belt, x, jnp.where(is_north, n - 1 - down, up))
    y = jnp.where(is_belt, y, jnp.where(is_north, n - 1 - up, down))
    return face * n**2 + _spread(x) + 2 * _spread(y)


def _spread(x: jax.Array) -> jax.Array:
    """Bits of a number below 2^13, with zeros between them."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        x = (x | (x << shift)) & mask
    return x


class _Ring(NamedTuple):
    """Rings of pixels: the first pixel of each, how many, and by how many halves of one they are
    shifted.
    """

    start: jax.Array
    pixels: jax.Array
    halves: jax.Array


def _ring(number: jax.Array, n: int) -> _Ring:
    """That of a number from 1 to 4 nside - 1."""
    is_south = number > 2 * n
    i = jnp.where(is_south, 4 * n - number, number)
    is_cap = i < n
    first = jnp.where(is_cap, 2 * i * (i - 1), 2 * n * (n - 1) + (i - n) * 4 * n)
    count = 4 * jnp.minimum(i, n)
    start = jnp.where(is_south, 12 * n**2 - first - count, first)
    return _Ring(start, count, (is_cap | (((i - n) & 1) == 0)).astype(jnp.int32))


@functools.cache
def _colatitudes(n: int) -> np.ndarray:
    """(4 nside + 1,), of all rings, and of the poles."""
    i = np.arange(2 * n + 1)
    of_cap = 2 * np.arcsin(np.minimum(i, n) / (n * np.sqrt(6)))
    north = np.where(i < n, of_cap, np.arccos(np.clip((4 - 2 * i / n) / 3, -1, 1)))
    return np.concatenate([north, np.pi - north[-2::-1]])


def interpolation_weights(vectors: RealsLike, nside: int) -> tuple[Indices, Reals]:
    """The four pixels around each vector and their weights, linear in colatitude and longitude.

    They are those of healpy's `get_interp_weights`, of maps in the order of rings: two neighbours
    on the ring above and two on the ring below, and around a pole the four pixels of its ring.
    The ring of even number comes first, and on each ring the pixel of even number. Weights add up
    to one and are differentiable in the vectors; they are continuous from pixel to pixel.

    Args:
        vectors: (..., 3), of any length.
        nside: a map has 12 nside^2 pixels.

    Returns:
        (pixels, weights): int32 (..., 4) and (..., 4).

    Raises:
        ValueError: shapes or an nside that do not fit.

    Example:
        >>> pixels, weights = interpolation_weights(jnp.array([1.0, 0.2, 0.1]), 16)
        >>> pixels.tolist(), bool(jnp.isclose(weights.sum(), 1))
        ([1378, 1377, 1314, 1315], True)

    """
    n = checked_nside(nside, "interpolation_weights")
    vectors = _as_vectors(vectors, "interpolation_weights")
    at = _direction(vectors)
    dtype = vectors.dtype
    across = vectors[..., 0] ** 2 + vectors[..., 1] ** 2
    across = jnp.where(across > 0, jnp.sqrt(jnp.where(across > 0, across, 1)), 0)
    theta = jnp.arctan2(across, vectors[..., 2])

    in_belt = jnp.floor(n * (2 - 1.5 * at.z))
    in_cap = jnp.floor(n * jnp.sqrt(3 * jax.lax.stop_gradient(at.to_pole)))
    in_cap = jnp.where(at.z > 0, in_cap, 4 * n - 1 - in_cap)
    above = jnp.where(jnp.abs(at.z) <= 2 / 3, in_belt, in_cap)
    above = jnp.clip(above, 0, 4 * n - 1).astype(jnp.int32)
    # The poles, 0 and 4 nside, are of the even ones.
    even, odd = above + (above & 1), above | 1

    def along(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The two pixels of a ring beside each longitude, and their weights."""
        ring = _ring(number, n)
        # In halves of a pixel: a product alone is rounded alike wherever a compiler repeats it,
        # and with it what it lies between; with a sum it may be rounded once or twice.
        place = at.longitude * (ring.pixels / np.pi).astype(dtype)
        left = (jnp.floor(place).astype(jnp.int32) - ring.halves) >> 1
        pair, part = by_parity(left, (place - (2 * left + ring.halves).astype(dtype)) / 2)
        # Rounding leads at most one pixel around. Remainders would take a third of all time.
        count = ring.pixels[..., None]
        pair = pair + jnp.where(pair < 0, count, 0) - jnp.where(pair >= count, count, 0)
        return ring.start[..., None] + pair, part

    theta_of = jnp.asarray(_colatitudes(n), dtype)
    start, end = theta_of[above], theta_of[above + 1]
    down = by_parity(above, (theta - start) / (end - start))[1]
    of_odd, odd_weights = along(odd)
    of_even, even_weights = along(jnp.clip(even, 2, 4 * n - 2))
    # A pole is the mean of the four pixels around it: those of the odd ring, and two more.
    is_pole = ((even == 0) | (even == 4 * n))[..., None]
    begin = jnp.where(even == 0, 0, 12 * n**2 - 4)[..., None]
    of_even = jnp.where(is_pole, begin + ((of_odd - begin + 2) & 3), of_even)
    of_pole = 0.25 * down[..., :1]
    even_weights = jnp.where(is_pole, of_pole, down[..., :1] * even_weights)
    odd_weights = down[..., 1:] * odd_weights + jnp.where(is_pole, of_pole, 0)
    return jnp.concatenate([of_even, of_odd], -1), jnp.concatenate([even_weights, odd_weights], -1)


def by_parity(left: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(..., 2), the even and the odd one of `left` and `left` + 1, and the weight of each between
    which something lies that is `part` of the way from one to the other.

    Where a compiler computes what lies on one of them twice, and finds it on either side, that
    changes the index of what has no weight.
    """
    is_odd = (left & 1) == 1
    even, odd = jnp.where(is_odd, part, 1 - part), jnp.where(is_odd, 1 - part, part)
    return jnp.stack([left + (left & 1), left | 1], -1), jnp.stack([even, odd], -1)
