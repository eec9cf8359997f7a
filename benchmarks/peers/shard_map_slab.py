"""A transform of slabs in JAX alone: shard_map over the processes, all_to_all by gloo. Needs sizes
that divide."""

import socket
import sys

import jax

from benchmarks.protocol import COMM, Transform, run


def start():
    """One JAX over all ranks."""
    port = None
    if COMM.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{COMM.bcast(port)}", COMM.size, COMM.rank)


def make(n, dtype):
    p = COMM.size
    if n % p:
        return None
    jax.config.update("jax_enable_x64", dtype in ("float64", "complex128"))
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    slabs = PartitionSpec("ranks")
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    sharding = NamedSharding(mesh, slabs)
    real = dtype.startswith("f")

    def distributed(f):
        f = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=slabs, out_specs=slabs))
        return lambda x: f(x).block_until_ready()

    def forward(x):
        planes = (jnp.fft.rfft2 if real else jnp.fft.fft2)(x)
        lines = jax.lax.all_to_all(planes, "ranks", 1, 0, tiled=True)
        return jnp.fft.fft(jnp.moveaxis(lines, 0, 2))

    def inverse(y):
        lines = jnp.moveaxis(jnp.fft.ifft(y), 2, 0)
        planes = jax.lax.all_to_all(lines, "ranks", 0, 1, tiled=True)
        return jnp.fft.irfft2(planes, (n, n)) if real else jnp.fft.ifft2(planes)

    mine = slice(COMM.rank * (n // p), (COMM.rank + 1) * (n // p))
    return Transform(
        forward=distributed(forward),
        inverse=distributed(inverse),
        block=lambda whole: jax.make_array_from_callback(
            whole.shape, sharding, lambda index: whole[index]
        ),
        local=lambda x: np.asarray(x.addressable_shards[0].data),
        spectrum_block=lambda spectrum: spectrum.transpose(1, 2, 0)[mine],
    )


if __name__ == "__main__":
    start()
    run("jax shard_map, gloo", make, sys.argv[1:])
