"""What `validate.py` measures against: theory that is computed without pfftjax."""

import numpy as np
import scipy.integrate


def followed(steps, start, omega_m):
    """The growing mode to second order through the steps: [D1, D2] and their momenta at the end.

    The force on a particle displaced by D1 psi1 + D2 psi2 is 3/2 Omega_m (D1 psi1 + (D2 - D1^2)
    psi2).
    """
    x = np.array([start.d1, start.d2], float)
    p = float(start.scale_factor**2 * start.e) * np.array([start.d1_rate, start.d2_rate], float)
    if steps.first_drift is not None:
        x = x + float(steps.first_drift) * p
    for i, (kick, drift) in enumerate(zip(steps.kick, steps.drift, strict=True)):
        factor = 1 if steps.momentum is None else steps.momentum[i]
        pull = 1.5 * omega_m * np.array([x[0], x[1] - x[0] ** 2])
        p = float(factor) * p + float(kick) * pull
        x = x + float(drift) * p
    return x, p


def one_loop(k, table, least, most):
    """P13 / 2 P, by which the density today correlates less with the linear one.

    After Jain & Bertschinger (1994); the loop goes over wavenumbers from `least` to `most`. On
    large scales it is -61/210 k^2 s^2, s the displacement in one direction.
    """
    q = np.geomspace(least, most, 4000)
    r = q / k
    power = np.exp(np.interp(np.log(q), np.log(table.k), np.log(table.linear)))
    logarithm = np.log(np.abs((1 + r) / (1 - r)))
    kernel = 12 / r**2 - 158 + 100 * r**2 - 42 * r**4
    kernel += 3 / r**3 * (r**2 - 1) ** 3 * (7 * r**2 + 2) * logarithm
    return k**3 / (2016 * np.pi**2) * scipy.integrate.trapezoid(power * kernel, r)
