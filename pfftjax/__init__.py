"""pfftjax: MPI collectives and distributed FFTs inside JAX.

Operations on JAX arrays that exchange data between MPI ranks from inside jitted code, and that
keep `jit`, `grad`, `vmap`, `scan` and `checkpoint` working. See `pfftjax.collectives`.
"""

from importlib.metadata import version as _version

from . import collectives as collectives

__version__ = _version("pfftjax")
