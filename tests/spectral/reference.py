"""Operators by numpy, on whole arrays and whole spectra: nothing is shared with what is tested."""

import jax.numpy as jnp
import numpy as np

from pfftjax import PencilFFT
from tests.distributed import COMPLEX, Model, grids
from tests.helpers import SIZE, random

AXES = (-3, -2, -1)
SIDES = (3.0, 5.0, 7.0)
LAYOUTS = ("transposed", "natural")
NORMS = ("backward", "ortho", "forward")


def plans(*shapes):
    """Each shape on every grid, layouts and norms in turn; real and complex, on several ranks in
    turn as well: compiling is most of the work."""
    made = []
    for s, shape in enumerate(shapes):
        for g, grid in enumerate(grids()):
            for real in (False, True) if SIZE == 1 else ((s + g + SIZE) % 2 == 0,):
                i = len(made) + SIZE
                layout, norm = LAYOUTS[i // 2 % 2], NORMS[i % 3]
                made.append(PencilFFT(shape, grid, real=real, layout=layout, norm=norm))
    return made


def wavenumbers(plan, sides=SIDES, *, odd=False, half=False):
    """(kx, ky, kz) of the whole spectrum, or of a real plan's half; `odd`: without Nyquist."""
    result = []
    for axis, (n, side) in enumerate(zip(plan.shape, sides, strict=True)):
        index = np.fft.fftfreq(n, 1 / n)
        if half and plan.real and axis == 2:
            index = np.arange(n // 2 + 1)
        if odd:
            index = np.where(2 * np.abs(index) == n, 0, index)
        shape = [1, 1, 1]
        shape[axis] = -1
        result.append((2 * np.pi / side * index).reshape(shape))
    return result


def multiplied(plan, x, multiplier):
    """Return the field whose whole spectrum has been multiplied."""
    y = np.fft.ifftn(multiplier * np.fft.fftn(x, axes=AXES), axes=AXES)
    return y.real if plan.real else y


def partial(plan, x, axis):
    return multiplied(plan, x, 1j * wavenumbers(plan, odd=True)[axis])


def gradient(plan, x):
    return [partial(plan, x, axis) for axis in range(3)]


def divergence(plan, v):
    return sum(partial(plan, x, axis) for axis, x in enumerate(v))


def curl(plan, v):
    return [
        partial(plan, v[(a + 2) % 3], (a + 1) % 3) - partial(plan, v[(a + 1) % 3], (a + 2) % 3)
        for a in range(3)
    ]


def draw(plan, dtype, shape=(), seed=0):
    """(whole field, its whole spectrum with the factor of the plan)"""
    x = random((*shape, *plan.shape), dtype if plan.real else COMPLEX[dtype], seed)
    return x, Model(plan).forward(x).astype(COMPLEX[dtype])


def local(plan, x, y):
    """This rank's blocks of a field and of a spectrum."""
    return jnp.asarray(plan.input.local_block(x)), jnp.asarray(plan.output.local_block(y))
