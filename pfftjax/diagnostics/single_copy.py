"""Whether ranks of a node can read each other's memory, which MPI uses for large messages."""

import ctypes
import os

from mpi4py import MPI


class _Span(ctypes.Structure):
    """struct iovec of the system."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def can_read_neighbour(comm: MPI.Intracomm) -> bool | None:
    """Try it, on a few bytes of the next rank of this node; None without one. Collective.

    Example:
        >>> from mpi4py import MPI
        >>> can_read_neighbour(MPI.COMM_SELF) is None
        True

    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    text = os.urandom(16)
    here = ctypes.create_string_buffer(text, len(text))
    everyone = node.allgather((os.getpid(), ctypes.addressof(here), text))
    pid, address, expected = everyone[(node.rank + 1) % node.size]
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    result = None
    if read is not None and node.size > 1:
        there = ctypes.create_string_buffer(len(expected))
        local = _Span(ctypes.addressof(there), len(expected))
        remote = _Span(address, len(expected))
        one = ctypes.c_ulong(1)
        read(pid, ctypes.byref(local), one, ctypes.byref(remote), one, ctypes.c_ulong(0))
        # Compared: in a container of its own, another process may have that number.
        result = there.raw == expected
    node.Barrier()  # until then the bytes must stay
    node.Free()
    return result
