"""A transform of slabs as a user of mpi4jax would best compose it: a 2D transform, one alltoall
with the transpositions that it needs, and a 1D transform. Needs sizes that divide."""

# The peer is in an environment of its own (make peers).
# pyright: reportMissingImports=false

import sys

import jax

from benchmarks.protocol import COMM, Transform, run


def make(n, dtype):
    p = COMM.size
    if n % p:
        return None
    jax.config.update("jax_enable_x64", dtype in ("float64", "complex128"))
    import jax.numpy as jnp
    import mpi4jax
    import numpy as np

    m = n // p
    real = dtype.startswith("f")
    nz = n // 2 + 1 if real else n

    @jax.jit
    def forward(x):  # (m, n, n) of x, y, z -> (m, nz, n) of y, z, x
        planes = (jnp.fft.rfft2 if real else jnp.fft.fft2)(x)
        blocks = jnp.moveaxis(planes.reshape(m, p, m, nz), 0, 3)
        blocks = mpi4jax.alltoall(blocks, comm=COMM)
        return jnp.fft.fft(jnp.moveaxis(blocks, 0, 2).reshape(m, nz, n))

    @jax.jit
    def inverse(y):
        blocks = jnp.moveaxis(jnp.fft.ifft(y).reshape(m, nz, p, m), 2, 0)
        blocks = jnp.moveaxis(mpi4jax.alltoall(blocks, comm=COMM), 3, 0)
        planes = blocks.reshape(m, n, nz)
        return jnp.fft.irfft2(planes, (n, n)) if real else jnp.fft.ifft2(planes)

    mine = slice(COMM.rank * m, (COMM.rank + 1) * m)
    return Transform(
        forward=lambda x: forward(x).block_until_ready(),
        inverse=lambda y: inverse(y).block_until_ready(),
        block=lambda whole: jnp.array(whole[mine]),
        local=np.asarray,
        spectrum_block=lambda spectrum: spectrum.transpose(1, 2, 0)[mine],
    )


if __name__ == "__main__":
    run("mpi4jax", make, sys.argv[1:])
