"""The initial conditions of a universe, from its density today.

    mpirun -n 2 python examples/reconstruct.py --mesh 32 --box 200 --steps 3 --out out

A universe is simulated as in nbody_pm.py, and its final density is observed with noise. Then the
white noise w that it began with is recovered by gradient descent through the whole simulation. It
maximises the posterior probability of a Gaussian prior and likelihood, and so minimises

    loss = |density(w) - observed|^2 / (2 noise^2) + |w|^2 / 2

(Wang et al. 2014; Modi, Lanusse & Seljak 2021). In the folder: a picture of the fields, true and
recovered, with their correlation at each scale, and the numbers.

The white noise is distributed, and each rank updates its own block. That is right with Adam, which
works element by element: the step of a number follows from its own gradients alone, and those are
exact for the loss of all ranks together. It would be wrong with what takes an inner product or a
norm of the whole gradient (optax.lbfgs and its line search, optax.clip_by_global_norm): optax sums
over the block that it is given, ranks would go different ways, and where one of them evaluates the
loss once more than the others the job would stand still. The inner products over all ranks are
pfftjax.vdot and pfftjax.norm; they serve here to measure.
"""

import argparse
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from mpi4py import MPI
from nbody_pm import TABLE, Input, slab
from tqdm import tqdm

import pfftjax
from pfftjax import pm

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mesh", type=int, default=32, help="particles, and cells of fields, along each side")
    add("--box", type=float, default=200.0, help="side of the box [Mpc/h]")
    add("--steps", type=int, default=3, help="time steps, equal in the scale factor")
    add("--start", type=float, default=0.1, help="scale factor of the initial conditions")
    add("--iterations", type=int, default=100, help="how many the descent takes; at least one")
    add("--rate", type=float, default=0.2, help="first step, in sizes of what is looked for")
    add(
        "--noise",
        type=float,
        default=0.1,
        help="how much the observed density contrast has in each cell",
    )
    add(
        "--seed", type=int, default=0, help="makes the universe, and the noise of what is observed"
    )
    add("--grid", help="process grid, as 2x1; as square as can be by default")
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--capacity", type=int, help="particles that each rank has room for")
    add("--linear-power", default=TABLE, help="table: k [h/Mpc], P [(Mpc/h)^3] at z = 0")
    add("--out", type=pathlib.Path, default=pathlib.Path("reconstruct"), help="folder")
    return parser.parse_args()


class Reconstruction:
    """The programs of one run; all are the same on every rank."""

    def __init__(self, arguments, table):
        self.box, self.noise, self.seed = arguments.box, arguments.noise, arguments.seed
        self.dtype = jnp.dtype(arguments.dtype)
        self.scale_factors = jnp.linspace(arguments.start, 1.0, arguments.steps + 1)
        self.capacity = arguments.capacity
        self.cosmology = table.cosmology
        self.power = pm.tabulated(table.k, table.linear)
        dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else None
        self.grid = pfftjax.ProcessGrid(dims)
        self.plan = pfftjax.PencilFFT((arguments.mesh,) * 3, self.grid, real=True)
        self.cell = (arguments.box / arguments.mesh) ** 3
        self.iterations, self.rate = arguments.iterations, arguments.rate

    def white_noise(self, number):
        """The universe (number 0), and the noise of its observation (1)."""
        key = jax.random.key(self.seed)
        key = jax.random.fold_in(key, number) if number else key
        return pm.white_noise(key, self.plan.input, self.dtype)

    def simulate(self, white):
        """(linear density contrast, density contrast today)."""
        linear = pm.linear_field(white, self.plan, self.box, self.power)
        where = (self.plan, self.box, self.cosmology)
        start = pm.lpt(linear, *where, self.scale_factors[0])
        final = pm.simulate(start, *where, self.scale_factors, capacity=self.capacity)
        return linear, pm.density_contrast(final, self.plan)

    def whitened(self, x):
        """The white noise, of a variable in which the loss is about as steep in all directions.

        In linear theory the second derivative of the loss to a mode of the white noise is one plus
        its signal to noise P(k) / (V_cell noise^2), from one to ten thousand; descent in the white
        noise itself finds the large scales and leaves the small ones.
        """

        def power(k):
            return self.cell / (1 + self.power(k) / (self.cell * self.noise**2))

        return pm.linear_field(x, self.plan, self.box, power)

    def loss(self, white, observed):
        """Minus the logarithm of the posterior: one number for all ranks."""
        residual = (self.simulate(white)[1] - observed) / self.noise
        # In one message.
        return pfftjax.vdot((residual, white), (residual, white), self.grid) / 2

    def descend(self, observed):
        """The white noise of the least loss, the losses and norms of gradients on the way."""
        # The variable of `whitened` is about as large as signal to noise.
        size = pfftjax.norm(observed, self.grid) / self.plan.shape[0] ** 1.5 / self.noise
        schedule = optax.cosine_decay_schedule(self.rate * size, self.iterations, alpha=0.05)
        # Gradients fall by orders of magnitude: their older squares are soon of no use.
        adam = optax.adam(schedule, b2=0.99)

        # What differs between ranks is an argument: the program must be the same on all of them.
        @jax.jit
        def improve(x, state, observed):
            def of_x(x):
                return self.loss(self.whitened(x), observed)

            loss, gradient = jax.value_and_grad(of_x)(x)
            updates, state = adam.update(gradient, state)
            return optax.apply_updates(x, updates), state, loss, pfftjax.norm(gradient, self.grid)

        x = jnp.zeros_like(observed)
        state = adam.init(x)
        losses, norms = [], []
        bar = tqdm(range(self.iterations), disable=self.grid.comm.rank > 0, unit="iteration")
        for _ in bar:
            x, state, loss, norm = improve(x, state, observed)
            losses.append(float(loss))
            norms.append(float(norm))
            bar.set_postfix(loss=f"{losses[-1]:.4e}", gradient=f"{norms[-1]:.1e}")
        return jax.jit(self.whitened)(x), losses, norms

    def correlation(self, field, other):
        """(k, r) with r = P_x / sqrt(P_a P_b) of each shell: 1 for fields of the same phases."""
        where = (self.plan, self.box)
        cross = pm.power_spectrum(field, *where, other=other)
        powers = [pm.power_spectrum(x, *where).power for x in (field, other)]
        return cross.k, cross.power / jnp.sqrt(powers[0] * powers[1])


def draw(path, maps, box, curves, losses, truth):
    """Four maps above, the correlations and the losses below."""
    figure, axes = plt.subplot_mosaic(
        [list("abcd"), list("rrll")], figsize=(13, 7.4), layout="constrained"
    )
    labels = {True: r"$\delta$, linear, today", False: r"$\delta$"}
    for name, (title, image) in zip("abcd", maps.items(), strict=True):
        initial = "initial" in title
        # The true map of each pair sets the colours of both.
        reference = maps["true initial" if initial else "observed today"]
        most = float(np.abs(reference).max())
        shown = axes[name].imshow(
            image.T,
            origin="lower",
            extent=(0, box, 0, box),
            interpolation="bicubic",
            cmap="RdBu_r" if initial else "magma",
            vmin=-most if initial else -1,
            vmax=most,
        )
        axes[name].set(title=title, xlabel=r"$x$ [Mpc/$h$]")
        figure.colorbar(shown, ax=axes[name], location="bottom", label=labels[initial])
    axes["a"].set(ylabel=r"$y$ [Mpc/$h$]")
    for (label, (k, r)), style in zip(curves.items(), ("o-", "s--"), strict=True):
        axes["r"].plot(k, r, style, ms=4, label=label)
    axes["r"].set(
        xlabel=r"$k$ [$h$/Mpc]", ylabel="$r(k)$ with the true initial field", ylim=(-0.05, 1.05)
    )
    axes["r"].legend()
    axes["l"].semilogy(np.arange(1, len(losses) + 1), losses, label="on the way")
    axes["l"].axhline(truth, color="k", lw=1, ls="--", label="of the true initial conditions")
    axes["l"].set(xlabel="iteration", ylabel="loss")
    axes["l"].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    """Simulate, observe, recover, and compare."""
    arguments = parse()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    run = Reconstruction(arguments, Input(arguments.linear_power))
    comm, grid, pencil = run.grid.comm, run.grid, run.plan.input
    first = comm.rank == 0
    out, box = arguments.out, arguments.box
    if first:
        out.mkdir(parents=True, exist_ok=True)
        print(
            f"{arguments.mesh}^3 cells in ({box:g} Mpc/h)^3, {arguments.steps} steps, on "
            f"{grid.size} ranks as {grid.dims[0]} x {grid.dims[1]}, {arguments.dtype}"
        )

    true_white = jax.jit(lambda: run.white_noise(0))()
    true_initial, true_final = jax.jit(run.simulate)(true_white)
    observed = true_final + run.noise * jax.jit(lambda: run.white_noise(1))()
    truth = float(jax.jit(run.loss)(true_white, observed))

    begin = time.perf_counter()
    white, losses, norms = run.descend(observed)
    wall = time.perf_counter() - begin
    initial, final = jax.jit(run.simulate)(white)
    last = float(jax.jit(run.loss)(white, observed))
    correlation = jax.jit(run.correlation)
    k, r = (np.asarray(x, float) for x in correlation(initial, true_initial))
    # The observation tells this much without any reconstruction.
    _, before = (np.asarray(x, float) for x in correlation(observed, true_initial))

    fields = {
        "true initial": true_initial,
        "recovered initial": initial,
        "observed today": observed,
        "recovered today": final,
    }
    maps = {name: slab(field, pencil, box)[0] for name, field in fields.items()}
    summary = {
        "ranks": grid.size,
        "grid": list(grid.dims),
        "mesh": arguments.mesh,
        "box": box,
        "steps": arguments.steps,
        "seed": arguments.seed,
        "noise": arguments.noise,
        "dtype": arguments.dtype,
        "iterations": arguments.iterations,
        "loss_first": losses[0],
        "loss_last": last,
        "loss_of_truth": truth,
        "gradient_norm_first": norms[0],
        "gradient_norm_last": norms[-1],
        "k": k.tolist(),
        "r": r.tolist(),
        "r_observed": before.tolist(),
        "wall_seconds": comm.allreduce(wall, MPI.MAX),
    }
    if first:
        (out / "reconstruction.json").write_text(json.dumps(summary, indent=2) + "\n")
        curves = {"recovered": (k, r), "observed, as it is": (k, before)}
        draw(out / "reconstruction.png", maps, box, curves, losses, truth)
        report(out, summary)


def report(out, summary):
    """One screen."""
    print(f"{summary['iterations']} iterations        {summary['wall_seconds']:.1f} s")
    print(f"loss                  {summary['loss_first']:.6e} to {summary['loss_last']:.6e}")
    print(f"that of the truth     {summary['loss_of_truth']:.6e}")
    print("k [h/Mpc]   r(k) recovered   observed")
    for row in zip(summary["k"], summary["r"], summary["r_observed"], strict=True):
        print("{:9.4f}   {:14.4f}   {:8.4f}".format(*row))
    print(f"picture               {out / 'reconstruction.png'}")


if __name__ == "__main__":
    main()
