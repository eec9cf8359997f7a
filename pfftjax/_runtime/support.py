"""Which devices' arrays can be communicated: by this pfftjax, and by the MPI below it."""

import ctypes

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
    """What the MPI in this process says of itself; None where it does not say."""
    if MPI.Is_finalized():
        return None
    # A name is searched for in what mpi4py is linked with: the very MPI that it runs on.
    library = ctypes.CDLL(MPI.__file__)
    if family != "openmpi":
        ask = getattr(library, "MPIX_GPU_query_support", None)
        supported = ctypes.c_int(0)
        # Where it is there the other is not asked, which ends the job in some of Cray's MPICH.
        if ask is not None:
            known = ask(_CUDA, ctypes.byref(supported)) == MPI.SUCCESS
            return bool(supported.value) if known else None
    ask = getattr(library, "MPIX_Query_cuda_support", None)
    return None if ask is None else bool(ask())
