"""Programs on global arrays, beside native JAX on the same cores.

    mpirun -n 2 python -m benchmarks.sharded [64 128] [--pairs 9]

In one job, in turn, in float32 and complex64, on slabs:

    pfftjax         `pfftjax.sharded`
    shard_map       transforms of planes, `jax.lax.all_to_all`, transforms of lines, by hand
    jnp.fft         `jnp.fft.fftn` of the global array, which XLA partitions

The collectives of JAX are gloo's. Each forward transform leaves the axes in the order (1, 2, 0),
and the first of them sharded. The potential of a density, and its gradient in reverse mode, are
two and four transforms with a multiplication. The slowest rank counts; ratios are medians over
pairs.
"""

import argparse
import functools
import statistics

import jax

from benchmarks.peers.shard_map_slab import start
from benchmarks.protocol import COMM, keep, timed, worst

CONTENDERS = ("pfftjax", "shard_map", "jnp.fft")


def transforms(mesh):
    """Contender -> (forward, inverse), functions of a global array."""
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from pfftjax import sharded

    slabs = NamedSharding(mesh, P("ranks"))

    def over_slabs(function):
        return jax.shard_map(function, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"))

    def planes_first(x):
        lines = jax.lax.all_to_all(jnp.fft.fft2(x), "ranks", 1, 0, tiled=True)
        return jnp.fft.fft(jnp.moveaxis(lines, 0, 2))

    def lines_first(y):
        lines = jnp.moveaxis(jnp.fft.ifft(y), 2, 0)
        return jnp.fft.ifft2(jax.lax.all_to_all(lines, "ranks", 0, 1, tiled=True))

    def placed(x):
        return jax.lax.with_sharding_constraint(x, slabs)

    return {
        "pfftjax": (sharded.fft3d, sharded.ifft3d),
        "shard_map": (over_slabs(planes_first), over_slabs(lines_first)),
        "jnp.fft": (
            lambda x: placed(jnp.moveaxis(jnp.fft.fftn(x), 0, 2)),
            lambda y: placed(jnp.fft.ifftn(jnp.moveaxis(y, 2, 0))),
        ),
    }


def programs(mesh, n):
    """Case -> contender -> jitted function of one array, and the arrays by case."""
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from pfftjax import sharded

    ks = sharded.wavenumbers((n, n, n), 1.0, dtype="float32")
    k2 = functools.reduce(np.add, (k.astype(np.float64) ** 2 for k in ks))
    over_k2 = np.where(k2 == 0, 0, -1 / np.where(k2 == 0, 1, k2)).astype(np.float32)
    slabs = NamedSharding(mesh, P("ranks"))
    multiplier = jax.make_array_from_callback(over_k2.shape, slabs, lambda index: over_k2[index])
    rng = np.random.default_rng(0)
    real = rng.standard_normal((n, n, n), np.float32)
    imaginary = rng.standard_normal((n, n, n), np.float32)
    data = {"real": real, "complex": real + 1j * imaginary}
    data = {
        kind: jax.make_array_from_callback(x.shape, slabs, lambda index, x=x: x[index])
        for kind, x in data.items()
    }
    cases = {"forward": {}, "inverse": {}, "potential": {}, "gradient": {}}
    for name, (forward, inverse) in transforms(mesh).items():

        def potential(x, multiplier, forward=forward, inverse=inverse):
            return inverse(multiplier * forward(x.astype(jnp.complex64))).real

        def energy(x, multiplier, potential=potential):
            return jnp.sum(potential(x, multiplier) ** 2)

        functions = {
            "forward": lambda x, _, f=forward: f(x),
            "inverse": lambda x, _, f=inverse: f(x),
            "potential": potential,
            "gradient": jax.grad(energy),
        }
        for case, function in functions.items():
            cases[case][name] = jax.jit(function, out_shardings=slabs)
    return cases, data, multiplier


def measure(n, pairs):
    """Medians of the times at one size, and of their ratios."""
    import numpy as np
    from jax.sharding import Mesh

    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    cases, data, multiplier = programs(mesh, n)
    found = {}
    for case, functions in cases.items():
        x = data["complex" if case in ("forward", "inverse") else "real"]
        parts = {
            name: np.asarray(f(x, multiplier).addressable_shards[0].data)
            for name, f in functions.items()
        }
        largest = np.abs(parts["pfftjax"]).max()
        apart = max(np.abs(parts["pfftjax"] - part).max() / largest for part in parts.values())
        assert worst(apart) < 1e-4, (case, apart)
        rounds = []
        for number in range(pairs + 1):
            times = {
                name: timed(lambda f=f, x=x: jax.block_until_ready(f(x, multiplier)))
                for name, f in functions.items()
            }
            if number > 0:  # the first one warms up
                rounds.append(times)
        found[case] = {
            "median_ms": {
                name: round(1e3 * statistics.median(r[name] for r in rounds), 3)
                for name in CONTENDERS
            },
            "median_ratio_of_times": {
                name: round(statistics.median(r["pfftjax"] / r[name] for r in rounds), 4)
                for name in CONTENDERS[1:]
            },
        }
        if COMM.rank == 0:
            print(n, case, found[case], flush=True)
    return found


def main():
    """Measure all sizes, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, default=[64, 128])
    parser.add_argument("--pairs", type=int, default=9)
    chosen = parser.parse_args()
    start()
    sizes = {}
    for n in chosen.sizes:
        sizes[str(n)] = measure(n, chosen.pairs)
        keep("sharded", {"ranks": COMM.size, "jax": jax.__version__, "sizes": sizes})


if __name__ == "__main__":
    main()
