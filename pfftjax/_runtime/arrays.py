"""The arrays that pfftjax's functions take and return, by kind and dimensions.

A dimension `_n0` has any size; the name says what it stands for. `...` are dimensions that come
before these and over which a function maps. Tests check the annotations (PFFTJAX_TEST_TYPES in
tests/conftest.py); at run time nothing does.
"""

from collections.abc import Sequence
from typing import TypeAlias

from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Complex, Float, Inexact, Int, Num, Shaped

# One rank's part of a global array over three dimensions, and over as many as a function says.
Block: TypeAlias = Inexact[Array, "... _n0 _n1 _n2"]
RealBlock: TypeAlias = Float[Array, "... _n0 _n1 _n2"]
ComplexBlock: TypeAlias = Complex[Array, "... _n0 _n1 _n2"]
# Values that stand for a block: NumPy's arrays, too, and integers.
BlockLike: TypeAlias = Num[ArrayLike, "... _n0 _n1 _n2"]
# The blocks of fields and spectra over two axes or three, which plans transform.
Field: TypeAlias = Inexact[Array, "... _n0 _n1"]
RealField: TypeAlias = Float[Array, "... _n0 _n1"]
ComplexField: TypeAlias = Complex[Array, "... _n0 _n1"]
FieldLike: TypeAlias = Num[ArrayLike, "... _n0 _n1"]
# Lines along the last axis, after any others.
Lines: TypeAlias = Inexact[Array, "... _n"]
# The side of a box, or one for each axis; each may be traced.
BoxSize: TypeAlias = ArrayLike | Sequence[ArrayLike]
# Real numbers that broadcast against a block, such as wavenumbers and weights.
Factors: TypeAlias = Float[Array, "..."]
FactorsLike: TypeAlias = Float[ArrayLike, "..."]
# What MPI carries, and what it adds.
AnyArray: TypeAlias = Shaped[Array, "..."]
Numbers: TypeAlias = Num[Array, "..."]
# Positions of cells along an axis.
Indices: TypeAlias = Int[Array, "..."]
# One number as an array, for each particle a vector, a number, whether it is there, and a name.
Scalar: TypeAlias = Inexact[Array, ""]
Vectors: TypeAlias = Float[Array, "_particles 3"]
Weights: TypeAlias = Float[Array, "_particles"]
Mask: TypeAlias = Bool[Array, "_particles"]
Names: TypeAlias = Int[Array, "_particles"]
