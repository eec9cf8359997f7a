"""Solves Poisson's equation on a periodic box, and differentiates through the solution.

    mpirun -n 4 python examples/poisson.py --mesh 64 --grid 2x2

The density is one whose potential is known, phi = exp(cos kx + cos ky + cos kz) with k = 2 pi / L,
so that the solution can be compared with it: spectral accuracy means that the error falls to
rounding by a mesh of about 40. The field energy E = 1/2 integral of rho phi has phi as its
functional derivative, which jax.grad finds by a second pair of transforms.
"""

import argparse

import jax
import jax.numpy as jnp
from mpi4py import MPI

import pfftjax
from pfftjax.collectives import allreduce


def inverse_laplacian(plan, density, box_size):
    """The potential with mean zero whose Laplacian is `density`, on this rank's block."""
    k2 = sum(k**2 for k in plan.wavenumbers(box_size, density.dtype))
    # Safe at k = 0, for values and derivatives: no division by zero is ever made.
    kernel = jnp.where(k2 > 0, -1 / jnp.where(k2 > 0, k2, 1), 0)
    return plan.inverse(kernel * plan.forward(density))


def energy(plan, density, box_size):
    """1/2 integral of rho phi over the box, on every rank."""
    cell = (box_size / plan.shape[0]) * (box_size / plan.shape[1]) * (box_size / plan.shape[2])
    potential = inverse_laplacian(plan, density, box_size)
    return allreduce(0.5 * cell * jnp.sum(density * potential), comm=plan.grid.comm)


def known_solution(pencil, box_size, dtype):
    """(density, potential) of this rank's cells, from their coordinates."""
    k = 2 * jnp.pi / box_size
    angles = [
        k * box_size / n * pencil.indices(axis).astype(dtype)
        for axis, n in enumerate(pencil.global_shape)
    ]
    potential = jnp.exp(sum(jnp.cos(angle) for angle in angles))
    density = k**2 * potential * sum(jnp.sin(angle) ** 2 - jnp.cos(angle) for angle in angles)
    return density, potential


def main():
    """Solve, compare, and print one line for each comparison on rank 0."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mesh", type=int, default=64, help="cells along each side")
    parser.add_argument("--box", type=float, default=100.0, help="side of the box")
    parser.add_argument("--grid", help="process grid, as 2x2; as square as can be by default")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")

    dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else None
    grid = pfftjax.ProcessGrid(dims)
    plan = pfftjax.PencilFFT((arguments.mesh,) * 3, grid, real=True)
    box = arguments.box

    def over_ranks(value, op=MPI.SUM):
        return allreduce(value, op, comm=grid.comm)

    @jax.jit
    def compare():
        density, potential = known_solution(plan.input, box, arguments.dtype)
        mean = over_ranks(jnp.sum(potential)) / arguments.mesh**3
        expected = potential - mean
        solved = inverse_laplacian(plan, density, box)
        cell = (box / arguments.mesh) ** 3
        gradient = jax.grad(energy, argnums=1)(plan, density, box) / cell
        largest = over_ranks(jnp.max(jnp.abs(expected), initial=0), MPI.MAX)

        def error(field):
            return over_ranks(jnp.max(jnp.abs(field - expected), initial=0), MPI.MAX) / largest

        return error(solved), error(gradient), energy(plan, density, box)

    solution, gradient, total = (float(value) for value in compare())
    if grid.comm.rank == 0:
        print(f"{grid.size} ranks as {grid.dims[0]} x {grid.dims[1]}, {arguments.dtype}")
        print(f"potential against the analytic one: relative error {solution:.2e}")
        print(f"gradient of the energy against the potential: relative error {gradient:.2e}")
        print(f"field energy: {total:.6e}")


if __name__ == "__main__":
    main()
