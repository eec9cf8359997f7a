"""FFTW-MPI on slabs, at its fastest: measured plans, transposed spectrum, input overwritten.

    mpirun -n 2 python -m benchmarks.peers.fftw_mpi_slab 256:complex64

Loads FFTW where this machine has it (Debian: libfftw3-mpi3), against the MPI that mpi4py runs on.
FFTW is under the GPL: nothing of pfftjax links it or needs it.
"""

import ctypes
import sys

import numpy as np
from mpi4py import MPI

from benchmarks.protocol import COMM, Transform, run

FORWARD, BACKWARD = -1, 1
MEASURE, DESTROY_INPUT = 0, 1
TRANSPOSED_OUT, TRANSPOSED_IN = 1 << 30, 1 << 29
LETTERS = {"complex64": "f", "complex128": ""}


def handle():
    """COMM as the C functions take it."""
    kind = ctypes.c_void_p if MPI._sizeof(MPI.Comm) == 8 else ctypes.c_int
    return kind.from_address(MPI._addressof(COMM))


def load(letter):
    """The functions of one precision, with their names less the prefix."""
    ctypes.CDLL(f"libfftw3{letter}.so.3", mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(f"libfftw3{letter}_mpi.so.3", mode=ctypes.RTLD_GLOBAL)
    local_size = library[f"fftw{letter}_mpi_local_size_3d_transposed"]
    local_size.restype = ctypes.c_ssize_t
    plan = library[f"fftw{letter}_mpi_plan_dft_3d"]
    plan.restype = ctypes.c_void_p
    library[f"fftw{letter}_mpi_init"]()
    # The transforms themselves are not in the MPI library.
    execute = ctypes.CDLL(f"libfftw3{letter}.so.3")[f"fftw{letter}_execute"]
    execute.argtypes = [ctypes.c_void_p]
    execute.restype = None
    return local_size, plan, execute


def aligned(count, dtype):
    """Zeros on a cache line."""
    itemsize = np.dtype(dtype).itemsize
    memory = np.zeros(count * itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + count * itemsize].view(dtype)


def make(n, dtype):
    if dtype not in LETTERS:
        return None
    local_size, plan, execute = load(LETTERS[dtype])
    size = ctypes.c_ssize_t
    n0, start0, n1, start1 = (size() for _ in range(4))
    sizes = (ctypes.byref(v) for v in (n0, start0, n1, start1))
    count = local_size(size(n), size(n), size(n), handle(), *sizes)
    a, b = aligned(count, dtype), aligned(count, dtype)

    def planned(source, target, sign, flags):
        return plan(
            *(size(n) for _ in range(3)),
            ctypes.c_void_p(source.ctypes.data),
            ctypes.c_void_p(target.ctypes.data),
            handle(),
            ctypes.c_int(sign),
            ctypes.c_uint(MEASURE | DESTROY_INPUT | flags),
        )

    there = planned(a, b, FORWARD, TRANSPOSED_OUT)
    back = planned(b, a, BACKWARD, TRANSPOSED_IN)
    x = a[: n0.value * n * n].reshape(n0.value, n, n)
    y = b[: n1.value * n * n].reshape(n1.value, n, n)

    def block(whole):
        x[:] = whole[start0.value : start0.value + n0.value]
        return x, 1.0

    # Without normalisation, which would be another pass.
    def forward(_):
        execute(there)
        return y, 1.0

    def inverse(_):
        execute(back)
        return x, 1.0 / n**3

    return Transform(
        forward=forward,
        inverse=inverse,
        block=block,
        local=lambda result: result[0] * np.array(result[1], result[0].real.dtype),
        spectrum_block=lambda whole: whole.swapaxes(0, 1)[start1.value : start1.value + n1.value],
    )


if __name__ == "__main__":
    run("FFTW-MPI", make, sys.argv[1:])
