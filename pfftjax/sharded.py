"""pfftjax on global arrays: each a `jax.Array` sharded over the devices of all ranks.

In jitted code and outside, by the sharding that the arrays have. `jax.grad`, `jax.jvp` and
`jax.vmap` are JAX's own, and derivatives are global. Sizes have to divide by the grid, as in all
of JAX's sharding. A program starts `jax.distributed` with one device a rank, as in
docs/sharding.md.

Beside them, `pfftjax.fft3d` and the rest take each rank's own block, of any size, and work under
`jax.shard_map`; given a global array, the transforms call these.
"""

from .fft.sharded import fft3d as fft3d
from .fft.sharded import halo_exchange as halo_exchange
from .fft.sharded import halo_reduce as halo_reduce
from .fft.sharded import ifft3d as ifft3d
from .fft.sharded import irfft3d as irfft3d
from .fft.sharded import rfft3d as rfft3d
from .fft.sharded import wavenumbers as wavenumbers
from .pm.sharded import Lattice as Lattice
from .pm.sharded import density_contrast as density_contrast
from .pm.sharded import force as force
from .pm.sharded import gravity as gravity
from .pm.sharded import linear_field as linear_field
from .pm.sharded import lpt as lpt
from .pm.sharded import paint as paint
from .pm.sharded import power_spectrum as power_spectrum
from .pm.sharded import readout as readout
from .pm.sharded import simulate as simulate
from .spectral.sharded import apply as apply
from .spectral.sharded import curl as curl
from .spectral.sharded import deconvolve as deconvolve
from .spectral.sharded import divergence as divergence
from .spectral.sharded import gaussian_smoothing as gaussian_smoothing
from .spectral.sharded import gradient as gradient
from .spectral.sharded import inverse_laplacian as inverse_laplacian
from .spectral.sharded import laplacian as laplacian
from .spectral.sharded import top_hat_smoothing as top_hat_smoothing
