"""Derivatives of functions that all ranks compute together.

They have the signatures of JAX's own, and `shared`, which names the arguments that are the same on
every rank: each rank then gets the whole derivative with respect to these, and that of its own
block for the others.
"""

from ._gradients import grad as grad
from ._gradients import hessian as hessian
from ._gradients import jacfwd as jacfwd
from ._gradients import jacrev as jacrev
from ._gradients import value_and_grad as value_and_grad
from ._linear import jvp as jvp
from ._linear import linearize as linearize
from ._linear import vjp as vjp
from ._ownership import UndeclaredArgumentWarning as UndeclaredArgumentWarning
