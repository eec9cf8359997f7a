"""Arrays distributed over a process grid: who owns what, and how it changes hands.

A `ProcessGrid` arranges the ranks, a `Pencil` says which block of a global array a rank holds and
in which memory order, `transpose` goes from one pencil to another, and `halo_exchange` and
`halo_reduce` pad blocks with their neighbours' cells and add such cells to their owners.
"""

from ._halo import halo_exchange as halo_exchange
from ._halo import halo_reduce as halo_reduce
from ._method import ExchangeMethod as ExchangeMethod
from ._method import ExchangePrecision as ExchangePrecision
from ._pencil import Pencil as Pencil
from ._process_grid import ProcessGrid as ProcessGrid
from ._sums import norm as norm
from ._sums import vdot as vdot
from ._transpose import transpose as transpose
