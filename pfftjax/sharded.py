"""The transforms and halos on global arrays: each a `jax.Array` sharded over a multi-process mesh.

Beside them, `pfftjax.fft3d` and the rest take each rank's own block, and work under
`jax.shard_map`; given a global array outside of jitted code, they call these. Sizes have to divide
by the grid, as in all of JAX's sharding.
"""

from .fft.sharded import fft3d as fft3d
from .fft.sharded import halo_exchange as halo_exchange
from .fft.sharded import halo_reduce as halo_reduce
from .fft.sharded import ifft3d as ifft3d
from .fft.sharded import irfft3d as irfft3d
from .fft.sharded import rfft3d as rfft3d
from .fft.sharded import wavenumbers as wavenumbers
