"""Which devices' arrays pfftjax, and the MPI below it, can communicate; which JAX it knows."""

import ctypes
from collections.abc import Sequence

from mpi4py import MPI

from .ffi import family, platforms


def has_cuda_support() -> bool:
    """Whether this pfftjax communicates arrays that live on NVIDIA's GPUs.

    The question of mpi4jax of the same name: whether it was built with CUDA, be there a GPU here
    or not. Whether the MPI below takes pointers to GPU memory is another one, which
    `pfftjax.info().mpi_takes_cuda_pointers` answers, and need not be so (docs/gpu.md).

    Example:
        >>> import pfftjax
        >>> has_cuda_support() == ("CUDA" in pfftjax.info().platforms)
        True

    """
    return "CUDA" in platforms


def has_sycl_support() -> bool:
    """Whether this pfftjax communicates arrays that live on Intel's GPUs, as mpi4jax asks.

    Example:
        >>> has_sycl_support()
        False

    """
    return "SYCL" in platforms


# MPIX_GPU_SUPPORT_CUDA in MPICH's mpi.h
_CUDA = 0


def mpi_takes_cuda_pointers() -> bool | None:
    """Whether the MPI in this process says that it does; None where it does not say."""
    if MPI.Is_finalized():
        return None
    # A name is searched for in what mpi4py is linked with: the very MPI that it runs on.
    library = ctypes.CDLL(MPI.__file__)
    if family != "openmpi":
        ask = getattr(library, "MPIX_GPU_query_support", None)
        supported = ctypes.c_int(0)
        # The other one, which ends the job in some of Cray's MPICH, is asked only without this.
        if ask is not None:
            known = ask(_CUDA, ctypes.byref(supported)) == MPI.SUCCESS
            return bool(supported.value) if known else None
    ask = getattr(library, "MPIX_Query_cuda_support", None)
    return None if ask is None else bool(ask())


# The newest release of JAX with which all tests have run.
NEWEST_JAX = (0, 12)


def warn_of_jax(version: Sequence[int], lost: Sequence[str]) -> str | None:
    """A warning where JAX is newer than the tested ones, or lacks what pfftjax changes.

    >>> warn_of_jax((0, 12, 3), []) is None
    True
    >>> warn_of_jax((0, 13, 0), ["it waits"])
    'pfftjax is tested with JAX up to 0.12, and this is 0.13.0. Degraded: it waits'

    """
    if not lost and tuple(version[:2]) <= NEWEST_JAX:
        return None
    newest, this = (".".join(map(str, numbers)) for numbers in (NEWEST_JAX, version))
    degraded = "; ".join(lost) or "nothing that pfftjax knows of"
    return f"pfftjax is tested with JAX up to {newest}, and this is {this}. Degraded: {degraded}"
