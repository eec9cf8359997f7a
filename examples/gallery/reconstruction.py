"""The beginning, found again from the end.

A universe is simulated, its density today is observed with noise, and from this alone the waves
that it began with are sought. Adam descends through the whole simulation, from nothing to the
most probable universe: it minimises |δ(w) − observed|² / 2σ² + |w|² / 2, the logarithm of a
Gaussian posterior (Wang et al. 2014; Modi, Lanusse & Seljak 2021), in a variable that is scaled
by the signal to noise of each mode in linear theory, so that large and small scales are found
together. In the movie the initial field grows out of zero. Each rank updates its own block of
the 64³ unknowns: Adam works element by element, and gradients are those of all ranks together.
On large scales what is found is the truth; where noise has drowned the signal, it rightly stays
at zero.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from common import FIRST, Fact, Folder, draw_map, frame, planck, save, save_movie, slab, start

import pfftjax
from pfftjax import pm

SPACING, NOISE, RATE = 4.0, 0.1, 0.2
DEPTH = 16.0  # of the slab that is shown [Mpc/h]
ITERATIONS, FRAMES = 120, 60
UNIT = r" [Mpc/$h$]"


class Inference:
    """A simulation, and what the descent minimises."""

    def __init__(self, size: int):
        theory, self.box = planck(), SPACING * size
        grid = pfftjax.ProcessGrid()
        self.plan = pfftjax.PencilFFT((size,) * 3, grid, real=True)
        self.power, self.grid = theory.power, grid
        times = np.linspace(0.1, 1, 4)
        options = {"power": theory.power, "finer": 1}
        self.run = pm.Simulation(self.plan, self.box, theory.cosmology, times, **options)

    def density(self, white):
        """The density contrast today."""
        return self.run.density(self.run.run(white))

    def whitened(self, x):
        """White noise, of a variable in which the loss is about as steep in all directions."""
        cell = SPACING**3

        def filter_(k):
            return cell / (1 + self.power(k) / (cell * NOISE**2))

        return pm.linear_field(x, self.plan, self.box, filter_)

    def loss(self, x, observed):
        """Minus the logarithm of the posterior: one number for all ranks."""
        white = self.whitened(x)
        misfit = (self.density(white) - observed) / NOISE
        return pfftjax.vdot((misfit, white), (misfit, white), self.grid) / 2

    def correlation(self, field, other):
        """(k, r) of each shell: 1 for fields of the same phases."""
        where = (self.plan, self.box)
        cross = pm.power_spectrum(field, *where, other=other)
        one, two = (pm.power_spectrum(x, *where).power for x in (field, other))
        return cross.k, cross.power / jnp.sqrt(one * two)


def main(size: int, out: Folder) -> list[Fact]:
    """Simulate, observe, descend, and compare."""
    problem = Inference(size)
    plan, run = problem.plan, problem.run
    iterations = ITERATIONS if size >= 32 else 40

    def noise(seed):
        return pm.nested_noise(jax.random.key(seed), plan, "float32")

    truth = jax.jit(noise, static_argnums=0)(0)
    observed = jax.jit(lambda w: problem.density(w) + NOISE * noise(1))(truth)
    # The variable is about as large as the ratio of signal to noise.
    scale = RATE * float(pfftjax.norm(observed, problem.grid)) / size**1.5 / NOISE
    adam = optax.adam(optax.cosine_decay_schedule(scale, iterations, alpha=0.05), b2=0.99)

    @jax.jit
    def improve(x, state, observed):
        loss, gradient = pfftjax.value_and_grad(problem.loss)(x, observed)
        updates, state = adam.update(gradient, state)
        return optax.apply_updates(x, updates), state, loss

    initial = jax.jit(lambda w: run.linear(w))
    of_x = jax.jit(lambda x: run.linear(problem.whitened(x)))
    correlate = jax.jit(problem.correlation)
    x = jnp.zeros_like(observed)
    state, true_field = adam.init(x), initial(truth)
    planes = max(round(DEPTH / SPACING), 1)
    every = max(iterations // FRAMES, 1)
    losses, maps, curves = [], [], []
    for number in range(iterations):
        x, state, loss = improve(x, state, observed)
        losses.append(float(loss))
        if out and number % every == 0:
            found = of_x(x)
            maps.append(slab(found, plan.input, planes))
            curves.append(np.asarray(correlate(found, true_field)[1]))
    k, r = (np.asarray(a) for a in correlate(of_x(x), true_field))
    if out:
        fixed = [slab(a, plan.input, planes) for a in (observed, true_field)]
        if FIRST:
            draw(fixed, maps, curves, k, problem.box, out)
    seen = 0.3 * np.pi / SPACING
    scales = f"1 less correlation with the true beginning, mean of shells below {seen:.2f} h/Mpc"
    return [
        Fact(scales, 1 - float(r[k < seen].mean()), 0.05),
        Fact("loss at the end over that at the beginning", losses[-1] / losses[0], 0.2),
    ]


def draw(fixed, maps, curves, k, box, out):
    """The movie of the descent, and its last frame."""
    figure, axes = plt.subplots(1, 4, figsize=(14.6, 4.1), layout="constrained")
    observed, true = fixed
    most = float(np.abs(true).max())
    field = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "interpolation": "bicubic"}
    today = {"cmap": "magma", "vmin": -1, "vmax": float(np.quantile(observed, 0.998))}
    draw_map(axes[0], observed, box, UNIT, interpolation="bicubic", **today)
    axes[0].set_title("Observed: today, with noise")
    shown = draw_map(axes[1], maps[0], box, UNIT, **field)
    reference = draw_map(axes[2], true, box, UNIT, **field)
    axes[2].set_title("The true beginning")
    for ax in axes[1:3]:
        ax.set_ylabel("")
    label = r"$\delta$, linear, today"
    figure.colorbar(reference, ax=axes[1:3], label=label, location="bottom", shrink=0.5)
    (line,) = axes[3].plot(k, curves[0], "o-", ms=3, color="C3")
    axes[3].set(xlabel=r"$k$ [$h$/Mpc]", ylim=(-0.1, 1.05), title="Correlation with the truth")
    axes[3].set_ylabel("$r(k)$")
    axes[3].grid(alpha=0.3)
    every = max(ITERATIONS // len(maps), 1)
    frames = []
    for number, (image, r) in enumerate(zip(maps, curves, strict=True)):
        shown.set_data(image.T)
        line.set_ydata(r)
        axes[1].set_title(f"Found after {number * every + 1} steps")
        frames.append(frame(figure, 72))
    save_movie(frames, out / "reconstruction.webp")
    save(figure, out / "reconstruction.jpg")


if __name__ == "__main__":
    start(main, 64)
