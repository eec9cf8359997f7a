"""White noise that does not depend on the process grid."""

from collections.abc import Sequence
from typing import Literal

import jax
import jax.extend.random as jxr
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from pfftjax._runtime.arrays import Reals
from pfftjax._runtime.primitive import where
from pfftjax.collectives.internal import same
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil


def white_noise(
    key: PRNGKeyArray,
    pencil: Pencil,
    dtype: DTypeLike | None = None,
    *,
    drawn_in: Literal["float32", "float64"] = "float32",
) -> Reals:
    """Standard normal numbers: this rank's block of one array, the same on any process grid.

    A cell's number depends on the key and on the cell's global index alone (threefry as a counter
    of cells, Salmon et al. 2011). The array is that of ``jax.random.normal(key, global_shape,
    drawn_in)`` to the last bit, then cast to `dtype`.

    In float32 and in float64 `jax.random.normal` draws different numbers, not the same ones to
    more digits. Here they are drawn in float32 unless `drawn_in` says otherwise, so that runs in
    single and in double precision start from the same universe. With ``JAX_ENABLE_X64=1``
    ``jax.random.normal(key, shape)`` draws in float64: its numbers are those of
    ``drawn_in="float64"``.

    Args:
        key: a key of `jax.random.key` or `jax.random.PRNGKey`, of the default implementation,
            threefry2x32. The same on every rank: the ranks compare it when a jitted program runs
            for the first time, and outside of jit on each call.
        pencil: the distributed array, in any memory order.
        dtype: of the result, floating-point; JAX's default by default.
        drawn_in: in which precision numbers are drawn; "float64" needs ``JAX_ENABLE_X64=1``.

    Returns:
        Array of shape ``(*pencil.local_shape,)``.

    Raises:
        TypeError: a key of another implementation, a dtype that is not floating-point, or no
            pencil.
        ValueError: another `drawn_in`, or float64 without x64.
        jax.errors.JaxRuntimeError: when it runs, on every rank: the key differs between ranks.

    Collective over the ranks of the pencil's grid, as all of them compare the key.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> pencil = Pencil((4, 3, 2), ProcessGrid())
        >>> noise = white_noise(jax.random.key(0), pencil, "float32")
        >>> whole = jax.random.normal(jax.random.key(0), (4, 3, 2), "float32")
        >>> bool(jnp.all(noise == pencil.local_block(whole)))
        True

    """
    comm = checked_pencil(pencil, "white_noise").grid.communicator
    here = where("white_noise", comm)
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{here}: dtype must be floating-point, got {dtype}")
    if not isinstance(drawn_in, str) or drawn_in not in ("float32", "float64"):
        raise ValueError(f"{here}: drawn_in must be 'float32' or 'float64', got {drawn_in!r}")
    if jax.dtypes.canonicalize_dtype(drawn_in) != drawn_in:
        raise ValueError(f"{here}: drawn_in='float64' needs JAX_ENABLE_X64=1")
    words = same(
        _key_words(key, here),
        "the key",
        operation="white_noise",
        remedy="make it of one seed, jax.random.key(seed): the ranks' blocks differ anyway",
        comm=comm,
    )
    axes = range(len(pencil.global_shape))
    high, low = _global_index(pencil.global_shape, [pencil.indices(axis) for axis in axes])
    first, second = jxr.threefry2x32_p.bind(
        *(jnp.broadcast_to(word, high.shape) for word in words), high, low
    )
    return _normal(first, second, drawn_in).astype(dtype)


def _key_words(key: object, here: str) -> jax.Array:
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
    return jnp.asarray(key)


def _global_index(
    global_shape: Sequence[int], indices: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The row-major global index of each cell, as the high and low words of 64 bits, from those
    along the axes.
    """
    high = low = jnp.zeros(jnp.broadcast_shapes(*(i.shape for i in indices)), jnp.uint32)
    for n, index in zip(global_shape, indices, strict=True):
        high, low = _times(high, low, n)
        low = low + index.astype(jnp.uint32)
        high = high + (low < index.astype(jnp.uint32)).astype(jnp.uint32)
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


def _normal(first: jax.Array, second: jax.Array, drawn_in: str) -> Reals:
    """The number that `jax.random.normal` makes of two words, in the operations that it uses:
    sqrt(2) erfinv(u), u uniform in (-1, 1).
    """
    real, info = np.dtype(drawn_in).type, np.finfo(drawn_in)
    unsigned = np.dtype(f"uint{info.bits}").type
    if info.bits == 64:
        bits = (first.astype(unsigned) << unsigned(32)) | second.astype(unsigned)
    else:
        bits = first ^ second
    mantissa = (bits >> unsigned(info.bits - info.nmant)) | real(1).view(unsigned)
    uniform = jax.lax.bitcast_convert_type(mantissa, real) - real(1)
    least = np.nextafter(real(-1), real(0))
    u = jnp.maximum(least, uniform * (real(1) - least) + least)
    return real(np.sqrt(2)) * jax.lax.erf_inv(u)
