"""The arrays that pfftjax's functions take and return, by kind and dimensions.

A dimension `_n0` has any size; the name says what it stands for. `...` are dimensions that come
before these and over which a function maps. Tests check the annotations (PFFTJAX_TEST_TYPES in
tests/conftest.py); at run time nothing does.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Complex, Float, Inexact, Int, Num, Real, Shaped

# One rank's part of a global array over three dimensions, and over as many as a function says.
Block: TypeAlias = Inexact[Array, "... _n0 _n1 _n2"]
RealBlock: TypeAlias = Float[Array, "... _n0 _n1 _n2"]
ComplexBlock: TypeAlias = Complex[Array, "... _n0 _n1 _n2"]
# What MPI carries, and what it adds.
AnyArray: TypeAlias = Shaped[Array, "..."]
Numbers: TypeAlias = Num[Array, "..."]
# One number as an array, for each particle a vector, a number, whether it is there, and a name.
Scalar: TypeAlias = Inexact[Array, ""]
Vectors: TypeAlias = Float[Array, "_particles 3"]
Weights: TypeAlias = Float[Array, "_particles"]
Mask: TypeAlias = Bool[Array, "_particles"]
Names: TypeAlias = Int[Array, "_particles"]
# One integer, one for each rank or shell, and the mesh cell of each particle.
Count: TypeAlias = Int[Array, ""]
Counts: TypeAlias = Int[Array, "_n"]
Cells: TypeAlias = Int[Array, "_particles 3"]
# Real numbers of any shape, in a row, and whatever there is one of for each particle.
Reals: TypeAlias = Float[Array, "..."]
Series: TypeAlias = Float[Array, "_n"]
Rows: TypeAlias = Shaped[Array, "_particles ..."]

# What functions make such arrays of: arrays of JAX and of NumPy, and Python's numbers.
Number: TypeAlias = float | np.integer | np.floating | Real[Array, ""] | Real[np.ndarray, ""]
RealsLike: TypeAlias = Real[ArrayLike, "..."]
SeriesLike: TypeAlias = Real[ArrayLike, "_n"] | Sequence[Number]
RowsLike: TypeAlias = Shaped[ArrayLike, "_particles ..."]
VectorsLike: TypeAlias = Float[ArrayLike, "_particles 3"]
RealBlockLike: TypeAlias = Real[ArrayLike, "... _n0 _n1 _n2"]
# The side of a periodic box: one number, or one for each axis.
BoxSize: TypeAlias = Number | SeriesLike
# What JAX, which has no type for them, hands to the rules of a primitive: arrays, constants of a
# program, and tangents that are known to be zero.
Operands: TypeAlias = Sequence[Any]
