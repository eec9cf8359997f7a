"""The initial conditions of a universe from galaxies in redshift space, and how well we know them.

    mpirun -n 2 python examples/infer.py --mesh 64 --box 640 --out out

A universe is evolved by second-order Lagrangian perturbation theory. Its galaxies, whose density
contrast is a bias times that of matter, are seen in redshift space along z, with noise in each
cell. Then the posterior distribution of the white noise that the universe began with, and of the
bias, is sampled (Jasche & Wandelt 2013; Wang et al. 2014): all ranks together draw one chain by
pfftjax.sampling.mclmc, whose gradients go through the whole model.

    log posterior = -|bias delta(w) - observed|^2 / (2 noise^2) - |w|^2 / 2 + prior of the bias

In the folder: a picture of the truth, of the posterior's mean and of its standard deviation, with
spectra and traces; the numbers; and the state of the chain (chain.h5), written as it goes on.
Started again with the same folder, on any number of ranks, the program goes on with that chain.
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
import matplotlib
import numpy as np
from mpi4py import MPI
from nbody_pm import TABLE, Input, slab
from tqdm import tqdm

import pfftjax
from pfftjax import io, pm, sampling
from pfftjax.observables import redshift_space

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BIAS = 1.6  # of the galaxies that are observed
BIAS_PRIOR = (1.5, 0.5)  # mean and standard deviation
# Keys of what is drawn once; those of the chain's steps follow them.
WHITE, NOISE, START, TUNING, CHAIN = range(5)


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mesh", type=int, default=64, help="particles, and cells of fields, along each side")
    add("--box", type=float, default=640.0, help="side of the box [Mpc/h]")
    add("--noise", type=float, default=1.0, help="of the density contrast in each cell")
    add("--tuning", type=int, default=300, help="steps on the way to the distribution")
    add("--samples", type=int, default=600, help="steps of the chain after these")
    add("--every", type=int, default=50, help="steps of one program; the chain is saved after it")
    add("--seed", type=int, default=0)
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--grid", help="process grid as 2x1; a square one by default")
    add("--linear-power", type=pathlib.Path, default=TABLE, help="table of the linear spectrum")
    add("--out", type=pathlib.Path, default=pathlib.Path("out"), help="folder of the results")
    arguments = parser.parse_args()
    if min(arguments.tuning, arguments.samples, arguments.every) < 1:
        parser.error("--tuning, --samples and --every must be at least one")
    if arguments.samples % arguments.every:
        parser.error("--every must divide --samples")
    return arguments


class Chain(NamedTuple):
    """A chain as it goes on: its state, and sums over what it has drawn."""

    state: sampling.MCLMCState
    total: jax.Array  # of the linear field of each sample
    square: jax.Array


class Survey:
    """What is observed, and what is inferred of it, as one density of position."""

    def __init__(self, arguments):
        table = Input(arguments.linear_power)
        self.box, self.noise = arguments.box, arguments.noise
        self.dtype, self.seed = jnp.dtype(arguments.dtype), arguments.seed
        self.cosmology, self.power = table.cosmology, pm.tabulated(table.k, table.linear)
        dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else None
        self.grid = pfftjax.ProcessGrid(dims)
        self.plan = pfftjax.PencilFFT((arguments.mesh,) * 3, self.grid, real=True)
        self.cell = (arguments.box / arguments.mesh) ** 3
        # Redshift space has so much more power, in the mean over directions (Kaiser 1987).
        growth = pm.growth(self.cosmology, 1.0)
        beta = growth.d1_rate / growth.d1 / BIAS_PRIOR[0]
        self.kaiser = float(1 + 2 * beta / 3 + beta**2 / 5)
        self.space = sampling.Space({"field": self.plan.input, "bias": ()}, self.grid)

    def key(self, number):
        """The key of what is drawn, the same on every rank."""
        return jax.random.fold_in(jax.random.key(self.seed), number)

    def galaxies(self, linear, bias):
        """The density contrast of galaxies in redshift space, of the linear field today."""
        where = (self.plan, self.box, self.cosmology)
        seen = redshift_space(pm.lpt(linear, *where, 1.0), *where, 2)
        return bias * pm.density_contrast(seen, self.plan)

    def linear(self, field):
        """The linear field of what is sampled, which the posterior has about equally wide in all
        its numbers.

        It is the white noise divided by the root of one plus signal to noise of its mode, as in
        linear theory; the white noise itself would be narrow on large scales only.
        """
        return self.filtered(field, self.power)

    def white(self, field):
        """The white noise of what is sampled."""
        return self.filtered(field, lambda k: self.cell)

    def filtered(self, field, power):
        """A field of this spectrum where what is sampled is white and nothing is observed."""

        def narrowed(k):
            signal = BIAS_PRIOR[0] ** 2 * self.kaiser * self.power(k)
            return power(k) / (1 + signal / (self.cell * self.noise**2))

        return pm.linear_field(field, self.plan, self.box, narrowed)

    def logdensity(self, observed, position):
        """The logarithm of the posterior: one number for all ranks."""
        field, bias = position["field"], position["bias"]
        residual = (self.galaxies(self.linear(field), bias) - observed) / self.noise
        white = self.white(field)
        mean, width = BIAS_PRIOR
        prior = ((bias - mean) / width) ** 2
        return -(pfftjax.vdot((residual, white), (residual, white), self.grid) + prior) / 2

    def inverse_mass(self, observed):
        """About the variances of what is sampled: the bias is known as well as signal to noise has
        it.
        """
        power = pfftjax.vdot(observed, observed, self.grid) / self.noise**2
        signal = jnp.maximum(power - math.prod(self.plan.shape), 1.0)
        return {"field": 1.0, "bias": BIAS_PRIOR[0] ** 2 / signal}

    def observe(self):
        """(the true linear field, the galaxies observed)"""
        white, noise = (
            pm.white_noise(self.key(n), self.plan.input, self.dtype) for n in (WHITE, NOISE)
        )
        linear = pm.linear_field(white, self.plan, self.box, self.power)
        return linear, self.galaxies(linear, BIAS) + self.noise * noise

    # What differs between ranks is an argument of programs: they must be the same on all ranks.

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def begin(self, observed, steps):
        """The chain where the distribution is, and the step that suits it."""
        log = functools.partial(self.logdensity, observed)
        position = {
            "field": pm.white_noise(self.key(START), self.plan.input, self.dtype),
            "bias": jnp.asarray(BIAS_PRIOR[0], self.dtype),
        }
        first = 0.05 * self.space.size**0.5
        state = sampling.mclmc(log, self.space, first).init(position, self.key(START))
        state, step = sampling.tune_mclmc(
            log,
            self.space,
            state,
            self.key(TUNING),
            steps=steps,
            step_size=first,
            inverse_mass=self.inverse_mass(observed),
        )
        none = jnp.zeros_like(observed)
        return Chain(state, none, none), step

    @functools.partial(jax.jit, static_argnums=(0, 5))
    def go_on(self, observed, chain, step_size, done, steps):
        """The chain so many steps later, and (bias, log density, energy error) of each step."""
        log = functools.partial(self.logdensity, observed)
        mass = self.inverse_mass(observed)
        sampler = sampling.mclmc(log, self.space, step_size, inverse_mass=mass)

        def advance(chain, number):
            # The number of the step is all that its random numbers depend on.
            key = jax.random.fold_in(self.key(CHAIN), number)
            state, info = sampler.step(key, chain.state)
            linear = self.linear(state.position["field"])
            after = Chain(state, chain.total + linear, chain.square + linear**2)
            return after, (state.position["bias"], state.logdensity, info.energy_change)

        return jax.lax.scan(advance, chain, done + jnp.arange(steps))

    @functools.partial(jax.jit, static_argnums=0)
    def resumed(self, observed, position, momentum):
        """The state of a chain, of which the file has position and momentum."""
        density = self.space.density(functools.partial(self.logdensity, observed))
        return sampling.MCLMCState(position, momentum, *jax.value_and_grad(density)(position))

    def save(self, path, chain, step_size, traces, settings):
        """Replace the file by one of the chain as it is now, which appears when it is whole."""
        state = chain.state
        fields = {"position": state.position["field"], "momentum": state.momentum["field"]}
        fields |= {"total": chain.total, "square": chain.square}
        attributes = {
            "bias": float(state.position["bias"]),
            "momentum_of_bias": float(state.momentum["bias"]),
            "step_size": float(step_size),
            "settings": settings,
            "traces": traces,
        }
        io.save(path, fields, self.plan.input, attributes=attributes, mode="w")

    def load(self, path, observed, settings):
        """(chain, step size, traces) of the file, if it has the same settings."""
        found = io.attributes(path, self.grid)
        if found["settings"] != settings:
            raise SystemExit(f"{path} is of {found['settings']}; remove it, or give another --out")
        names = ("position", "momentum", "total", "square")
        field, momentum, *sums = (io.load(path, name, self.plan.input) for name in names)
        position = {"field": field, "bias": jnp.asarray(found["bias"], self.dtype)}
        moving = {"field": momentum, "bias": jnp.asarray(found["momentum_of_bias"], self.dtype)}
        state = self.resumed(observed, position, moving)
        return Chain(state, *sums), jnp.asarray(found["step_size"], self.dtype), found["traces"]

    @functools.partial(jax.jit, static_argnums=0)
    def correlation(self, a, b):
        """(k, r) with r = P_ab / sqrt(P_a P_b) of each shell, and the power of `a`."""
        where = (self.plan, self.box)
        cross = pm.power_spectrum(a, *where, other=b)
        powers = [pm.power_spectrum(x, *where).power for x in (a, b)]
        return cross.k, cross.power / jnp.sqrt(powers[0] * powers[1]), powers[0]


def draw(path, maps, box, curves, traces, truth):
    """Maps above, spectra and traces below."""
    figure, axes = plt.subplot_mosaic(
        [list("abcd"), list("rrtt")], figsize=(14, 7.4), layout="constrained"
    )
    most = float(np.abs(maps["true initial field"]).max())
    for name, (title, image) in zip("abcd", maps.items(), strict=True):
        is_field = "field" in title or "mean" in title
        shown = axes[name].imshow(
            image.T,
            origin="lower",
            extent=(0, box, 0, box),
            cmap="RdBu_r" if is_field else "magma",
            vmin=-most if is_field else None,
            vmax=most if is_field else None,
        )
        axes[name].set(title=title, xlabel=r"$x$ [Mpc/$h$]")
        figure.colorbar(shown, ax=axes[name], location="bottom")
    axes["a"].set(ylabel=r"$y$ [Mpc/$h$]")
    for (label, (k, r)), style in zip(curves.items(), ("o-", "s--", "d:"), strict=True):
        axes["r"].plot(k, r, style, ms=4, label=label)
    axes["r"].set(xlabel=r"$k$ [$h$/Mpc]", ylabel="with the true initial field", ylim=(-0.05, 1.3))
    axes["r"].axhline(1, color="0.7", lw=1)
    axes["r"].legend()
    axes["t"].plot(traces[:, 0], lw=1)
    axes["t"].axhline(truth, color="k", lw=1, ls="--", label="truth")
    axes["t"].set(xlabel="step of the chain", ylabel="bias")
    axes["t"].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def correlation_length(x):
    """Steps after which a trace has forgotten itself: one plus twice the sum of its correlations,
    up to the first that is below 0.05.
    """
    x = np.asarray(x, float) - np.mean(x)
    correlations = np.correlate(x, x, "full")[len(x) - 1 :] / max(np.sum(x * x), 1e-300)
    ends = np.flatnonzero(correlations < 0.05)
    return 1 + 2 * float(correlations[1 : ends[0] if len(ends) else len(x)].sum())


def main():
    """Observe, sample, and compare with the truth."""
    arguments = parse()
    jax.config.update("jax_enable_x64", arguments.dtype == "float64")
    survey = Survey(arguments)
    comm, grid, out = survey.grid.comm, survey.grid, arguments.out
    first, path = comm.rank == 0, out / "chain.h5"
    settings = f"mesh {arguments.mesh}, box {arguments.box:g}, noise {arguments.noise:g}, "
    settings += f"tuning {arguments.tuning}, seed {arguments.seed}, {arguments.dtype}"
    if first:
        out.mkdir(parents=True, exist_ok=True)
        print(f"{settings}, on {grid.size} ranks as {grid.dims[0]} x {grid.dims[1]}")
    truth, observed = jax.jit(survey.observe)()

    begin = time.perf_counter()
    if comm.bcast(path.exists() if first else None):
        chain, step_size, traces = survey.load(path, observed, settings)
    else:
        chain, step_size = survey.begin(observed, arguments.tuning)
        traces = np.zeros((0, 3))
    resumed = len(traces)
    bar = tqdm(total=arguments.samples, initial=resumed, disable=not first, unit="step")
    while len(traces) < arguments.samples:
        chain, new = survey.go_on(observed, chain, step_size, len(traces), arguments.every)
        traces = np.concatenate([traces, np.stack([np.asarray(x, float) for x in new], axis=1)])
        survey.save(path, chain, step_size, traces, settings)
        bar.update(arguments.every)
        bar.set_postfix(bias=f"{traces[-1, 0]:.3f}", log=f"{traces[-1, 1]:.5e}")
    bar.close()
    wall = comm.allreduce(time.perf_counter() - begin, MPI.MAX)

    number = len(traces)
    mean = chain.total / number
    deviation = jnp.sqrt(jnp.maximum(chain.square / number - mean**2, 0))
    sample = jax.jit(survey.linear)(chain.state.position["field"])
    k, of_mean, _ = (np.asarray(x, float) for x in survey.correlation(mean, truth))
    _, of_sample, power = (np.asarray(x, float) for x in survey.correlation(sample, truth))
    _, of_observed, _ = (np.asarray(x, float) for x in survey.correlation(observed, truth))
    true_power = np.asarray(survey.correlation(truth, truth)[2], float)
    # Where the posterior is right, the truth is one more sample of it.
    away = pfftjax.norm(mean - truth, grid) / pfftjax.norm(deviation, grid)
    fields = {
        "true initial field": truth,
        "galaxies observed": observed,
        "posterior mean": mean,
        "posterior deviation": deviation,
    }
    maps = {title: slab(x, survey.plan.input, survey.box)[0] for title, x in fields.items()}
    length = correlation_length(traces[:, 0])
    errors = traces[:, 2] ** 2 / survey.space.size
    summary = {
        "ranks": grid.size,
        "grid": list(grid.dims),
        "settings": settings,
        "samples": number,
        "samples_before": resumed,
        "step_size": float(step_size),
        "energy_error": float(errors.mean()),
        "bias": BIAS,
        "bias_mean": float(traces[:, 0].mean()),
        "bias_deviation": float(traces[:, 0].std()),
        "bias_correlation_length": length,
        "truth_over_deviation": float(away),
        "k": k.tolist(),
        "r_mean": of_mean.tolist(),
        "r_sample": of_sample.tolist(),
        "r_observed": of_observed.tolist(),
        "power_ratio": (power / true_power).tolist(),
        "trace_of_bias": traces[:, 0].tolist(),
        "wall_seconds": wall,
    }
    if first:
        (out / "infer.json").write_text(json.dumps(summary, indent=2) + "\n")
        curves = {
            "correlation of the mean": (k, of_mean),
            "correlation of a sample": (k, of_sample),
            "power of a sample over that of the truth": (k, power / true_power),
        }
        draw(out / "infer.png", maps, survey.box, curves, traces, BIAS)
        report(out, summary)


def report(out, summary):
    """One screen."""
    print(f"{summary['samples']} samples           {summary['wall_seconds']:.1f} s")
    print(f"step                  {summary['step_size']:.3g}")
    print(f"bias                  {summary['bias_mean']:.4f} +- {summary['bias_deviation']:.4f}")
    print(f"the true bias         {summary['bias']:.4f}")
    print(f"steps to forget it    {summary['bias_correlation_length']:.1f}")
    print(f"truth from the mean   {summary['truth_over_deviation']:.3f} standard deviations")
    print("k [h/Mpc]   r of the mean   of a sample   of the galaxies   P over truth")
    names = ("k", "r_mean", "r_sample", "r_observed", "power_ratio")
    for row in zip(*(summary[name] for name in names), strict=True):
        print("{:9.4f}   {:13.4f}   {:11.4f}   {:15.4f}   {:12.4f}".format(*row))
    print(f"picture               {out / 'infer.png'}")


if __name__ == "__main__":
    main()
