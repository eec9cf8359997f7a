"""A nonlinear shallow-water model: halos on a grid of processes, and derivatives through time.

    mpirun -n 4 python examples/shallow_water.py --mesh 360 180 --days 3 --out out

A jet in geostrophic balance, on a beta plane, becomes unstable and sheds vortices. The channel is
periodic in x, with walls in y, and is split over all ranks in both directions, in blocks of any
size; the numbers are the same on any number of ranks. In the folder: an animation, a picture of
the end, and the numbers. With --gradient also the derivative of the mean square of the surface
height after some steps with respect to the height at the beginning; with --benchmark only the
speed.

The scheme, after Sadourny (1975), as in Vallis' lectures and in the demo of mpi4jax: Arakawa's C
grid, with h in the middle of cells, u on their eastern and v on their northern faces, and the
potential vorticity q on their north-eastern corners; a Coriolis term that conserves energy;
Adams-Bashforth in time; lateral friction, and a biharmonic one for waves of a few cells.
docs/shallow_water.md has the equations.
"""

import argparse
import functools
import json
import math
import pathlib
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from shallow_water_pictures import draw_gradient, draw_movie
from tqdm import tqdm

import pfftjax

GRAVITY = 9.81  # m/s^2
DEPTH = 100.0  # m, at rest
CORIOLIS = 2e-4  # 1/s, in the southernmost row
BETA = 2e-11  # 1/(m s), its slope towards the north
SPACING = 5e3  # m, of the cells, in both directions
VISCOSITY = 1e-3 * CORIOLIS * SPACING**2  # m^2/s
# The damping speed of scale-selective friction, as in Griffies & Hallberg (2000): the coefficient
# of the biharmonic operator is this, times the third power of the spacing.
DAMPING = 0.1  # m/s
STEP = 0.125 * SPACING / math.sqrt(GRAVITY * DEPTH)  # s: an eighth of what gravity waves allow
# Weights of the tendencies of this step and of the one before it, slightly off 3/2 and -1/2 for
# stability.
NOW, BEFORE = 1.6, -0.6
DAY = 86400.0  # s

# Without what the outermost cells of an array are.
RING = np.s_[1:-1, 1:-1]


class State(NamedTuple):
    """A rank's block: arrays with ghosts on each side, as many as `Model` has.

    Tendencies are those of the step before; their ghosts mean nothing.
    """

    h: jax.Array  # m, depth of the fluid
    u: jax.Array  # m/s, eastward
    v: jax.Array  # m/s, northward
    dh: jax.Array  # m/s
    du: jax.Array  # m/s^2
    dv: jax.Array  # m/s^2


class Rows(NamedTuple):
    """Numbers that depend on the row only, of shape (rows, 1), ghosts included."""

    coriolis: jax.Array  # 1/s
    # 1 where the northern face of a cell lies between two rows of the fluid, 0 in the walls.
    open: jax.Array


def written(room, values, ghosts):
    """`room` with `values` in place of all but its outer `ghosts` cells.

    In a loop XLA writes where `room` is: nothing is allocated, copied, or computed twice for two
    readers, as it would be if `values` were used as they are.
    """
    return jax.lax.dynamic_update_slice(room, values, (ghosts, ghosts))


def laplacian(u, v, is_open):
    """SPACING^2 times the Laplacian of velocities, with one cell less on each side. No stress acts
    on u at the walls, and v is zero in them.
    """

    def from_east_and_west(a):
        return (a[1:-1, 2:] - a[RING]) - (a[RING] - a[1:-1, :-2])

    def to_north(a):
        return a[1:, 1:-1] - a[:-1, 1:-1]

    stress, stress_v = is_open[:-1] * to_north(u), to_north(v)
    du = from_east_and_west(u) + (stress[1:] - stress[:-1])
    dv = from_east_and_west(v) + (stress_v[1:] - stress_v[:-1])
    return du, is_open[1:-1] * dv


def friction(u, v, is_open, damping):
    """Velocities after one step of friction; one cell less on each side, or two with damping.

    The biharmonic part is the Laplacian of the Laplacian, with the same walls for both: it takes
    energy and no momentum, as the Laplacian does, but mostly from waves of a few cells.
    """
    change = laplacian(u, v, is_open)
    factor = STEP * VISCOSITY / SPACING**2
    u, v = (a[RING] + factor * da for a, da in zip((u, v), change, strict=True))
    if damping == 0:
        return u, v
    factor = STEP * damping / SPACING
    change = laplacian(*change, is_open[1:-1])
    u, v = (a[RING] - factor * da for a, da in zip((u, v), change, strict=True))
    return u, v


def tendencies(h, u, v, rows):
    """(dh/dt, du/dt, dv/dt), with one cell less on each side.

    Depths and velocities beyond the walls are zero, and so is v in the walls: with no flow into
    them, nothing else of what is there enters.
    """
    per_cell = 1 / SPACING
    # Fluxes through eastern and northern faces.
    fe = 0.5 * (h[:, :-1] + h[:, 1:]) * u[:, :-1]
    fn = 0.5 * (h[:-1] + h[1:]) * v[:-1]
    dh = (fe[1:-1, :-1] - fe[1:-1, 1:] + fn[:-1, 1:-1] - fn[1:, 1:-1]) * per_cell

    curl = (v[:-1, 1:] - v[:-1, :-1] - u[1:, :-1] + u[:-1, :-1]) * per_cell
    depth = 0.25 * (h[:-1, :-1] + h[:-1, 1:] + h[1:, :-1] + h[1:, 1:])
    q = (rows.coriolis[:-1] + curl) / depth
    kinetic = 0.25 * (u[1:, 1:] ** 2 + u[1:, :-1] ** 2 + v[1:, 1:] ** 2 + v[:-1, 1:] ** 2)
    head = GRAVITY * h[1:, 1:] + kinetic
    # Each pair of q and flux turns one component into the other and back, with equal weights:
    # their work cancels in the sum over all cells.
    qn = q[:, 1:] * (fn[:, 1:-1] + fn[:, 2:])
    qe = q[1:] * (fe[1:-1] + fe[2:])
    du = (head[:-1, :-1] - head[:-1, 1:]) * per_cell + 0.25 * (qn[1:] + qn[:-1])
    dv = (head[:-1, :-1] - head[1:, :-1]) * per_cell - 0.25 * (qe[:, 1:] + qe[:, :-1])
    return dh, du, rows.open[1:-1] * dv


class Model:
    """The model on a process grid: all methods with jnp in them are for jitted code.

    Args:
        nx: cells in x.
        ny: cells in y, between the walls.
        grid: process grid; its rows share y, its columns x.
        dtype: float32 or float64.
        damping: speed of the biharmonic friction [m/s]; 0 for none.

    """

    def __init__(self, nx, ny, grid, dtype, damping=DAMPING):
        self.nx, self.ny, self.grid, self.dtype = nx, ny, grid, jnp.dtype(dtype)
        self.damping = damping
        # Each Laplacian of friction takes one cell from each side, and tendencies one more: with
        # so many ghost cells around h, u and v a step needs a single exchange.
        self.ghosts = g = 3 if damping else 2
        # The block without its ghosts, and with one layer of them.
        self.inner, self.near = np.s_[g:-g, g:-g], np.s_[g - 1 : 1 - g, g - 1 : 1 - g]
        down, across = grid.dims
        self.pencil = pfftjax.Pencil((ny, nx), grid)
        if min(ny // down, nx // across) < g:
            raise SystemExit(
                f"{nx} x {ny} cells on {down} x {across} ranks leave some of them fewer than "
                f"{g} rows or columns; use fewer ranks, or another --grid"
            )
        # Cells that cross to other ranks are arrays of their own: of each block the first and the
        # last rows, and then, with the ghosts that these have brought, columns.
        edge = 2 * g
        self.edge_rows = pfftjax.Pencil((edge * down, nx), grid)
        self.edge_columns = pfftjax.Pencil((ny + edge * down, edge * across), grid)

    def with_ghosts(self, *fields):
        """The fields with their ghosts filled: all of them in one message."""
        g, (rows, columns) = self.ghosts, self.pencil.local_shape
        edges = [jnp.concatenate([a[g : 2 * g], a[-2 * g : -g]])[:, g:-g] for a in fields]
        edges = pfftjax.halo_exchange(
            jnp.stack(edges), self.edge_rows, (g, 0), periodic=(False, True)
        )
        write = jax.lax.dynamic_update_slice
        fields = [
            write(write(a, edge[:g], (0, g)), edge[-g:], (rows + g, g))
            for a, edge in zip(fields, edges, strict=True)
        ]
        edges = [jnp.concatenate([a[:, g : 2 * g], a[:, -2 * g : -g]], 1) for a in fields]
        edges = pfftjax.halo_exchange(jnp.stack(edges), self.edge_columns, (0, g))
        return [
            write(write(a, edge[:, :g], (0, 0)), edge[:, -g:], (0, columns + g))
            for a, edge in zip(fields, edges, strict=True)
        ]

    def row_numbers(self):
        """Global row of each row of the block, shape (rows, 1), ghosts included."""
        first = self.pencil.indices(0)[0] - self.ghosts
        return first + jnp.arange(self.pencil.local_shape[0] + 2 * self.ghosts)[:, None]

    def rows(self):
        """Coriolis parameter and walls of this rank's rows."""
        number = self.row_numbers()
        coriolis = CORIOLIS + BETA * SPACING * number.astype(self.dtype)
        return Rows(coriolis, ((number >= 0) & (number < self.ny - 1)).astype(self.dtype))

    def room(self, count):
        """Arrays of the shape of a block with its ghosts, zero."""
        shape = [n + 2 * self.ghosts for n in self.pencil.local_shape]
        return tuple(jnp.zeros(shape, self.dtype) for _ in range(count))

    def initial_fields(self):
        """(h, u, v) of this rank's cells: a jet in balance, and a small perturbation of h."""
        y = np.arange(self.ny) * SPACING
        length_x, length_y = self.nx * SPACING, (self.ny - 1) * SPACING
        jet = 10 * np.exp(-(((y - 0.5 * length_y) / (0.02 * length_x)) ** 2))
        slope = np.cumsum(-SPACING / GRAVITY * (CORIOLIS + BETA * y) * jet)
        profile = DEPTH + slope - slope.mean()
        row, column = self.pencil.indices(0), self.pencil.indices(1)
        wave_x = np.sin(10 * np.pi * np.arange(self.nx) / self.nx)
        wave_y = 0.2 * np.cos(8 * np.pi * y / length_y)
        profile, jet, wave_x, wave_y = (
            jnp.asarray(a, self.dtype) for a in (profile, jet, wave_x, wave_y)
        )
        h = profile[row] + wave_y[row] * wave_x[column]
        u = jet[row] + jnp.zeros_like(h)
        return h, u, jnp.zeros_like(h)

    def start(self, h, u, v):
        """The state at the beginning, from fields of shape (rows, columns).

        With its own tendency in place of that of a step before, the first step is one of Euler.
        """
        g = self.ghosts
        fields = [written(room, a, g) for room, a in zip(self.room(3), (h, u, v), strict=True)]
        h, u, v = self.with_ghosts(*fields)
        rows = self.rows()
        slowed_u, slowed_v = friction(u, v, rows.open, self.damping)
        now = tendencies(h[self.near], slowed_u, slowed_v, self.near_rows(rows))
        now = [written(room, a, g) for room, a in zip(self.room(3), now, strict=True)]
        return State(h, u, v, *now)

    def near_rows(self, rows):
        """Numbers of the rows with one layer of ghosts."""
        return Rows(*(a[self.near[0]] for a in rows))

    def step(self, state, rooms, rows):
        """(next state, arrays that are free now) from a state and arrays that are free."""
        room, slowed = rooms
        g, inner = self.ghosts, self.inner
        u, v = friction(state.u, state.v, rows.open, self.damping)
        slowed = written(slowed[0], u, g - 1), written(slowed[1], v, g - 1)
        h, u, v = (a[self.near] for a in (state.h, *slowed))
        now = tendencies(h, u, v, self.near_rows(rows))
        now = [written(a, change, g) for a, change in zip(room[3:], now, strict=True)]
        fields = [
            written(a, x[inner] + STEP * (NOW * new[inner] + BEFORE * old[inner]), g)
            for a, x, new, old in zip(room[:3], (state.h, *slowed), now, state[3:], strict=True)
        ]
        return State(*self.with_ghosts(*fields), *now), (state, slowed)

    def rooms(self):
        """Free arrays for `step`."""
        return State(*self.room(6)), self.room(2)

    def two_steps(self, state, rooms, rows):
        """Two of `step`: each array is then back where it was, which saves a loop from copying."""
        state, rooms = self.step(state, rooms, rows)
        return self.step(state, rooms, rows)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def advance(self, state, rooms, pairs):
        """(state, free arrays) after `pairs` pairs of steps, as fast as can be."""
        rows = self.rows()
        return jax.lax.fori_loop(
            0, pairs, lambda _, carry: self.two_steps(carry[0], carry[1], rows), (state, rooms)
        )

    def differentiable(self, state, steps):
        """The state after so many steps, for reverse mode: of all states in between, about
        2 sqrt(steps) are stored, and each step is computed again twice.
        """
        rows = self.rows()

        @jax.checkpoint
        def step(state, _):
            return self.step(state, self.rooms(), rows)[0], None

        length = max(n for n in range(1, math.isqrt(steps) + 1) if steps % n == 0)

        @jax.checkpoint
        def section(state, _):
            return jax.lax.scan(step, state, length=length)[0], None

        return jax.lax.scan(section, state, length=steps // length)[0]

    def loss(self, h, u, v, steps):
        """Mean square of the surface height after so many steps, on every rank. m^2"""
        surface = self.differentiable(self.start(h, u, v), steps).h[self.inner] - DEPTH
        return pfftjax.vdot(surface, surface, self.grid) / (self.nx * self.ny)


def gathered(block, pencil):
    """The whole array on rank 0, None elsewhere."""
    comm, columns = pencil.grid.comm, pencil.grid.dims[1]
    blocks = comm.gather(np.asarray(block))
    if blocks is None:
        return None
    whole = np.zeros(pencil.global_shape, blocks[0].dtype)
    for rank, part in enumerate(blocks):
        ranges = [pencil.range_of(axis, divmod(rank, columns)) for axis in range(2)]
        whole[tuple(slice(start, start + count) for start, count in ranges)] = part
    return whole


def totals(state, model):
    """(mass / density [m^3], energy / density [m^5/s^2]) of the fluid, in double precision."""
    h, u, v = (np.asarray(a, np.float64) for a in state[:3])
    g, inner = model.ghosts, model.inner
    ahead = slice(g + 1, 1 - g)
    east, north = (0.5 * (h[inner] + h[at]) for at in ((inner[0], ahead), (ahead, inner[1])))
    kinetic = 0.5 * (east * u[inner] ** 2 + north * v[inner] ** 2)
    potential = 0.5 * GRAVITY * (h[inner] - DEPTH) ** 2
    sums = np.array([h[inner].sum(), (kinetic + potential).sum()]) * SPACING**2
    return model.grid.comm.allreduce(sums)


def snapshot(state, model, pixels=400):
    """(surface height [m], vorticity / Coriolis parameter) on rank 0, every so many cells."""
    h, u, v = (np.asarray(a) for a in state[:3])
    g, inner = model.ghosts, model.inner
    ahead = slice(g + 1, 1 - g)
    vorticity = (v[inner[0], ahead] - v[inner] - u[ahead, inner[1]] + u[inner]) / SPACING
    every = -(-max(model.pencil.global_shape) // pixels)
    maps = [gathered(a, model.pencil) for a in (h[inner] - DEPTH, vorticity / CORIOLIS)]
    return [a[::every, ::every] for a in maps if a is not None]


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mesh", type=int, nargs=2, metavar=("NX", "NY"), help="cells, of 5 km; 360 180")
    add("--days", type=float, help="model time; 3, or 0.1 with --benchmark")
    add("--steps", type=int, help="time steps, an even number, in place of --days")
    add("--grid", help="process grid, rows by columns, as 2x2; as square as can be by default")
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--damping", type=float, help=f"of waves of a few cells, m/s; {DAMPING}, in --benchmark 0")
    add("--frames", type=int, default=60, help="how many the animation has; 0 for no pictures")
    add("--out", type=pathlib.Path, default=pathlib.Path("shallow_water"), help="folder")
    add("--gradient", type=int, metavar="STEPS", help="differentiate through so many steps")
    add("--save-fields", action="store_true", help="fields.npz with h, u and v at the end")
    add("--benchmark", action="store_true", help="3600 x 1800 cells, only the speed, no files")
    arguments = parser.parse_args()
    arguments.mesh = arguments.mesh or ((3600, 1800) if arguments.benchmark else (360, 180))
    if arguments.damping is None:
        arguments.damping = 0.0 if arguments.benchmark else DAMPING
    if arguments.steps is None:
        days = arguments.days or (0.1 if arguments.benchmark else 3.0)
        arguments.steps = 2 * math.ceil(days * DAY / STEP / 2)
    if arguments.steps < 2 or arguments.steps % 2:
        parser.error("--steps must be an even number, of at least 2")
    if arguments.gradient is not None and arguments.gradient < 1:
        parser.error("--gradient needs a step at least")
    return arguments


def benchmark(model, arguments):
    """Prints the time of the steps alone; a first round compiles."""
    comm, pairs = model.grid.comm, arguments.steps // 2
    carry = jax.jit(lambda: (model.start(*model.initial_fields()), model.rooms()))()
    carry = jax.block_until_ready(model.advance(*carry, pairs))
    comm.Barrier()
    begin = time.perf_counter()
    jax.block_until_ready(model.advance(*carry, pairs))
    seconds = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    if comm.rank == 0:
        steps = arguments.steps
        print(f"{steps} steps in {seconds:.3f} s: {steps / seconds:.2f} steps/s")


def check_gradient(model, steps):
    """(loss, gradient, derivative along a bump, the same by a central difference)."""
    h, u, v = jax.jit(model.initial_fields)()
    value_and_gradient = jax.jit(jax.value_and_grad(model.loss), static_argnums=3)
    loss, gradient = value_and_gradient(h, u, v, steps)
    row, column = (model.pencil.indices(axis) for axis in range(2))
    bump = jnp.exp(
        -(((row - 0.4 * model.ny) / (0.1 * model.ny)) ** 2)
        - ((column - 0.5 * model.nx) / (0.1 * model.nx)) ** 2
    ).astype(h.dtype)
    along = float(pfftjax.vdot(gradient, bump, model.grid))
    # The height of the bump, in metres: in float32 the rounding of the loss asks for a large one.
    height = 1e-3 if model.dtype == jnp.float64 else 1.0
    above, below = (
        float(value_and_gradient(h + sign * height * bump, u, v, steps)[0]) for sign in (1, -1)
    )
    return float(loss), gradient, along, (above - below) / (2 * height)


def main():
    """Run, measure, and write the results."""
    arguments = parse()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    nx, ny = arguments.mesh
    dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else None
    grid = pfftjax.ProcessGrid(dims)
    model = Model(nx, ny, grid, arguments.dtype, arguments.damping)
    comm, first = grid.comm, grid.comm.rank == 0
    if first:
        print(
            f"{nx} x {ny} cells, {arguments.steps} steps of {STEP:.1f} s, on {grid.size} ranks as "
            f"{grid.dims[0]} x {grid.dims[1]}, {arguments.dtype}",
            flush=True,
        )
    if arguments.benchmark:
        benchmark(model, arguments)
        return

    pairs, frames = arguments.steps // 2, max(arguments.frames, 1)
    parts = np.diff(np.linspace(0, pairs, min(frames, pairs) + 1).astype(int))
    state, rooms = jax.jit(lambda: (model.start(*model.initial_fields()), model.rooms()))()
    before = totals(state, model)
    movie = [(0.0, snapshot(state, model))]
    begin, done = time.perf_counter(), 0
    bar = tqdm(total=arguments.steps, disable=not first, unit="step")
    for part in parts.tolist():
        state, rooms = model.advance(state, rooms, part)
        done += 2 * part
        if arguments.frames:
            movie.append((done * STEP / DAY, snapshot(state, model)))
        bar.update(2 * part)
    jax.block_until_ready(state)
    bar.close()
    wall = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    mass, energy = totals(state, model) / before - 1
    fastest = comm.allreduce(float(jnp.max(jnp.abs(state.u[model.inner]), initial=0)), MPI.MAX)
    summary = {
        "ranks": grid.size,
        "grid": list(grid.dims),
        "mesh": [nx, ny],
        "steps": arguments.steps,
        "days": arguments.steps * STEP / DAY,
        "dtype": arguments.dtype,
        "wall_seconds": wall,
        "mass_change": float(mass),
        "energy_change": float(energy),
        "fastest": fastest,
    }
    gradient = None
    if arguments.gradient:
        loss, gradient, along, difference = check_gradient(model, arguments.gradient)
        summary |= {"loss": loss, "derivative": along, "central_difference": difference}
        gradient = gathered(gradient, model.pencil)
    fields = {name: getattr(state, name)[model.inner] for name in "huv"}
    whole = {name: gathered(a, model.pencil) for name, a in fields.items()}
    if first:
        arguments.out.mkdir(parents=True, exist_ok=True)
        if arguments.save_fields:
            known = {**whole, "gradient": gradient}
            known = {name: field for name, field in known.items() if field is not None}
            np.savez(arguments.out / "fields.npz", allow_pickle=False, **known)
        write(arguments, summary, movie, gradient)
        report(arguments.out, summary)


def write(arguments, summary, movie, gradient):
    """Pictures and numbers, on one rank."""
    out, (nx, ny) = arguments.out, arguments.mesh
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if not arguments.frames:
        return
    extent = (0, nx * SPACING / 1e3, 0, ny * SPACING / 1e3)
    draw_movie(movie, extent, out)
    if gradient is not None:
        draw_gradient(gradient * gradient.size, extent, out / "gradient.png")


def report(out, summary):
    """One screen."""
    print(f"steps            {summary['wall_seconds']:.1f} s with compiling and snapshots")
    print(
        f"conserved        mass {summary['mass_change']:+.1e}, energy "
        f"{summary['energy_change']:+.1e} relative to the beginning"
    )
    if "loss" in summary:
        print(f"mean square of the surface height  {summary['loss']:.6g} m^2")
        print(f"its derivative along a bump of h   {summary['derivative']:.9g} m")
        print(f"by a central difference            {summary['central_difference']:.9g} m")
    print(f"in the folder    {', '.join(sorted(p.name for p in out.iterdir()))}")


if __name__ == "__main__":
    main()
