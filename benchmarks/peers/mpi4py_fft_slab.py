"""mpi4py-fft on slabs: FFTW with measured plans, on NumPy arrays that it owns."""

# The peer is in an environment of its own (make peers).
# pyright: reportMissingImports=false

import sys

import numpy as np
from mpi4py_fft import PFFT, newDistArray

from benchmarks.protocol import COMM, Transform, run


def make(n, dtype):
    plan = PFFT(COMM, [n] * 3, axes=(0, 1, 2), dtype=np.dtype(dtype).char, slab=True)
    real, spectrum = newDistArray(plan, False), newDistArray(plan, True)

    def forward(x):
        return plan.forward(x, spectrum, normalize=False)

    def inverse(y):
        return plan.backward(y, real, normalize=True)

    def block(whole):
        x = newDistArray(plan, False)
        x[:] = whole[x.local_slice()]
        return x

    return Transform(
        forward=forward,
        inverse=inverse,
        block=block,
        local=np.array,
        spectrum_block=lambda whole: whole[spectrum.local_slice()],
    )


if __name__ == "__main__":
    run("mpi4py-fft", make, sys.argv[1:])
