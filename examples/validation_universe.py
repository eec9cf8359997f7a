"""The simulations that `validate.py` measures."""

from typing import Literal

import jax
import numpy as np
from mpi4py import MPI

import pfftjax
from pfftjax import pm

COMM = MPI.COMM_WORLD


class Universe:
    """A grid of particles in a box, and a mesh `finer` times as fine: its programs."""

    def __init__(self, table, n, box, *, finer=1, comm=COMM):
        self.n, self.box, self.cosmology = n, box, table.cosmology
        self.power = pm.tabulated(table.k, table.linear)
        self.grid = pfftjax.ProcessGrid(comm=comm)
        self.plan = pfftjax.PencilFFT((n,) * 3, self.grid, real=True)
        self.mesh = pfftjax.PencilFFT((finer * n,) * 3, self.grid, real=True)
        self.lpt = jax.jit(self._lpt, static_argnames="order")
        self.simulate = jax.jit(
            self._simulate, static_argnames=("integrator", "kernel", "capacity")
        )
        self.density = jax.jit(lambda particles: pm.density_contrast(particles, self.mesh))
        self.spectrum = jax.jit(self._spectrum, static_argnames="kernel")

    def linear(self, seed=0):
        """The linear density contrast today."""

        def field():
            noise = pm.white_noise(jax.random.key(seed), self.plan.input)
            return pm.linear_field(noise, self.plan, self.box, self.power)

        return jax.jit(field)()

    def _lpt(self, delta, scale_factor, order: Literal[1, 2] = 2):
        shape = self.mesh.shape
        where = (self.plan, self.box, self.cosmology, scale_factor)
        keep = order > 1  # for COLA
        return pm.lpt(delta, *where, order=order, mesh_shape=shape, keep_displacements=keep)

    def _simulate(
        self, particles, scale_factors, integrator=pm.fastpm, kernel="cic", capacity=None
    ):
        options = {"integrator": integrator, "kernel": kernel, "capacity": capacity}
        where = (self.mesh, self.box, self.cosmology, scale_factors)
        return pm.simulate(particles, *where, **options)

    def _spectrum(self, field, other=None, kernel=None):
        return pm.power_spectrum(field, self.mesh, self.box, other=other, kernel=kernel)

    def today(self, delta, steps, integrator=pm.fastpm):
        """The density contrast today, from a = 0.1."""
        a = np.linspace(0.1, 1, steps + 1)
        return self.density(self.simulate(self.lpt(delta, a[0]), a, integrator))

    def growth(self, final, initial, kernel="cic"):
        """T of each shell: the growth of `initial`, given on the mesh, over linear theory."""
        cross = self.spectrum(final, other=initial, kernel=kernel)
        return np.asarray(cross.power / self.spectrum(initial).power)


def everybody(particles):
    """(cells, offsets, momenta) of the particles of all ranks, sorted by where they come from."""
    used = int(particles.used)
    rows = (np.asarray(x)[:used] for x in (particles.cell, particles.offset, particles.momentum))
    parts = zip(*COMM.allgather(tuple(rows)), strict=True)
    cell, offset, momentum = (np.concatenate(part) for part in parts)
    order = np.lexsort(cell.T[::-1])
    return cell[order], offset[order], momentum[order]
