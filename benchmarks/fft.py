"""Our transform: mpirun -n 2 python -m benchmarks.fft 256:complex64 [--grid 2x1]"""

import argparse

import jax

from benchmarks.protocol import Transform, run


def make(n, dtype, dims):
    jax.config.update("jax_enable_x64", dtype in ("float64", "complex128"))
    import jax.numpy as jnp
    import numpy as np

    import pfftjax

    plan = pfftjax.PencilFFT((n, n, n), pfftjax.ProcessGrid(dims), real=dtype.startswith("f"))
    forward, inverse = jax.jit(plan.forward), jax.jit(plan.inverse)
    return Transform(
        forward=lambda x: forward(x).block_until_ready(),
        inverse=lambda y: inverse(y).block_until_ready(),
        block=lambda whole: jnp.array(plan.input.local_block(whole)),
        local=np.asarray,
        spectrum_block=plan.output.local_block,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", help="size:dtype")
    parser.add_argument("--grid", help="rows x columns, as 2x1; slabs by default")
    arguments = parser.parse_args()
    dims = tuple(int(d) for d in arguments.grid.split("x")) if arguments.grid else (None, 1)
    name = f"pfftjax {arguments.grid}" if arguments.grid else "pfftjax"
    run(name, lambda n, dtype: make(n, dtype, dims), arguments.cases)


if __name__ == "__main__":
    main()
