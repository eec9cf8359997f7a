"""Whether the devices of a program are those of the ranks, in their order.

While a program is traced its arrays name a mesh by shape and axes only. Its devices are known when
it is lowered, which JAX does once for each assignment of devices.
"""

from collections.abc import Sequence

import jax
from jax.interpreters import ad, batching, mlir

from .ordering import devices_when_lowered
from .primitive import local
from .rules import Operands

on_ranks_p = local("on_ranks", lambda x, **_: x)
"""The identity, which refuses devices that are not where they are expected.

Attributes:
    places: for each rank, the place of its device among those of the program.
    processes: for each rank, the index of its JAX process.
    here: how an error begins.

"""
_IS_CHECKED = devices_when_lowered(on_ranks_p)


def on_ranks(
    x: jax.Array, places: tuple[int, ...], processes: tuple[int, ...], here: str
) -> jax.Array:
    """`x`, unless the program turns out to have other devices in these places.

    Raises:
        ValueError: when the program is compiled, on every rank. At once where this JAX does not
            show devices to those who lower.

    """
    if not _IS_CHECKED:
        raise ValueError(
            f"{here}: this JAX does not say which devices a jitted program has; give mesh=, a "
            "jax.sharding.Mesh"
        )
    return on_ranks_p.bind(x, places=places, processes=processes, here=here)


def check_places(found: Sequence[int], processes: Sequence[int], here: str) -> None:
    """Refuse a mesh that has not in each rank's place a device of its process."""
    if list(found) != list(processes):
        raise ValueError(
            f"{here}: the ranks of the process grid are the JAX processes {list(processes)}, but "
            f"in their places the mesh has devices of {list(found)}; start jax.distributed with "
            "the rank as process_id, and make the mesh of jax.devices() in their order, one a rank"
        )


def _lowered(
    ctx: mlir.LoweringRuleContext,
    x: mlir.ir.Value,
    *,
    places: tuple[int, ...],
    processes: tuple[int, ...],
    here: str,
) -> list[mlir.ir.Value]:
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None)
    if devices is None:  # none is known of a program for export
        return [x]
    if len(devices) != len(places):
        raise ValueError(
            f"{here}: the program runs on {len(devices)} devices, but its arrays are on a mesh of "
            f"{len(places)}"
        )
    check_places([devices[place].process_index for place in places], processes, here)
    return [x]


def _batched(operands: Operands, axes: Sequence[int], **params: object) -> tuple[jax.Array, int]:
    return on_ranks_p.bind(*operands, **params), axes[0]


mlir.register_lowering(on_ranks_p, _lowered)
batching.primitive_batchers[on_ranks_p] = _batched
# The cotangent is on the devices that were checked.
ad.deflinear2(on_ranks_p, lambda cotangent, _, **__: [cotangent])
