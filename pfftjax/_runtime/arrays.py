"""The arrays that pfftjax's functions take and return, by kind and dimensions.

A dimension `_n0` has any size; the name says what it stands for. `...` are dimensions that come
before these and over which a function maps. Tests check the annotations (PFFTJAX_TEST_TYPES in
tests/conftest.py); at run time nothing does.
"""

from typing import Any, TypeAlias

from jax import Array
from jaxtyping import Bool, Complex, Float, Inexact, Int, Num, Shaped

# One rank's part of a global array over three dimensions, and over as many as a function says.
Block: TypeAlias = Inexact[Array, "... _n0 _n1 _n2"]
RealBlock: TypeAlias = Float[Array, "... _n0 _n1 _n2"]
ComplexBlock: TypeAlias = Complex[Array, "... _n0 _n1 _n2"]
# An array, or a container of such, of any depth: types cannot tell how the caller has built it.
PyTree: TypeAlias = Any
# MPI carries the former and adds the latter.
AnyArray: TypeAlias = Shaped[Array, "..."]
Numbers: TypeAlias = Num[Array, "..."]
# The first is one number as an array; each particle has a vector, a number, a name, and may be
# absent.
Scalar: TypeAlias = Inexact[Array, ""]
Vectors: TypeAlias = Float[Array, "_particles 3"]
Weights: TypeAlias = Float[Array, "_particles"]
Mask: TypeAlias = Bool[Array, "_particles"]
Names: TypeAlias = Int[Array, "_particles"]
