"""A distributed, differentiable N-body simulation of large-scale structure.

    mpirun -n 4 python examples/nbody_pm.py --mesh 128 --box 500 --steps 10 --grid 2x2 --out out

Particles start by second-order Lagrangian perturbation theory from a Gaussian field with a
tabulated power spectrum, and move under their own gravity on a periodic mesh to today
(docs/simulation.md goes through it step by step). In the folder: a picture of the density, its
power spectrum beside linear theory and a fit to simulations, and the numbers. With --gradient also
the derivative of a loss at the end with respect to the white noise at the beginning.
"""

import argparse
import csv
import dataclasses
import functools
import json
import pathlib
import re
import time

import jax
import jax_cosmo
import matplotlib
import numpy as np
from mpi4py import MPI
from tqdm import tqdm

import pfftjax
from pfftjax import pm

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
TABLE = HERE / "data" / "planck2018_matter_power.txt"


class Input:
    """A table of power spectra, and the cosmology that its header names."""

    def __init__(self, path):
        lines = pathlib.Path(path).read_text().splitlines()
        header = " ".join(line for line in lines if line.startswith("#"))
        found = dict(re.findall(r"(\w+)=([-+.\deE]+)", header))
        needed = ("h", "Omega_m", "Omega_b", "n_s", "sigma8_linear_z0")
        missing = [name for name in needed if name not in found]
        if missing:
            raise SystemExit(
                f"{path}: the header must name {', '.join(missing)}, as lines of '# name=value'; "
                f"see {TABLE}"
            )
        h, omega_m, omega_b, n_s, sigma8 = (float(found[name]) for name in needed)
        omega_k = float(found.get("Omega_k", 0))
        self.cosmology = jax_cosmo.Cosmology(
            Omega_c=omega_m - omega_b,
            Omega_b=omega_b,
            h=h,
            n_s=n_s,
            sigma8=sigma8,
            Omega_k=omega_k,
            w0=-1.0,
            wa=0.0,
        )
        columns = np.loadtxt(path, unpack=True, ndmin=2)
        self.k, self.linear = columns[:2]
        self.nonlinear = columns[3] if len(columns) > 3 else None


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mesh", type=int, default=64, help="particles, and cells of fields, along each side")
    add("--finer", type=int, default=2, help="cells of the force mesh for each of these")
    add("--box", type=float, default=500.0, help="side of the box [Mpc/h]")
    add("--steps", type=int, default=10, help="time steps, equal in the scale factor")
    add("--start", type=float, default=0.1, help="scale factor of the initial conditions")
    add("--seed", type=int, default=0, help="makes the white noise")
    add("--grid", help="process grid, as 2x2; as square as can be by default")
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--kernel", choices=["cic", "tsc", "pcs"], default="cic", help="mass assignment")
    add("--integrator", choices=["bullfrog", "fastpm", "cola", "leapfrog"], default="bullfrog")
    add("--force", choices=["finite-difference", "spectral"], default="finite-difference")
    add("--capacity", type=int, help="particles that each rank has room for")
    add("--checkpoint", help="file from which a run goes on that was ended")
    add("--linear-power", default=TABLE, help="table: k [h/Mpc], P [(Mpc/h)^3] at z = 0")
    add("--out", type=pathlib.Path, default=pathlib.Path("nbody_pm"), help="folder")
    add(
        "--gradient",
        action="store_true",
        help="also that of the density's variance with respect to the white noise",
    )
    add("--save-fields", action="store_true", help="fields.npz with the whole fields")
    return parser.parse_args()


def gathered(block, pencil):
    """The whole array on rank 0, None elsewhere."""
    comm, columns = pencil.grid.comm, pencil.grid.dims[1]
    blocks = comm.gather(np.asarray(block))
    if blocks is None:
        return None
    shape = pencil.global_shape[: blocks[0].ndim]
    whole = np.zeros(shape, blocks[0].dtype)
    for rank, part in enumerate(blocks):
        ranges = [pencil.range_of(axis, divmod(rank, columns)) for axis in range(part.ndim)]
        whole[tuple(slice(start, start + count) for start, count in ranges)] = part
    return whole


def simulation(arguments, table):
    """All choices in one object."""
    dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else None
    grid = pfftjax.ProcessGrid(dims)
    return pm.Simulation(
        pfftjax.PencilFFT((arguments.mesh,) * 3, grid, real=True),
        arguments.box,
        table.cosmology,
        np.linspace(arguments.start, 1.0, arguments.steps + 1),
        power=pm.tabulated(table.k, table.linear),
        finer=arguments.finer,
        integrator=getattr(pm, arguments.integrator),
        kernel=arguments.kernel,
        gradient=arguments.force,
        capacity=arguments.capacity,
    )


class Clock:
    """A bar on one rank, and how long each step took."""

    def __init__(self, comm):
        self.bar, self.seconds = tqdm(disable=comm.rank > 0, unit="step"), []
        self.last = time.perf_counter()

    def __call__(self, done, steps):
        """Called before the first step, and after each."""
        now = time.perf_counter()
        if self.bar.total is None:
            self.bar.total = steps
        else:
            self.seconds.append(now - self.last)
        self.last = now
        self.bar.update(done - self.bar.n)

    def median(self):
        """Seconds of a step; the first compiles, and counts only if it is alone."""
        return float(np.median(self.seconds[1:] or self.seconds))


def measured(run, particles, final, initial):
    """A smooth density for the picture, the spectrum of the particles, and the growth T of each
    shell over linear theory.
    """
    # On the finer mesh the shells that the particles have are far from its aliases.
    fine = pm.density_contrast(particles, run.mesh, kernel=run.kernel, capacity=run.capacity)
    spectrum = pm.power_spectrum(fine, run.mesh, run.box_size, kernel=run.kernel)
    args = (run.plan, run.box_size)
    cross = pm.power_spectrum(final, *args, other=initial)
    shown = len(cross.k)
    return (
        dataclasses.replace(run, kernel="tsc").density(particles),
        pm.PowerSpectrum(*(x[:shown] for x in spectrum)),
        cross.power / pm.power_spectrum(initial, *args).power,
    )


def conservation(particles, density, comm):
    """Errors of mass and momentum, summed in double precision: (|dM|/M, |sum p|/sum |p|)."""
    used = int(particles.used)
    momentum = np.asarray(particles.momentum[:used], np.float64)
    moved = comm.allreduce(momentum.sum(0))
    all_of_it = comm.allreduce(np.linalg.norm(momentum, axis=1).sum())
    excess = comm.allreduce(np.asarray(density, np.float64).sum())
    number = comm.allreduce(used)
    cells = comm.allreduce(density.size)
    # The painted mass is (1 + delta) times the mean.
    mass = abs(excess * particles.total / cells + particles.total - number) / number
    return float(mass), float(np.linalg.norm(moved) / all_of_it)


def slab(field, pencil, box, thickness=0.1):
    """The mean of a field over the first part of axis 2: the whole map on rank 0."""
    planes = max(int(thickness * field.shape[2]), 1)
    return gathered(np.asarray(field[..., :planes]).mean(-1), pencil), planes * box / field.shape[
        2
    ]


def draw_map(image, box, title, label, path, **options):
    """A map of the box."""
    figure, axes = plt.subplots(figsize=(7.2, 6), layout="constrained")
    shown = axes.imshow(
        image.T, origin="lower", extent=(0, box, 0, box), interpolation="bicubic", **options
    )
    axes.set(xlabel=r"$x$ [Mpc/$h$]", ylabel=r"$y$ [Mpc/$h$]", title=title)
    figure.colorbar(shown, ax=axes, label=label)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def draw_spectrum(spectrum, table, path, title):
    """Measured, linear theory, and the fit to simulations where the table has one."""
    figure, (top, bottom) = plt.subplots(
        2, figsize=(7.2, 6.4), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    k, power = np.asarray(spectrum.k), np.asarray(spectrum.power)
    error = np.sqrt(2 / np.maximum(np.asarray(spectrum.modes), 1))
    shown = (table.k > k[0] / 2) & (table.k < k[-1] * 1.5)
    reference = table.linear if table.nonlinear is None else table.nonlinear
    top.loglog(table.k[shown], table.linear[shown], "k--", lw=1, label="linear theory")
    if table.nonlinear is not None:
        top.loglog(table.k[shown], table.nonlinear[shown], "k-", lw=1, label="HMcode-2020")
    top.errorbar(k, power, error * power, fmt="o", ms=3, color="C3", label="this simulation")
    top.set(ylabel=r"$P(k)$ [(Mpc/$h$)$^3$]", title=title)
    top.legend()
    expected = np.exp(np.interp(np.log(k), np.log(table.k), np.log(reference)))
    bottom.axhline(1, color="k", lw=1)
    bottom.errorbar(k, power / expected, error * power / expected, fmt="o", ms=3, color="C3")
    name = "linear" if table.nonlinear is None else "HMcode"
    bottom.set(xlabel=r"$k$ [$h$/Mpc]", ylabel=f"ratio to {name}", ylim=(0, 2))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    """Run, measure, and write the results."""
    arguments = parse()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    table = Input(arguments.linear_power)
    run = simulation(arguments, table)
    grid, pencil = run.plan.grid, run.plan.input
    comm, first = grid.comm, grid.comm.rank == 0
    out, box = arguments.out, arguments.box
    if first:
        out.mkdir(parents=True, exist_ok=True)
        print(
            f"{arguments.mesh}^3 particles in ({box:g} Mpc/h)^3, {arguments.steps} steps, on "
            f"{grid.size} ranks as {grid.dims[0]} x {grid.dims[1]}, {arguments.dtype}"
        )

    # A signal before the time is up, which asks for it, finds it here while programs compile.
    checkpoint = None
    if arguments.checkpoint:
        # With pip's h5py ranks write to one file in turn.
        layout = "per_rank" if grid.size > 16 else "shared"
        checkpoint = pfftjax.io.Checkpoint(arguments.checkpoint, layout=layout)
    begin = time.perf_counter()
    # It has the same large scales at any --mesh, and is the same on any number of ranks.
    noise = jax.jit(
        lambda: pm.nested_noise(jax.random.key(arguments.seed), run.plan, arguments.dtype)
    )()
    initial = jax.jit(run.linear)(noise)
    clock = Clock(comm)
    (particles,) = run.snapshots(noise, progress=clock, checkpoint=checkpoint)
    clock.bar.close()
    final = jax.block_until_ready(jax.jit(run.density)(particles))
    wall = time.perf_counter() - begin
    smooth, spectrum, growth = jax.jit(functools.partial(measured, run))(particles, final, initial)
    mass_error, momentum = conservation(particles, final, comm)
    summary = {
        "ranks": grid.size,
        "grid": list(grid.dims),
        "mesh": arguments.mesh,
        "box": box,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "dtype": arguments.dtype,
        "wall_seconds": comm.allreduce(wall, MPI.MAX),
        "seconds_per_step": comm.allreduce(clock.median(), MPI.MAX),
        "growth": float(growth[0]),
        "mass_error": mass_error,
        "momentum": momentum,
    }

    maps = {"density": slab(smooth, pencil, box, 0.06)}
    if arguments.gradient:
        begin = time.perf_counter()

        def variance(noise):
            delta = run.density(run.run(noise))
            return pfftjax.vdot(delta, delta, grid) / particles.total

        loss, gradient = jax.block_until_ready(jax.jit(pfftjax.value_and_grad(variance))(noise))
        summary["gradient_wall_seconds"] = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
        summary["loss"] = float(loss)
        summary["gradient_norm"] = float(pfftjax.norm(gradient, grid))
        maps["gradient"] = slab(gradient, pencil, box)
    fields = {"white_noise": noise, "delta_initial": initial, "delta_final": final}
    if arguments.save_fields:
        whole = {name: gathered(field, pencil) for name, field in fields.items()}
        if first:
            known = {name: field for name, field in whole.items() if field is not None}
            np.savez(out / "fields.npz", allow_pickle=False, **known)
    if first:
        write(out, arguments, table, spectrum, summary, maps)
        report(out, summary)


def write(out, arguments, table, spectrum, summary, maps):
    """Pictures and numbers, on one rank."""
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    with (out / "power_spectrum.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["k [h/Mpc]", "P [(Mpc/h)^3]", "modes"])
        for k, power, modes in zip(*spectrum, strict=True):
            rows.writerow([f"{float(k):.8e}", f"{float(power):.8e}", int(modes)])
    box = arguments.box
    image, depth = maps["density"]
    draw_map(
        np.log10(np.maximum(1 + image, 1e-1)),
        box,
        f"Density today, {arguments.mesh}$^3$ particles, a slab of {depth:.0f} Mpc/$h$",
        r"$\log_{10}(1 + \delta)$",
        out / "density.png",
        cmap="magma",
    )
    if "gradient" in maps:
        image, depth = maps["gradient"]
        most = float(np.abs(image).max())
        draw_map(
            image,
            box,
            rf"d(variance of $\delta$) / d(white noise), a slab of {depth:.0f} Mpc/$h$",
            "gradient",
            out / "gradient.png",
            cmap="RdBu_r",
            vmin=-most,
            vmax=most,
        )
    title = f"Matter power spectrum at z = 0, box {box:g} Mpc/$h$"
    draw_spectrum(spectrum, table, out / "power_spectrum.png", title)


def report(out, summary):
    """Print one screen of results."""
    print(f"simulation            {summary['wall_seconds']:.1f} s with compiling")
    print(f"one step              {1e3 * summary['seconds_per_step']:.0f} ms")
    print(f"growth of the lowest modes over linear theory   {summary['growth']:.4f}")
    print(f"error of the mass     {summary['mass_error']:.1e}")
    print(f"total momentum        {summary['momentum']:.1e} of its size")
    if "loss" in summary:
        print(f"loss and gradient     {summary['gradient_wall_seconds']:.1f} s with compiling")
        print(f"variance of delta     {summary['loss']:.4f}")
        print(f"norm of its gradient  {summary['gradient_norm']:.4e}")
    print(f"density               {out / 'density.png'}")
    print(f"power spectrum        {out / 'power_spectrum.png'}")


if __name__ == "__main__":
    main()
