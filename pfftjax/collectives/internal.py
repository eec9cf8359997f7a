"""The parts of `pfftjax.collectives` that the folders above it use, and users do not."""

from ._alltoallv import MOST_ROWS as MOST_ROWS
from ._alltoallv import alltoallv_p as alltoallv_p
from ._alltoallv import exchange_counts_p as exchange_counts_p
from ._alltoallv import rows_axis as rows_axis
from ._copies import traced as traced
from ._copies import vjp_of_copies as vjp_of_copies
from ._same import Expected as Expected
from ._same import compare as compare
from ._same import same as same
