"""Sampling over ranks: all of them draw one chain, whose positions have blocks of fields as parts.

Samplers take inner products and norms of whole positions, draw momenta, and decide. On several
ranks each of these must be that of all ranks together, or they go different ways. `Space` knows
how. `metric` tells HMC and NUTS of BlackJAX (``pip install pfftjax[sampling]``) of it; BlackJAX's
microcanonical sampler cannot be told, and so `mclmc` is one of our own.
"""

from ._blackjax import metric as metric
from ._mclmc import MCLMC as MCLMC
from ._mclmc import MCLMCInfo as MCLMCInfo
from ._mclmc import MCLMCState as MCLMCState
from ._mclmc import mclmc as mclmc
from ._mclmc import tune_mclmc as tune_mclmc
from ._space import Space as Space
