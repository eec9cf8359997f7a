"""The shallow-water demo of mpi4jax, its algorithm written again: nothing of its text is here.

    mpirun -n 2 python -m benchmarks.peers.mpi4jax_shallow_water --mesh 3600 1800 --steps 50

The model, the constants and the messages are those of examples/shallow_water.py in mpi4jax 0.9:
blocks with one ghost cell all around, and after each intermediate field up to four messages, west,
north, east and south, into its ghosts: 12 fields a step. Rows over at most two ranks, columns over
the others. As in the demo, friction leaves the ghosts of u and v as they were before it.

On purpose otherwise, at the same cost: the initial perturbation closes on itself in x, the
friction of v is made of v alone, and rows of v on the northern wall stay at rest. So it solves
what examples/shallow_water.py of pfftjax does, up to the ghosts above, the drag of the southern
wall on v, and friction once more at the beginning: all of the order of viscosity times time step.
"""

# The peer is in an environment of its own (make peers).
# pyright: reportMissingImports=false

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
ROWS = min(COMM.size, 2)
COLUMNS = COMM.size // ROWS
ROW, COLUMN = divmod(COMM.rank, COLUMNS)

GRAVITY = 9.81
DEPTH = 100.0
CORIOLIS = 2e-4
BETA = 2e-11
SPACING = 5e3
VISCOSITY = 1e-3 * CORIOLIS * SPACING**2
STEP = 0.125 * SPACING / np.sqrt(GRAVITY * DEPTH)
NOW, BEFORE = 1.6, -0.6

# (what is sent, the ghosts that are filled, where it goes, where it comes from), as (row, column)
# steps.
MESSAGES = (
    (np.s_[:, 1], np.s_[:, -1], (0, -1), (0, 1)),
    (np.s_[-2, :], np.s_[0, :], (1, 0), (-1, 0)),
    (np.s_[:, -2], np.s_[:, 0], (0, 1), (0, -1)),
    (np.s_[1, :], np.s_[-1, :], (-1, 0), (1, 0)),
)
INNER = np.s_[1:-1, 1:-1]
EAST = np.s_[1:-1, 2:]
WEST = np.s_[1:-1, :-2]
NORTH = np.s_[2:, 1:-1]
SOUTH = np.s_[:-2, 1:-1]
NORTH_EAST = np.s_[2:, 2:]
NORTH_WEST = np.s_[2:, :-2]
SOUTH_EAST = np.s_[:-2, 2:]


class State(NamedTuple):
    h: jax.Array
    u: jax.Array
    v: jax.Array
    dh: jax.Array
    du: jax.Array
    dv: jax.Array


def neighbour(step):
    """The rank there; None beyond a wall."""
    row = ROW + step[0]
    return row * COLUMNS + (COLUMN + step[1]) % COLUMNS if 0 <= row < ROWS else None


def with_ghosts(field, wall=False):
    """The field with the ghosts of its neighbours; at rest on the northern wall if `wall`."""
    for edge, ghosts, there, back in MESSAGES:
        dest, source = neighbour(there), neighbour(back)
        if source is None and dest is None:
            continue
        if source is None:
            mpi4jax.send(field[edge], dest, comm=COMM)
            continue
        room = jnp.empty_like(field[ghosts])
        if dest is None:
            received = mpi4jax.recv(room, source, comm=COMM)
        else:
            received = mpi4jax.sendrecv(field[edge], room, source, dest, comm=COMM)
        field = field.at[ghosts].set(received)
    if wall and ROW == ROWS - 1:
        field = field.at[-2, :].set(0.0)
    return field


def diffused(field, other, wall):
    """`field` after a step of friction; fluxes in the memory of the fields `other`."""
    fe, fn = other
    fe = fe.at[INNER].set(VISCOSITY * (field[EAST] - field[INNER]) / SPACING)
    fn = fn.at[INNER].set(VISCOSITY * (field[NORTH] - field[INNER]) / SPACING)
    fe = with_ghosts(fe)
    fn = with_ghosts(fn, wall=True)
    change = (fe[INNER] - fe[WEST]) / SPACING + (fn[INNER] - fn[SOUTH]) / SPACING
    field = field.at[INNER].add(STEP * change)
    if wall and ROW == ROWS - 1:
        field = field.at[-2, :].set(0.0)
    return field, (fe, fn)


def step(state, coriolis, first):
    h, u, v, dh, du, dv = state
    hc = with_ghosts(jnp.pad(h[INNER], 1, "edge"))
    fe = jnp.empty_like(u).at[INNER].set(0.5 * (hc[INNER] + hc[EAST]) * u[INNER])
    fn = jnp.empty_like(u).at[INNER].set(0.5 * (hc[INNER] + hc[NORTH]) * v[INNER])
    fe = with_ghosts(fe)
    fn = with_ghosts(fn, wall=True)
    dh_new = dh.at[INNER].set(
        -(fe[INNER] - fe[WEST]) / SPACING - (fn[INNER] - fn[SOUTH]) / SPACING
    )

    vorticity = (v[EAST] - v[INNER]) / SPACING - (u[NORTH] - u[INNER]) / SPACING
    q = jnp.empty_like(u).at[INNER].set(coriolis[INNER] + vorticity)
    depth = 0.25 * (hc[INNER] + hc[EAST] + hc[NORTH] + hc[NORTH_EAST])
    q = with_ghosts(q.at[INNER].mul(1.0 / depth))

    du_new = du.at[INNER].set(
        -GRAVITY * (h[EAST] - h[INNER]) / SPACING
        + 0.5
        * (q[INNER] * 0.5 * (fn[INNER] + fn[EAST]) + q[SOUTH] * 0.5 * (fn[SOUTH] + fn[SOUTH_EAST]))
    )
    dv_new = dv.at[INNER].set(
        -GRAVITY * (h[NORTH] - h[INNER]) / SPACING
        - 0.5
        * (q[INNER] * 0.5 * (fe[INNER] + fe[NORTH]) + q[WEST] * 0.5 * (fe[WEST] + fe[NORTH_WEST]))
    )
    energy = 0.5 * (0.5 * (u[INNER] ** 2 + u[WEST] ** 2) + 0.5 * (v[INNER] ** 2 + v[SOUTH] ** 2))
    ke = with_ghosts(jnp.empty_like(u).at[INNER].set(energy))
    du_new = du_new.at[INNER].add(-(ke[EAST] - ke[INNER]) / SPACING)
    dv_new = dv_new.at[INNER].add(-(ke[NORTH] - ke[INNER]) / SPACING)

    def advanced(field, new, old):
        change = new[INNER] if first else NOW * new[INNER] + BEFORE * old[INNER]
        return field.at[INNER].add(STEP * change)

    u = with_ghosts(advanced(u, du_new, du))
    v = with_ghosts(advanced(v, dv_new, dv), wall=True)
    h = with_ghosts(advanced(h, dh_new, dh))
    u, fluxes = diffused(u, (fe, fn), wall=False)
    v, _ = diffused(v, fluxes, wall=True)
    return State(h, u, v, dh_new, du_new, dv_new)


def initial(nx, ny, dtype):
    """(state, Coriolis parameter) of this rank's block with its ghosts."""
    y = np.arange(-1, ny + 1)[:, None] * SPACING
    x = np.arange(-1, nx + 1) * SPACING
    length_x, length_y = nx * SPACING, (ny - 1) * SPACING
    f = CORIOLIS + BETA * y
    u = 10 * np.exp(-(((y - 0.5 * length_y) / (0.02 * length_x)) ** 2))
    slope = np.cumsum(-SPACING * u * f / GRAVITY, axis=0)
    bumps = np.sin(10 * np.pi * x / length_x) * np.cos(8 * np.pi * y / length_y)
    h = DEPTH + slope - slope[1:-1].mean() + 0.2 * bumps
    rows, columns = ny // ROWS, nx // COLUMNS
    block = np.s_[ROW * rows : (ROW + 1) * rows + 2, COLUMN * columns : (COLUMN + 1) * columns + 2]
    parts = [np.broadcast_to(a, h.shape)[block] for a in (h, u, 0 * h, f)]
    h, u, v, f = (jnp.array(part, dtype) for part in parts)
    h, u, v = with_ghosts(h), with_ghosts(u), with_ghosts(v, wall=True)
    return State(h, u, v, *(jnp.zeros_like(h) for _ in range(3))), f


def gathered(field, nx, ny):
    """The whole field on rank 0."""
    blocks = COMM.gather(np.asarray(field[INNER]))
    if blocks is None:
        return None
    grid = [blocks[row * COLUMNS : (row + 1) * COLUMNS] for row in range(ROWS)]
    return np.block(grid).reshape(ny, nx)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--mesh", type=int, nargs=2, default=(3600, 1800))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--save", help="file for the last h, u and v")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    nx, ny = arguments.mesh
    if nx % COLUMNS or ny % ROWS:
        raise SystemExit(f"{nx} x {ny} cells do not divide over {COLUMNS} x {ROWS} ranks")

    state, coriolis = initial(nx, ny, arguments.dtype)
    state = jax.jit(lambda state: step(state, coriolis, True))(state)

    @jax.jit
    def advance(state):
        count = arguments.steps - 1
        return jax.lax.fori_loop(0, count, lambda _, s: step(s, coriolis, False), state)

    jax.block_until_ready(advance(state))
    COMM.Barrier()
    begin = time.perf_counter()
    state = jax.block_until_ready(advance(state))
    seconds = COMM.allreduce(time.perf_counter() - begin, MPI.MAX)
    whole = [gathered(field, nx, ny) for field in state[:3]]
    if COMM.rank == 0:
        count = arguments.steps - 1
        print(f"{count} steps in {seconds:.3f} s: {count / seconds:.2f} steps/s")
        if arguments.save:
            fields = {name: a for name, a in zip("huv", whole, strict=True) if a is not None}
            np.savez(arguments.save, allow_pickle=False, **fields)


if __name__ == "__main__":
    main()
