"""The shallow-water model on one rank, in plain NumPy, to compare examples/shallow_water.py with.

Arrays have the shape (ny + 2, nx): row 0 and row ny + 1 lie in the walls. x closes on itself by
np.roll. Written from the equations in docs/shallow_water.md; it shares no code with the example.
"""

import numpy as np

GRAVITY, DEPTH = 9.81, 100.0
F0, BETA = 2e-4, 2e-11
D = 5e3
VISCOSITY = 1e-3 * F0 * D**2
DT = 0.125 * D / np.sqrt(GRAVITY * DEPTH)


def east(a):
    """The neighbour in the east of each cell."""
    return np.roll(a, -1, axis=1)


def west(a):
    return np.roll(a, 1, axis=1)


def north(a):
    """The neighbour in the north; the northernmost row has none."""
    return np.concatenate([a[1:], np.zeros_like(a[:1])])


def south(a):
    return np.concatenate([np.zeros_like(a[:1]), a[:-1]])


def close(v):
    """No flow through the northern face of the southern wall and of the northernmost cells."""
    v[0] = v[-2] = v[-1] = 0.0
    return v


def initial(nx, ny):
    """(h, u, v), zero in the walls."""
    h, u, v = np.zeros((3, ny + 2, nx))
    width, length_x, length_y = 0.02 * nx * D, nx * D, (ny - 1) * D
    x = D * np.arange(nx)
    level = 0.0
    for j in range(ny):
        y = D * j
        speed = 10 * np.exp(-((y - length_y / 2) ** 2) / width**2)
        level -= D * (F0 + BETA * y) * speed / GRAVITY
        u[j + 1] = speed
        h[j + 1] = level
    h[1:-1] += DEPTH - h[1:-1, :1].mean()
    for j in range(ny):
        ripple = np.sin(10 * np.pi * x / length_x) * np.cos(8 * np.pi * D * j / length_y)
        h[j + 1] += 0.2 * ripple
    return h, u, v


def laplacian(u, v):
    """The Laplacian. The walls take no momentum from u; v vanishes in them."""
    stress = (north(u) - u) / D
    stress[0] = stress[-2] = stress[-1] = 0.0
    du = (east(u) - 2 * u + west(u)) / D**2 + (stress - south(stress)) / D
    dv = (east(v) + west(v) + north(v) + south(v) - 4 * v) / D**2
    return du, close(dv)


def diffuse(u, v, damping):
    """One step of friction, with the coefficient damping D^3 of the biharmonic operator."""
    du, dv = laplacian(u, v)
    ddu, ddv = laplacian(du, dv)
    biharmonic = damping * D**3
    return (
        u + DT * (VISCOSITY * du - biharmonic * ddu),
        close(v + DT * (VISCOSITY * dv - biharmonic * ddv)),
    )


def rates(h, u, v):
    """(dh/dt, du/dt, dv/dt)."""
    ny = h.shape[0] - 2
    f = (F0 + BETA * D * (np.arange(ny + 2.0) - 1))[:, None]
    flux_x = 0.5 * (h + east(h)) * u
    flux_y = 0.5 * (h + north(h)) * v
    dh = -(flux_x - west(flux_x) + flux_y - south(flux_y)) / D

    zeta = (east(v) - v) / D - (north(u) - u) / D
    with np.errstate(divide="ignore", invalid="ignore"):
        q = (f + zeta) / (0.25 * (h + east(h) + north(h) + east(north(h))))
    q[-1] = 0.0
    bernoulli = GRAVITY * h + 0.5 * (0.5 * (u**2 + west(u) ** 2) + 0.5 * (v**2 + south(v) ** 2))
    through_north = 0.5 * (flux_y + east(flux_y))
    through_east = 0.5 * (flux_x + north(flux_x))
    du = 0.5 * (q * through_north + south(q * through_north)) - (east(bernoulli) - bernoulli) / D
    dv = -0.5 * (q * through_east + west(q * through_east)) - (north(bernoulli) - bernoulli) / D
    dh[0] = dh[-1] = du[0] = du[-1] = 0.0
    return dh, du, close(dv)


def run(nx, ny, steps, damping):
    """(h, u, v) of the cells after so many steps, of shape (ny, nx)."""
    h, u, v = initial(nx, ny)
    old = None
    for _ in range(steps):
        u, v = diffuse(u, v, damping)
        new = rates(h, u, v)
        old = old or new
        h, u, v = (
            a + DT * (1.6 * n - 0.6 * o) for a, n, o in zip((h, u, v), new, old, strict=True)
        )
        old = new
    return tuple(a[1:-1] for a in (h, u, v))
