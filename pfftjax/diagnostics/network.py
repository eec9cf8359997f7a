"""What lies between a rank's GPU and those of other nodes, as far as a process can see it."""

import dataclasses
import os
import pathlib
import platform
import re
from collections.abc import Mapping

from pfftjax._runtime import machine

# What decides how NCCL and the MPI use the network.
_NAMES = (
    "MPICH_GPU_SUPPORT_ENABLED",
    "NCCL_LL128_C2C",
    "NCCL_NET",
    "NCCL_PROTO",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)


@dataclasses.dataclass(frozen=True)
class Network:
    """Facts about one rank.

    Attributes:
        slingshot: whether its node has adapters of HPE Slingshot.
        nccl_plugin: whether the process has loaded a plugin by which NCCL reaches a network.
        gtl: whether it has loaded the library by which Cray MPICH knows of GPUs.
        architecture: of the processor, as `platform.machine`.
        driver: major version of NVIDIA's driver; None for none.
        variables: those of the environment that matter here.

    """

    slingshot: bool = False
    nccl_plugin: bool = False
    gtl: bool = False
    architecture: str = "x86_64"
    driver: int | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


def network(root: pathlib.Path = pathlib.Path("/")) -> Network:
    """Look at this process and its node, whose files are below `root`. No communication.

    NCCL and MPI load what they need when they are first used.

    Example:
        >>> network().variables.keys() <= os.environ.keys()
        True

    """
    libraries = machine.read(root / "proc/self/maps") or ""
    version = re.match(r"\d+", machine.read(root / "sys/module/nvidia/version") or "")
    return Network(
        slingshot=any((root / "sys/class/net").glob("hsn*")),
        nccl_plugin="libnccl-net" in libraries or "libnccl_net" in libraries,
        gtl="libmpi_gtl" in libraries,
        architecture=platform.machine(),
        driver=int(version[0]) if version else None,
        variables={name: os.environ[name] for name in _NAMES if name in os.environ},
    )
