"""Turbulence from a single vortex.

The Taylor-Green vortex at a Reynolds number of 1600: smooth at the beginning, its vortices
stretch, break and fill all scales, and at t = 9 dissipate fastest. The incompressible
Navier-Stokes equations in rotational form, ∂u/∂t = P(u × ω) + ν∇²u, ω = ∇ × u, P the projection
to divergence-free fields, advance by a fourth-order Runge-Kutta scheme whose viscous term is
exact (an integrating factor). The product is formed by the 3/2 rule (Orszag 1971) on 27/8 as
many points, where no alias reaches a mode that is kept: `padded_inverse` brings all six
components there in the messages of one transform, `truncated_forward` brings three back. What is
lost in energy must be what viscosity dissipates, ε = ν⟨ω²⟩; direct simulations on 512³ points
have its peak of 0.0128 near t = 9 (van Rees et al. 2011). On 96³ points the smallest eddies are
not resolved at the peak, and the dissipation there is some per cent too high.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from common import FIRST, Fact, Folder, frame, save, save_movie, slab, start

import pfftjax
from pfftjax import spectral
from pfftjax.collectives import allreduce

VISCOSITY = 1 / 1600
END, FRAMES = 10.0, 50
SIDE = 2 * np.pi
REFERENCE = 9.0, 0.0128  # time and size of the peak of dissipation


class Flow:
    """The equations on n^3 points; a velocity is a block (3, ...) of its spectrum."""

    def __init__(self, n: int):
        grid = pfftjax.ProcessGrid()
        self.plan, self.padded = (
            pfftjax.PencilFFT((m, m, m), grid, real=True, norm="forward")
            for m in (n, 3 * (n // 2))
        )
        self.step = 2.0 / n

    def tables(self):
        """Wavenumbers, their square, the modes that are kept, and each mode's part of a sum."""
        kx, ky, kz = self.plan.wavenumbers(SIDE, "float32")
        square = kx**2 + ky**2 + kz**2
        # A Nyquist frequency has no partner of the other sign, and so no derivative.
        nyquist = self.plan.shape[0] // 2
        keep = (abs(kx) < nyquist) & (abs(ky) < nyquist) & (abs(kz) < nyquist)
        return (kx, ky, kz), square, keep, self.plan.hermitian_weights("float32")

    def begin(self):
        """The spectrum of (sin x cos y cos z, -cos x sin y cos z, 0)."""
        n, pencil = self.plan.shape[0], self.plan.input
        x, y, z = (SIDE / n * pencil.indices(axis).astype("float32") for axis in range(3))
        u = jnp.sin(x) * jnp.cos(y) * jnp.cos(z)
        v = -jnp.cos(x) * jnp.sin(y) * jnp.cos(z)
        return self.plan.forward(jnp.stack([u, v, 0 * u]))

    def rate(self, u):
        """The projected u × ω."""
        (kx, ky, kz), square, keep, _ = self.tables()
        k = (kx, ky, kz)
        omega = 1j * jnp.stack(
            [ky * u[2] - kz * u[1], kz * u[0] - kx * u[2], kx * u[1] - ky * u[0]]
        )
        fields = pfftjax.padded_inverse(jnp.concatenate([u, omega]), self.plan, self.padded)
        product = jnp.cross(fields[:3], fields[3:], axis=0)
        force = pfftjax.truncated_forward(product, self.padded, self.plan)
        along = sum(q * f for q, f in zip(k, force, strict=True))
        along = along / jnp.where(square > 0, square, 1)
        return jnp.stack([keep * (f - q * along) for q, f in zip(k, force, strict=True)])

    def advance(self, u):
        """One step, with exp(-ν k² t) taken out."""
        dt = self.step
        half = jnp.exp(-VISCOSITY * self.tables()[1] * dt / 2)
        a = self.rate(u)
        b = self.rate(half * (u + dt / 2 * a))
        c = self.rate(half * u + dt / 2 * b)
        d = self.rate(half * (half * u + dt * c))
        return half**2 * u + dt / 6 * (half**2 * a + 2 * half * (b + c) + d)

    def measured(self, u):
        """(energy, dissipation): ⟨u²⟩ / 2 and ν⟨ω²⟩, which is ν⟨|∇u|²⟩."""
        _, square, _, weight = self.tables()
        density = weight * (jnp.abs(u) ** 2).sum(0)
        both = jnp.stack([0.5 * jnp.sum(density), VISCOSITY * jnp.sum(square * density)])
        return allreduce(both, comm=self.plan.grid.comm)

    def vorticity(self, u):
        """|ω| in real space."""
        omega = spectral.curl(u, self.plan, SIDE, from_spectrum=True)
        return jnp.sqrt(sum(x**2 for x in omega))


def main(size: int, out: Folder) -> list[Fact]:
    """Follow the vortex through the peak of its dissipation."""
    flow = Flow(size)
    end = END if size >= 64 else 2.0
    frames = FRAMES if size >= 64 else 4
    steps = round(end / frames / flow.step)
    flow.step = end / frames / steps

    def one(u, _):
        u = flow.advance(u)
        return u, flow.measured(u)

    u = jax.jit(flow.begin)()
    advance = jax.jit(lambda u: jax.lax.scan(one, u, length=steps), donate_argnums=0)
    look = jax.jit(flow.vorticity)
    series = [np.asarray(jax.jit(flow.measured)(u))[None]]
    maps = []
    for number in range(frames + 1):
        if out:
            maps.append(slab(look(u)[..., size // 8 :], flow.plan.input, 1))
        if number < frames:
            u, measured = advance(u)
            series.append(np.asarray(measured))
    energy, dissipation = np.concatenate(series).T.astype(float)
    times = np.linspace(0, end, len(energy))
    lost, peak = energy[0] - energy[-1], dissipation.argmax()
    balance = np.trapezoid(dissipation, times) / lost - 1
    facts = [Fact("dissipation over time and energy lost, less 1", float(balance), 2e-3)]
    if size >= 96:
        high, late = dissipation[peak] / REFERENCE[1] - 1, times[peak] - REFERENCE[0]
        facts += [
            Fact("peak of the dissipation over that on 512³ points, less 1", float(high), 0.1),
            Fact("time of the peak, less 9", float(late), 0.3),
        ]
    if out and FIRST:
        draw(maps, times, energy, dissipation, out)
    return facts


def draw(maps, times, energy, dissipation, out):
    """A movie of the vorticity, and a picture of four of its frames."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.6, 4.2), layout="constrained", width_ratios=(1.1, 1)
    )
    options = {"cmap": "inferno", "vmin": 0, "vmax": 10, "extent": (0, SIDE, 0, SIDE)}
    options |= {"origin": "lower", "interpolation": "bicubic"}
    shown = left.imshow(maps[0].T, **options)
    figure.colorbar(shown, ax=left, label="vorticity |ω|")
    left.set(xlabel="$x$", ylabel="$y$")
    title = left.set_title("Taylor-Green vortex")
    right.plot(times, dissipation, color="C3", lw=1.5, label="dissipation ν⟨ω²⟩")
    lost = -np.gradient(energy, times)
    right.plot(times[::8], lost[::8], ".", color="k", ms=4, label="loss of energy −dE/dt")
    right.plot(*REFERENCE, "*", color="C0", ms=13, label="peak on 512³ points")
    now = right.axvline(0, color="0.6", lw=1)
    right.set(xlabel="time", ylabel="rate", xlim=(0, times[-1]), ylim=(0, None))
    right.legend(fontsize=9, loc="upper left")
    frames = []
    for image, time in zip(maps, np.linspace(0, times[-1], len(maps)), strict=True):
        shown.set_data(image.T)
        title.set_text(f"Taylor-Green vortex, $z$ = π/4, $t$ = {time:.1f}")
        now.set_xdata([time, time])
        frames.append(frame(figure))
    save_movie(frames, out / "turbulence.webp")
    plt.close(figure)

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.7), layout="constrained", sharey=True)
    for ax, part in zip(axes, (0.0, 0.4, 0.7, 0.9), strict=True):
        which = round(part * (len(maps) - 1))
        shown = ax.imshow(maps[which].T, **options)
        ax.set(xlabel="$x$", title=f"$t$ = {part * times[-1]:.0f}")
    axes[0].set(ylabel="$y$")
    figure.colorbar(shown, ax=axes, label="vorticity |ω|")
    save(figure, out / "turbulence.jpg")


if __name__ == "__main__":
    start(main, 96)
