"""The two transforms, for points that are on the ranks that own their cells of the finer mesh.

With S the spreading of strengths onto the mesh, F its Fourier transform without the modes that
nobody asked for, and D the division by the kernel's transform,

    to_modes   D F S c    to_points   S^T F^T D f

up to conjugations where the sign of i is not that of F. In each the operator depends on the
points. The derivative along u, in mesh cells, of exp(sign i k x) is sign i k (2 pi / N) times
itself, so that it takes transforms only:

    to_modes    sum over axes a of sign i k_a (2 pi / N_a) to_modes(du_a c)
    to_points   sum over axes a of du_a to_points(sign i k_a (2 pi / N_a) f)

They have the tolerance of the transforms themselves. The derivative of the kernel would be the
exact one of what is computed, but its error is 2 to 3 times that of values, and in second
derivatives 20 to 70 times, as the slope of the semicircle has no bound where it ends.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pfftjax._runtime.ordering import EFFECTS
from pfftjax._runtime.rematerialization import recompute
from pfftjax._runtime.rules import Operands, Tangent, Tangents, transposed_by, with_tangent
from pfftjax.fft import PencilFFT
from pfftjax.fft.internal import forward_steps, inverse_steps, wavenumbers_along
from pfftjax.fft.internal import run as run_steps
from pfftjax.pencils import halo_exchange, halo_reduce
from pfftjax.pm.internal import Assignment, one_by_one

from ._kernel import deconvolution
from ._spreading import interpolate_p, spread_p


@dataclasses.dataclass(frozen=True)
class Meshes:
    """What the transforms need of a plan.

    Attributes:
        modes: whose spectrum the modes are; its norm is "forward".
        fine: the same with more points.
        width: of the kernel, in cells of the finer mesh.
        upsampling: how many times finer it is.

    """

    modes: PencilFFT
    fine: PencilFFT
    width: int
    upsampling: float

    @property
    def kernel(self) -> dict[str, Any]:
        """The parameters of `spread_p` and `interpolate_p`."""
        return {"pencil": self.fine.input, "width": self.width, "sigma": self.upsampling}

    def undo_kernel(self, f: jax.Array, scale: float) -> jax.Array:
        """The modes over the kernel's Fourier transform, times `scale`."""
        dtype = jnp.finfo(f.dtype).dtype
        for axis, (modes, cells) in enumerate(zip(self.modes.shape, self.fine.shape, strict=True)):
            factors = deconvolution(modes, cells, self.width, self.upsampling)
            factors = factors * scale if axis == 0 else factors
            f = f * jnp.asarray(factors, dtype)[self.modes.output.indices(axis)]
        return f

    def _slopes(self, dtype: np.dtype, sign: int) -> list[jax.Array]:
        """Factors sign i k_a 2 pi / N_a of modes, for each axis a."""
        k = (
            wavenumbers_along(self.modes, self.modes.output, axis, cells, dtype)
            for axis, cells in enumerate(self.fine.shape)
        )
        return [jax.lax.complex(jnp.zeros_like(x), sign * x) for x in k]

    def gradient(self, f: jax.Array, sign: int) -> jax.Array:
        """The modes (components, ...) times these factors: (components, 3, ...)."""
        return jnp.stack([x * f for x in self._slopes(jnp.finfo(f.dtype).dtype, sign)], axis=1)

    def divergence(self, f: jax.Array, sign: int) -> jax.Array:
        """The sum over a of modes (components, 3, ...) times these factors: its transpose."""
        factors = self._slopes(jnp.finfo(f.dtype).dtype, sign)
        return functools.reduce(jnp.add, (x * f[:, axis] for axis, x in enumerate(factors)))


def _conjugate_if(condition: bool, x: jax.Array) -> jax.Array:
    return jnp.conj(x) if condition else x


def _modes_of(*operands: jax.Array, meshes: Meshes, sign: int) -> jax.Array:
    *points, strengths = operands
    given = _conjugate_if(sign > 0, strengths)
    padded = spread_p.bind(*points, given, **meshes.kernel)
    mesh = halo_reduce(padded, meshes.fine.input, Assignment(meshes.width).width)
    f = run_steps(forward_steps(meshes.modes, meshes.fine.shape, one_sign=True), mesh)
    # The transform has divided by the number of cells.
    f = meshes.undo_kernel(f, float(np.prod(meshes.fine.shape, dtype=float)))
    return _conjugate_if(sign > 0, f)


def _values_of(*operands: jax.Array, meshes: Meshes, sign: int) -> jax.Array:
    *points, modes = operands
    f = meshes.undo_kernel(_conjugate_if(sign < 0, modes), 1.0)
    mesh = run_steps(inverse_steps(meshes.modes, meshes.fine.shape, one_sign=True), f)
    padded = halo_exchange(mesh, meshes.fine.input, Assignment(meshes.width).width)
    values = interpolate_p.bind(*points, padded, **meshes.kernel)
    return _conjugate_if(sign < 0, values)


def _transform(
    name: str, run: Callable[..., jax.Array], result: Callable[..., ShapedArray]
) -> Primitive:
    """A primitive that is made of others; they communicate, and so it has their effects."""
    primitive = Primitive(name)

    @functools.lru_cache
    def compiled(meshes: Meshes, sign: int) -> Callable[..., jax.Array]:
        return jax.jit(functools.partial(run, meshes=meshes, sign=sign))

    primitive.def_impl(lambda *operands, meshes, sign: compiled(meshes, sign)(*operands))
    primitive.def_effectful_abstract_eval(
        lambda *operands, meshes, **_: (result(*operands, meshes), EFFECTS)
    )
    lowering = mlir.lower_fun(run, multiple_results=False)
    mlir.register_lowering(primitive, lowering, cacheable=False)
    recompute(primitive)
    return primitive


# cell, offset (rows, 3), used, order, strengths (rows, components) -> (components, *block)
to_modes_p = _transform(
    "nufft_to_modes",
    _modes_of,
    lambda cell, offset, used, order, strengths, meshes: ShapedArray(
        (strengths.shape[1], *meshes.modes.output.local_shape), strengths.dtype
    ),
)
# cell, offset (rows, 3), used, order, modes (components, *block) -> (rows, components)
to_points_p = _transform(
    "nufft_to_points",
    _values_of,
    lambda cell, offset, used, order, modes, meshes: ShapedArray(
        (cell.shape[0], modes.shape[0]), modes.dtype
    ),
)


def _to_modes_jvp(
    primals: Operands, tangents: Tangents, *, meshes: Meshes, sign: int
) -> tuple[jax.Array, Tangent]:
    *points, strengths = primals
    _, moving, _, _, change = tangents
    transform = functools.partial(to_modes_p.bind, *points, meshes=meshes, sign=sign)
    y = transform(strengths)
    terms = [] if isinstance(change, ad.Zero) else [transform(change)]
    if not isinstance(moving, ad.Zero):
        rows, components = strengths.shape
        each = strengths[:, :, None] * moving[:, None, :]
        modes = transform(each.reshape(rows, components * 3))
        modes = modes.reshape(components, 3, *modes.shape[1:])
        terms.append(meshes.divergence(modes, sign))
    return with_tangent(y, terms)


def _to_points_jvp(
    primals: Operands, tangents: Tangents, *, meshes: Meshes, sign: int
) -> tuple[jax.Array, Tangent]:
    *points, modes = primals
    _, moving, _, _, change = tangents
    transform = functools.partial(to_points_p.bind, *points, meshes=meshes, sign=sign)
    terms = [] if isinstance(change, ad.Zero) else [transform(change)]
    if isinstance(moving, ad.Zero):
        y = transform(modes)
    else:
        # The values and their slopes are components of one transform.
        components, block = modes.shape[0], modes.shape[1:]
        slopes = meshes.gradient(jnp.asarray(modes), sign).reshape(components * 3, *block)
        together = transform(jnp.concatenate([modes, slopes]))
        y = together[:, :components]
        slopes = together[:, components:].reshape(-1, components, 3)
        terms.append((slopes * moving[:, None, :]).sum(-1))
    return with_tangent(y, terms)


ad.primitive_jvps[to_modes_p] = _to_modes_jvp
ad.primitive_jvps[to_points_p] = _to_points_jvp


transposed_by(to_modes_p, to_points_p, communicates=True)
transposed_by(to_points_p, to_modes_p, communicates=True)


def _batch(primitive: Primitive, into: int, out_of: int) -> None:
    """Let a batch of what is transformed be further components: those are axis `into` of the last
    operand and axis `out_of` of the result. A batch of points goes one after the other.
    """

    def batched(
        operands: Operands, axes: Sequence[Any], **params: Any
    ) -> tuple[jax.Array | list[jax.Array], int | list[int]]:
        if any(axis is not None for axis in axes[:-1]):
            return one_by_one(primitive, operands, axes, **params)
        x = jnp.moveaxis(operands[-1], axes[-1], into)
        size, components = x.shape[into : into + 2]
        flat = x.reshape(*x.shape[:into], size * components, *x.shape[into + 2 :])
        y = primitive.bind(*operands[:-1], flat, **params)
        return y.reshape(*y.shape[:out_of], size, components, *y.shape[out_of + 1 :]), out_of

    batching.primitive_batchers[primitive] = batched


_batch(to_modes_p, 1, 0)
_batch(to_points_p, 0, 1)
