"""Names of `pfftjax.spectral` for the folders above it, beside the public ones."""

from ._multipliers import AssignmentKernel as AssignmentKernel
from ._multipliers import order_of as order_of
from ._multipliers import top_hat as top_hat
from ._operands import check_squares as check_squares
from ._operands import here as here
from ._operands import inverse_square as inverse_square
from ._operands import odd_wavenumbers as odd_wavenumbers
from ._operands import operand as operand
from ._operands import sides as sides
from .sharded import plan_of as plan_of
