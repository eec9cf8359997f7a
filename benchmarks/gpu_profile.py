"""Transforms, a step and a gradient through two steps once, for a profiler: ncu --profile-from-start off ... python -m
benchmarks.gpu_profile [--small] [--n 256]

Only what is between cuProfilerStart and cuProfilerStop is profiled: each program once, after runs
that warm up.
"""

import argparse
import ctypes

import jax

jax.config.update("jax_enable_x64", False)

import pfftjax  # noqa: E402
from benchmarks.gpu import block, particles_and_step, simulated  # noqa: E402


def profiled(driver, name, program, operand, *, chained=True):
    """`program(operand)` in the profile, and its result."""
    for _ in range(2):
        result = jax.block_until_ready(program(operand))
        operand = result if chained else operand
    print(name, flush=True)
    if driver is not None:
        driver.cuProfilerStart()
    jax.block_until_ready(program(operand))
    if driver is not None:
        driver.cuProfilerStop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--n", type=int, default=256)
    arguments = parser.parse_args()
    n = 16 if arguments.small else arguments.n
    driver = ctypes.CDLL("libcuda.so.1") if jax.default_backend() == "gpu" else None
    for real in (False, True):
        plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid((None, 1)), real=real)
        x = block(plan).real if real else block(plan)

        def there_and_back(x, plan=plan):
            return plan.inverse(plan.forward(x))

        profiled(driver, f"forward and inverse, real={real}", jax.jit(there_and_back), x)
    particles, step = particles_and_step(n)
    profiled(driver, "step", step, particles)
    particles, _, backward = simulated(n, 2)

    def slope(offset):
        return backward(offset, particles)[1]

    profiled(driver, "value and gradient of two steps", slope, particles.offset, chained=False)


if __name__ == "__main__":
    main()
