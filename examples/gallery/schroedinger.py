"""A wave through two slits.

A packet of matter meets a wall with two slits, and what comes through interferes. Schrödinger's
equation i ∂ψ/∂t = −½∇²ψ + Vψ in two dimensions, by Strang's splitting: half a step of the
potential, exp(−iV dt/2), a step of free flight, exp(−ik²dt/2), between a forward and an inverse
transform, and half a step of the potential again (Feit, Fleck & Steiger 1982). `PencilTransform`
transforms the two axes in slabs; `jax.lax.scan` holds all steps in one program. Every factor has
the size one, so that the norm stays to rounding. Without the wall the splitting is exact, and
the packet is compared with the Gaussian that spreads as quantum mechanics says.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from common import FIRST, Fact, Folder, frame, save, save_movie, start, whole

import pfftjax

SIDE, SEEN = 40.0, 15.0  # of the periodic box, and how far from the slits pictures go
WIDTH, WAVE = 1.3, 6.0  # of the packet, and its wavenumber along x
CENTRE = -7.0, 0.0
WALL, THICK, SLITS, OPEN = 0.0, 0.5, 3.0, 1.0  # a wall at x = 0, two slits 3 apart and 1 wide
HEIGHT = 200.0
END, FRAMES = 3.2, 56


class Packet:
    """The equation on n x n points."""

    def __init__(self, n: int):
        self.plan = pfftjax.PencilTransform((n, n), pfftjax.ProcessGrid((None, 1)), ("fft", "fft"))
        self.steps = 5 * n

    def places(self):
        """X and y of this rank's points."""
        n = self.plan.shape[0]
        i, j = (self.plan.input.indices(axis).astype(float) for axis in range(2))
        return SIDE * (i / n - 0.5), SIDE * (j / n - 0.5)

    def gaussian(self, time):
        """The free packet at a time, exactly: it moves, and spreads."""
        x, y = self.places()
        x, y = x - CENTRE[0] - WAVE * time, y - CENTRE[1]
        spread = 1 + 0.5j * time / WIDTH**2
        phase = jnp.exp(1j * (WAVE * x + WAVE**2 * time / 2))
        amplitude = 1 / (WIDTH * jnp.sqrt(2 * jnp.pi) * spread)
        return amplitude * jnp.exp(-(x**2 + y**2) / (4 * WIDTH**2 * spread)) * phase

    def wall(self):
        """The potential: a wall with two slits."""
        x, y = self.places()
        is_open = abs(abs(y) - SLITS / 2) < OPEN / 2
        return HEIGHT * ((abs(x - WALL) < THICK / 2) & ~is_open)

    def flight(self, psi, potential, steps, dt):
        """So many steps of a flight."""
        kick = jnp.exp(-0.5j * dt * potential)
        kx, ky = self.plan.wavenumbers((SIDE, SIDE), float)
        drift = jnp.exp(-0.5j * dt * (kx**2 + ky**2))

        def step(psi, _):
            return kick * self.plan.inverse(drift * self.plan.forward(kick * psi)), None

        return jax.lax.scan(step, psi, length=steps)[0]


def main(size: int, out: Folder) -> list[Fact]:
    """A flight without the wall, beside theory, and one through the slits."""
    packet = Packet(size)
    grid = packet.plan.grid
    fly = jax.jit(packet.flight, static_argnums=2)
    begin = jax.jit(packet.gaussian)(0.0)

    # While the packet has not come to the end of the box.
    free, time = fly(begin, 0.0 * packet.wall(), 50, 0.02), 1.0
    exact = jax.jit(packet.gaussian)(time)
    error = float(pfftjax.norm(free - exact, grid) / pfftjax.norm(exact, grid))

    frames = FRAMES if out else 1
    steps = packet.steps // frames
    psi, maps = begin, [whole(abs(begin), packet.plan.input)]
    potential = jax.jit(packet.wall)()
    for _ in range(frames):
        psi = fly(psi, potential, steps, END / frames / steps)
        maps.append(whole(abs(psi), packet.plan.input))
    change = float(pfftjax.norm(psi, grid) / pfftjax.norm(begin, grid) - 1)
    if out and FIRST:
        draw(maps, out)
    return [
        Fact("free flight: rms error of ψ over its rms", error, 1e-9),
        Fact("two slits: norm of ψ at the end over that at the beginning, less 1", change, 1e-11),
    ]


def draw(maps, out):
    """A movie of |ψ|, and three of its frames."""
    half = SIDE / 2
    options = {"origin": "lower", "extent": (-half, half) * 2, "cmap": "magma", "vmin": 0}
    options |= {"vmax": 0.12, "interpolation": "bilinear"}

    def wall(ax):
        edges = [(-half, -(SLITS + OPEN) / 2), (-(SLITS - OPEN) / 2, (SLITS - OPEN) / 2)]
        for low, high in [*edges, ((SLITS + OPEN) / 2, half)]:
            ax.fill_between([-THICK / 2, THICK / 2], low, high, color="0.75")
        ax.set(xlabel="$x$", xlim=(-SEEN, SEEN), ylim=(-SEEN, SEEN))

    figure, ax = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
    shown = ax.imshow(maps[0].T, **options)
    wall(ax)
    ax.set(ylabel="$y$")
    figure.colorbar(shown, ax=ax, label="|ψ|", extend="max")
    frames = []
    for number, image in enumerate(maps):
        shown.set_data(image.T)
        ax.set_title(f"Two slits, $t$ = {END * number / (len(maps) - 1):.2f}")
        frames.append(frame(figure))
    save_movie(frames, out / "schroedinger.webp")
    plt.close(figure)

    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4), layout="constrained", sharey=True)
    for ax, part in zip(axes, (0.0, 0.5, 0.85), strict=True):
        which = round(part * (len(maps) - 1))
        shown = ax.imshow(maps[which].T, **options)
        wall(ax)
        ax.set(title=f"$t$ = {END * which / (len(maps) - 1):.2f}")
    axes[0].set(ylabel="$y$")
    figure.colorbar(shown, ax=axes, label="|ψ|", extend="max")
    save(figure, out / "schroedinger.jpg")


if __name__ == "__main__":
    start(main, 512)
