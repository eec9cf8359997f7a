"""Operators on distributed fields that are multiplications in Fourier space.

Each takes this rank's block of a field, a plan and, where lengths matter, the side of the box; and
each can start from a spectrum (`from_spectrum=True`) or end in one (`to_spectrum=True`), so that a
chain of them transforms once each way. Vectors are arrays, one for each axis. Plans may have two
axes or three, be real or complex, and have any norm, layout and grid: first derivatives need axes
that are all periodic, multiplications work between walls, too.
"""

from ._derivatives import curl as curl
from ._derivatives import divergence as divergence
from ._derivatives import gradient as gradient
from ._multipliers import apply as apply
from ._multipliers import deconvolve as deconvolve
from ._multipliers import gaussian_smoothing as gaussian_smoothing
from ._multipliers import inverse_laplacian as inverse_laplacian
from ._multipliers import laplacian as laplacian
from ._multipliers import top_hat_smoothing as top_hat_smoothing
