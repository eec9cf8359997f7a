"""Every layer of an installed pfftjax, with results that NumPy knows; under mpirun, in any folder:

    mpirun -n 2 python layers.py FOLDER

Prints how long after the start of Python the first transform was there.
"""

import time

START = time.monotonic()

import pathlib  # noqa: E402
import sys  # noqa: E402

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import pfftjax  # noqa: E402
from pfftjax import pm, spectral  # noqa: E402
from pfftjax.collectives import allgather, allreduce  # noqa: E402

SHAPE = (16, 12, 10)
BOX = 10.0


def close(name: str, found: jax.typing.ArrayLike, expected: jax.typing.ArrayLike) -> None:
    """Fails this rank, and with it the job, unless they agree to rounding."""
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-4, err_msg=name)


def transforms(plan: pfftjax.PencilFFT, whole: np.ndarray) -> None:
    block = jnp.asarray(plan.input.local_block(whole))
    close("forward", plan.forward(block), plan.output.local_block(np.fft.rfftn(whole)))
    if plan.grid.comm.rank == 0:
        print(f"first transform after {time.monotonic() - START:.1f} s", flush=True)
    close("inverse", jax.jit(lambda x: plan.inverse(plan.forward(x)))(block), block)


def collectives(rank: int, size: int) -> None:
    x = jnp.arange(3.0) + rank
    close("allreduce", jax.jit(allreduce)(x), sum(np.arange(3.0) + r for r in range(size)))
    close("allgather", allgather(x), [np.arange(3.0) + r for r in range(size)])


def derivatives(plan: pfftjax.PencilFFT, whole: np.ndarray) -> None:
    block = jnp.asarray(plan.input.local_block(whole))

    def energy(x: jax.Array, scale: float) -> jax.Array:
        smooth = spectral.gaussian_smoothing(x, plan, BOX, scale)
        return pfftjax.vdot(smooth, smooth, plan.grid)

    by_x, by_scale = pfftjax.grad(energy, argnums=(0, 1), shared="scale")(block, 1.0)
    twice = spectral.gaussian_smoothing(block, plan, BOX, 2**0.5)
    close("gradient by the field", by_x, 2 * twice)
    step = 1e-2
    slope = (energy(block, 1.0 + step) - energy(block, 1.0 - step)) / (2 * step)
    np.testing.assert_allclose(by_scale, slope, rtol=1e-2, err_msg="gradient by the scale")


def operators(plan: pfftjax.PencilFFT) -> None:
    x, y, z = (BOX / n * plan.input.indices(axis) for axis, n in enumerate(plan.shape))
    k = 2 * jnp.pi / BOX
    wave = jnp.sin(k * x) * jnp.cos(k * y) + 0 * z
    along_x, _, _ = spectral.gradient(wave, plan, BOX)
    close("gradient", along_x, k * jnp.cos(k * x) * jnp.cos(k * y) + 0 * z)


def particles(plan: pfftjax.PencilFFT, rank: int) -> None:
    mesh, rows = plan.input, 100
    positions = jax.random.uniform(jax.random.key(rank), (rows, 3)) * jnp.asarray(SHAPE)
    route = pm.Route.to_owners(positions, mesh, capacity=rows * plan.grid.size)
    there = route.send(positions)
    close("way back", route.send_back(there), positions)
    owned = there[: int(route.count)]
    density = pm.paint(owned, mesh)
    close("mass", allreduce(jnp.sum(density)), rows * plan.grid.size)
    read = pm.readout(jnp.ones(mesh.local_shape), owned, mesh)
    close("readout", read, jnp.ones(owned.shape[0]))
    force = pm.gravity(density, plan, BOX)
    close("net force", allreduce(jnp.sum(force, axis=(-3, -2, -1))), jnp.zeros(3))


def files(plan: pfftjax.PencilFFT, whole: np.ndarray, folder: pathlib.Path) -> None:
    block = jnp.asarray(plan.input.local_block(whole))
    pfftjax.io.save(folder / "field.h5", {"field": block}, plan.input, box_size=BOX, mode="w")
    slabs = pfftjax.PencilFFT(SHAPE, pfftjax.ProcessGrid((1, None)), real=True).input
    found = pfftjax.io.load(folder / "field.h5", "field", slabs)
    close("file", found, slabs.local_block(whole))


def main() -> None:
    grid = pfftjax.ProcessGrid()
    comm = grid.comm
    if not pathlib.Path(pfftjax.__file__).is_relative_to(sys.prefix):
        raise RuntimeError(f"this is {pfftjax.__file__}, not what was installed in {sys.prefix}")
    plan = pfftjax.PencilFFT(SHAPE, grid, real=True)
    whole = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    transforms(plan, whole)
    collectives(comm.rank, comm.size)
    operators(plan)
    derivatives(plan, whole)
    particles(plan, comm.rank)
    files(plan, whole, pathlib.Path(sys.argv[1]))
    comm.Barrier()
    if comm.rank == 0:
        here = pfftjax.info()
        version = f"{here.mpi_library} ({here.mpi_family})"
        print(f"all layers are right on {comm.size} ranks of {version}", flush=True)


if __name__ == "__main__":
    main()
