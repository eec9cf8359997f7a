"""What statistics cost beside a force: mpirun -n 2 python -m benchmarks.observables 64 128

In float32, of N^3 particles on N^3 cells of 4 Mpc/h: the force on particles, that of a density on
the mesh, and what `pfftjax.observables` measures of a density.
"""

import argparse
import functools
import statistics

import jax

jax.config.update("jax_enable_x64", False)

import jax_cosmo  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.gpu import CELL, mesh, particles_at_start  # noqa: E402
from benchmarks.protocol import COMM, keep, milliseconds  # noqa: E402
from pfftjax import observables, pm  # noqa: E402

SHELLS = 10


def programs(n):
    """Each with its argument: (name, jitted function, of what)."""
    plan, box, cosmology = mesh(n), n * CELL, jax_cosmo.Planck15()
    particles = particles_at_start(plan)
    delta = jax.jit(lambda x: pm.density_contrast(x, plan))(particles)
    options = {"kernel": "cic"}
    equilateral = [(i, i, i) for i in range(SHELLS)]
    several = [(i, j, j) for i in range(SHELLS) for j in range(i, SHELLS)]
    of_particles = {
        "force": lambda x: pm.force(x, plan, box, cosmology),
        "redshift_space": lambda x: observables.redshift_space(x, plan, box, cosmology),
        "density_contrast": lambda x: pm.density_contrast(x, plan),
    }
    of_density = {
        "gravity": lambda x: pm.gravity(x, plan, box),
        "power_spectrum": lambda x: pm.power_spectrum(x, plan, box, **options),
        "power_multipoles": lambda x: observables.power_multipoles(x, plan, box, **options),
        "power_wedges": lambda x: observables.power_wedges(x, plan, box, **options),
        "cross_spectrum": lambda x: observables.cross_spectrum(x, x**2, plan, box, **options),
    }
    # Up to the highest wavenumbers of which equilateral triangles are resolved.
    wide = tuple(np.linspace(0.5, n / 3, SHELLS + 1) * (2 * np.pi / box))
    for name, triangles, edges in (
        (f"bispectrum_{SHELLS}_equilateral", equilateral, None),
        (f"bispectrum_{len(several)}_isosceles_of_{SHELLS}_shells", several, None),
        (f"bispectrum_{SHELLS}_equilateral_to_two_thirds_of_Nyquist", equilateral, wide),
    ):
        bispectrum = functools.partial(
            observables.bispectrum,
            plan=plan,
            box_size=box,
            triangles=triangles,
            edges=edges,
            **options,
        )
        counts = jax.jit(bispectrum)(delta).triangles
        of_density[name] = bispectrum
        of_density[f"{name}_with_counts"] = functools.partial(bispectrum, counts=counts)
    for functions, argument in ((of_particles, particles), (of_density, delta)):
        yield from ((name, jax.jit(f), argument) for name, f in functions.items())


def measured(n):
    """Milliseconds, the best and the median."""
    found = {}
    for name, function, argument in programs(n):
        times = milliseconds(lambda f=function, x=argument: f(x), 9)
        found[name] = {"ms": round(min(times), 2), "median_ms": round(statistics.median(times), 2)}
    return {"n": n, "ranks": COMM.size, "dtype": "float32", **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+")
    summary = [measured(n) for n in parser.parse_args().sizes]
    for found in summary if COMM.rank == 0 else []:
        print(f"{found['n']}^3, of a force:")
        for name, times in found.items():
            if isinstance(times, dict):
                print(
                    f"  {name:44} {times['ms']:9.2f} ms {times['ms'] / found['force']['ms']:7.2f}"
                )
    keep("observables", summary)


if __name__ == "__main__":
    main()
