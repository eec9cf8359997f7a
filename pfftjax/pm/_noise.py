"""White noise that does not depend on the process grid."""

from typing import Any

import jax
import jax.extend.random as jxr
import jax.numpy as jnp
import numpy as np

from pfftjax.collectives._primitive import where
from pfftjax.pencils import Pencil
from pfftjax.pencils._pencil import checked_pencil


def white_noise(key: jax.Array, pencil: Pencil, dtype: Any = None) -> jax.Array:
    """Standard normal numbers: this rank's block of ``jax.random.normal(key, global_shape)``.

    A cell's number depends on the key and on the cell's global index alone (threefry as a counter
    of cells, Salmon et al. 2011), so it has the same bits on any process grid. Numbers are drawn
    in float32 and then cast: a run in float64 starts from the same universe.

    Args:
        key: a key of `jax.random.key` or `jax.random.PRNGKey`, of the default implementation,
            threefry2x32. The same on every rank.
        pencil: the distributed array, in any memory order.
        dtype: float32 or float64; JAX's default by default.

    Returns:
        Array of shape ``(*pencil.local_shape,)``.

    Raises:
        TypeError: a key of another implementation, a dtype that is not floating-point, or no
            pencil.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> pencil = Pencil((4, 3, 2), ProcessGrid())
        >>> noise = white_noise(jax.random.key(0), pencil, "float32")
        >>> whole = jax.random.normal(jax.random.key(0), (4, 3, 2), "float32")
        >>> bool(jnp.all(noise == pencil.local_block(whole)))
        True

    """
    here = where("white_noise", checked_pencil(pencil, "white_noise").grid._comm)
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{here}: dtype must be floating-point, got {dtype}")
    words = _key_words(key, here)
    high, low = _global_index(pencil)
    first, second = jxr.threefry2x32_p.bind(
        *(jnp.broadcast_to(word, high.shape) for word in words), high, low
    )
    return _normal(first ^ second).astype(dtype)


def _key_words(key: Any, here: str) -> tuple[jax.Array, jax.Array]:
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"{here}: the key must be one of jax.random.key(seed), got {key!r}")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        name = str(jax.random.key_impl(key))
        if name not in ("threefry2x32", "fry"):
            raise TypeError(
                f"{here}: the key is of implementation {name}; only threefry2x32 draws the same "
                "numbers on any process grid: jax.random.key(seed, impl='threefry2x32')"
            )
        key = jax.random.key_data(key)
    if key.shape != (2,) or key.dtype != jnp.uint32:
        raise TypeError(
            f"{here}: a threefry key is one pair of uint32, got {key.dtype} of shape {key.shape}"
        )
    return key[0], key[1]


def _global_index(pencil: Pencil) -> tuple[jax.Array, jax.Array]:
    """The row-major global index of each cell, as the high and low words of 64 bits."""
    shape = pencil.local_shape
    high = low = jnp.zeros(shape, jnp.uint32)
    for axis, n in enumerate(pencil.global_shape):
        high, low = _times(high, low, n)
        low = low + pencil.indices(axis).astype(jnp.uint32)
        high = high + (low < pencil.indices(axis).astype(jnp.uint32)).astype(jnp.uint32)
    return high, low


def _times(high: jax.Array, low: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """(high, low) n, modulo 2^64, in 32-bit arithmetic: JAX has no 64 bits by default."""
    n_high, n_low = np.uint32(n >> 32), np.uint32(n & 0xFFFFFFFF)
    half = np.uint32(0xFFFF)
    a, b = low >> 16, low & half
    c, d = n_low >> 16, n_low & half
    middle = a * d + ((b * d) >> 16)
    carry = ((middle & half) + b * c) >> 16
    upper = a * c + (middle >> 16) + carry
    return high * n_low + low * n_high + upper, low * n_low


def _normal(bits: jax.Array) -> jax.Array:
    """As `jax.random.normal` makes float32 of 32 bits: sqrt(2) erfinv(u), u uniform in (-1, 1)."""
    mantissa = (bits >> np.uint32(32 - 23)) | np.float32(1).view(np.uint32)
    uniform = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - np.float32(1)
    least = np.nextafter(np.float32(-1), np.float32(0))
    u = jnp.maximum(least, uniform * (np.float32(1) - least) + least)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(u)
