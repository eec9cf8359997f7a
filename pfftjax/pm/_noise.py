"""White noise that does not depend on the process grid, nor, where it is wanted, on the mesh."""

import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.extend.random as jxr
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from pfftjax._runtime.arguments import where
from pfftjax._runtime.arrays import RealBlock, RealBlockLike, Reals
from pfftjax._runtime.communicators import Communicator
from pfftjax._runtime.rematerialization import select
from pfftjax.collectives.internal import same
from pfftjax.fft import PencilFFT
from pfftjax.pencils import Pencil
from pfftjax.pencils.internal import checked_pencil

from ._spectral import fields, real_plan


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
    axes = range(len(pencil.global_shape))
    high, low = _global_index(pencil.global_shape, [pencil.indices(axis) for axis in axes])
    first, second = _drawn(key, high, low, "white_noise", comm)
    return _normal(first, second, drawn_in).astype(dtype)


def nested_noise(key: PRNGKeyArray, plan: PencilFFT, dtype: DTypeLike | None = None) -> RealBlock:
    """White noise whose large scales are the same on meshes of any size.

    A mode's number depends on the key and on its wavevector alone, in units of the box's lowest
    (threefry as a counter of wavevectors, Salmon et al. 2011). Meshes of 256^3 and of 512^3 points
    so have the same modes where both have them, but for those at a Nyquist frequency: a simulation
    is refined, or tested at a lower resolution, in one universe. Drawn in float32, then cast.

    Args:
        key: as in `white_noise`.
        plan: ``PencilFFT(shape, grid, real=True)``, of less than 65536 points along each axis.
        dtype: of the result, floating-point; JAX's default by default.

    Returns:
        This rank's block of noise of unit variance, for `linear_field`: the same bits on any
        process grid. One inverse transform is made.

    Raises:
        TypeError, ValueError: as `white_noise`, or too fine a mesh.
        jax.errors.JaxRuntimeError: as `white_noise`.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> coarse, fine = (PencilFFT((n, n, n), ProcessGrid(), real=True) for n in (8, 16))
        >>> a, b = (nested_noise(jax.random.key(0), plan) for plan in (coarse, fine))
        >>> a.shape == coarse.input.local_shape
        True

    """
    real_plan(plan, "nested_noise")
    comm = plan.grid.communicator
    here = where("nested_noise", comm)
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{here}: dtype must be floating-point, got {dtype}")
    if max(plan.shape) >= 1 << 16:
        raise ValueError(
            f"{here}: a mesh must have less than 65536 points along each axis, got {plan.shape}"
        )
    # A mode and that of the opposite wavevector are conjugates, and one of them is drawn. Both are
    # here only where the last wavenumber has no sign, as the others are positive.
    signed, signs = [], []
    for axis, n in enumerate(plan.shape):
        index = plan.output.indices(axis)
        signed.append(jnp.where(2 * index > n, index - n, index))
        signs.append(jnp.where((index == 0) | (2 * index == n), 0, jnp.sign(signed[-1])))
    sign = jnp.where(signs[2] != 0, 1, jnp.where(signs[0] != 0, signs[0], signs[1]))
    x, y, z = (
        jnp.where((2 * k == n) | (sign >= 0), k, -k)
        for k, n in zip(signed, plan.shape, strict=True)
    )
    x, y, z = (jnp.broadcast_to(k, sign.shape).astype(jnp.uint32) for k in (x, y, jnp.abs(z)))
    words = _drawn(key, x, (y << 16) | z, "nested_noise", comm)
    # Complex numbers have no less than 32 bits.
    of_modes = jnp.promote_types(dtype, "float32")
    real, imaginary = (
        _normal(word, jnp.zeros_like(word), "float32").astype(of_modes) for word in words
    )
    has_phase = sign != 0
    part = np.sqrt(0.5).astype(of_modes)  # each of the two has half of the variance
    modes = jax.lax.complex(
        jnp.where(has_phase, part * real, real),
        jnp.where(has_phase, part * sign.astype(of_modes) * imaginary, 0),
    )
    return plan.inverse(modes * np.sqrt(math.prod(plan.shape)).astype(of_modes)).astype(dtype)


def fixed_amplitudes(noise: RealBlockLike, plan: PencilFFT) -> RealBlock:
    """Noise whose modes all have unit amplitude, and the phases of those of `noise`.

    Spectra of simulations from such noise scatter much less about their mean, and those of a pair,
    from x and from -x, even less (Angulo & Pontzen 2016).

    Args:
        noise: this rank's block, of `white_noise` or `nested_noise`.
        plan: ``PencilFFT(shape, grid, real=True)``.

    Returns:
        This rank's block, as large as `noise`. The mode k = 0 keeps its sign.

    Raises:
        ValueError, TypeError: a plan or a block that do not fit.

    Example:
        >>> from pfftjax import ProcessGrid
        >>> plan = PencilFFT((8, 8, 8), ProcessGrid(), real=True)
        >>> noise = fixed_amplitudes(white_noise(jax.random.key(0), plan.input), plan)
        >>> bool(jnp.allclose(jnp.abs(plan.forward(noise)), 8**1.5, rtol=1e-5))
        True

    """
    real_plan(plan, "fixed_amplitudes")
    noise = fields(noise, plan, "fixed_amplitudes")
    modes = plan.forward(noise)
    size = jnp.abs(modes)
    unit = select(size > 0, modes / select(size > 0, size, 1), 1)
    return plan.inverse(unit * np.sqrt(math.prod(plan.shape)).astype(noise.dtype))


def _drawn(
    key: PRNGKeyArray, high: jax.Array, low: jax.Array, operation: str, comm: Communicator
) -> list[jax.Array]:
    """Two words for each count, of a key that the ranks compare."""
    words = same(
        _key_words(key, where(operation, comm)),
        "the key",
        operation=operation,
        remedy="make it of one seed, jax.random.key(seed): the ranks' blocks differ anyway",
        comm=comm,
    )
    spread = (jnp.broadcast_to(word, high.shape) for word in words)
    return jxr.threefry2x32_p.bind(*spread, high, low)


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
