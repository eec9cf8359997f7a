"""Which GPU a rank takes, and how much of its memory.

Left to itself, JAX takes every GPU that a process sees, and three quarters of its memory: of four
ranks on a node, all would compute on the first GPU, and three would find no memory. So each rank
takes the one that its number on the node says, and shares its memory with those that take the same
one. This is decided when pfftjax is imported, before JAX starts its backends and without starting
CUDA, and only where the user has decided nothing.
"""

import dataclasses
import math
import os
import pathlib
import subprocess
from collections.abc import Mapping, MutableMapping

import jax

from . import launcher, machine
from .options import options
from .ordering import backends_have_started

# XLA takes this part of a GPU's memory by default.
_MEMORY = 0.75
_MEMORY_VARIABLE = "XLA_CLIENT_MEM_FRACTION"
# Each of these is a decision of the user's. JAX refuses the two names of the fraction together.
_OF_MEMORY = (
    _MEMORY_VARIABLE,
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
_DEVICES_OPTION = "jax_cuda_visible_devices"
_DRIVER = pathlib.Path("/proc/driver/nvidia/gpus")


@dataclasses.dataclass(frozen=True)
class Binding:
    """The decision for this rank.

    Attributes:
        device: number of its GPU among those that the process sees; None where JAX was left alone.
        gpus: how many the process sees; None where nobody has counted.
        sharing: ranks that take the same one, this one included; None for unknown.
        memory_fraction: what was set as XLA_CLIENT_MEM_FRACTION, if it was.
        reason: why JAX was left alone.

    """

    device: int | None = None
    gpus: int | None = None
    sharing: int | None = None
    memory_fraction: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.device is None:
            return f"left to JAX: {self.reason}"
        text = f"this rank takes number {self.device} of the {self.gpus} that it sees"
        if self.sharing is not None and self.sharing > 1:
            text += f", which {self.sharing} ranks share"
        if self.memory_fraction is not None:
            text += f", and {self.memory_fraction} of its memory ({_MEMORY_VARIABLE})"
        return text


def choose(
    environment: Mapping[str, str], local_rank: int, local_ranks: int | None, node_gpus: int
) -> Binding:
    """The GPU of a rank, from what is known before CUDA starts.

    Args:
        environment: its environment variables.
        local_rank: its number among the ranks of the job on its node.
        local_ranks: how many those are; None for unknown.
        node_gpus: GPUs of the node, visible or not.

    Example:
        >>> choose({}, local_rank=5, local_ranks=8, node_gpus=4)
        Binding(device=1, gpus=4, sharing=2, memory_fraction=0.375, reason='')

    """
    gpus = visible_gpus(environment, node_gpus)
    if gpus == 0:
        return Binding(gpus=0, reason="no GPU is visible")
    if local_ranks == 1:
        return Binding(gpus=gpus, sharing=1, reason="there is no other rank on this node")
    device = local_rank % gpus
    sharing = None
    if gpus == 1 and environment.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-"):
        sharing = 1  # a slice, with memory of its own
    elif local_ranks is not None:
        # One of several is what a launcher shows each rank that it has given a GPU of its own.
        of_its_own = gpus == 1 and node_gpus > 1
        sharing = (
            math.ceil(local_ranks / node_gpus)
            if of_its_own
            else len(range(device, max(local_ranks, local_rank + 1), gpus))
        )
    memory = None
    if sharing is not None and sharing > 1 and not any(environment.get(v) for v in _OF_MEMORY):
        memory = math.floor(1000 * _MEMORY / sharing) / 1000
    return Binding(device, gpus, sharing, memory)


def visible_gpus(environment: Mapping[str, str], node_gpus: int) -> int:
    """How many of the node's GPUs CUDA_VISIBLE_DEVICES leaves to a process.

    CUDA reads the list up to the first entry that means nothing.

    >>> [visible_gpus({"CUDA_VISIBLE_DEVICES": text}, 4) for text in ("2,3", "", "0,-1,1", "1,9")]
    [2, 0, 1, 1]
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return node_gpus
    count = 0
    for entry in (part.strip() for part in text.split(",")):
        known = entry.isdigit() and int(entry) < node_gpus
        if not known and not entry.startswith(("GPU-", "MIG-")):
            break
        count += 1
    return count


def node_gpus() -> int:
    """NVIDIA's GPUs on this node, by the driver's files or by its tool; CUDA is not started."""
    if _DRIVER.is_dir():
        return sum(1 for _ in _DRIVER.iterdir())
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def has_cuda_plugin() -> bool:
    """Whether JAX is installed with CUDA."""
    return any("cuda" in name for name in machine.jax_plugins())


def _reason_to_leave_alone(environment: Mapping[str, str]) -> str:
    platforms = jax.config.values["jax_platforms"] or ""
    if not options.bind_gpu:
        return "PFFTJAX_BIND_GPU=0"
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms}"
    if not has_cuda_plugin():
        return "JAX has no plugin for CUDA"
    devices = environment.get(_DEVICES_OPTION.upper()) or jax.config.values[_DEVICES_OPTION]
    if devices != "all":
        return f"{_DEVICES_OPTION} is {devices}"
    return TOO_LATE if backends_have_started() else ""


TOO_LATE = "JAX had started before pfftjax was imported"


def bind(environment: MutableMapping[str, str], here: launcher.Launch) -> Binding:
    """Choose the GPU of a rank, and tell JAX."""
    reason = _reason_to_leave_alone(environment)
    if reason:
        return Binding(reason=reason)
    if here.local_rank is None:
        return Binding(reason="the launcher does not say which rank of the node this is")
    chosen = choose(environment, here.local_rank, here.local_ranks, node_gpus())
    if chosen.device is not None:
        jax.config.update(_DEVICES_OPTION, str(chosen.device))
    if chosen.memory_fraction is not None:
        environment[_MEMORY_VARIABLE] = str(chosen.memory_fraction)
    return chosen


binding = bind(os.environ, launcher.here)
