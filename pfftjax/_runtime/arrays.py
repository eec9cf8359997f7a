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
# Blocks of fields and spectra over two axes or three, which plans transform.
Field: TypeAlias = Inexact[Array, "... _n0 _n1"]
RealField: TypeAlias = Float[Array, "... _n0 _n1"]
ComplexField: TypeAlias = Complex[Array, "... _n0 _n1"]
# Lines along the last axis, after any others, and positions of cells along an axis.
Lines: TypeAlias = Inexact[Array, "... _n"]
Indices: TypeAlias = Int[Array, "..."]
# MPI carries the former and adds the latter.
AnyArray: TypeAlias = Shaped[Array, "..."]
Numbers: TypeAlias = Num[Array, "..."]
# Real numbers of any shape, such as wavenumbers and weights, and in a row.
Reals: TypeAlias = Float[Array, "..."]
Series: TypeAlias = Float[Array, "_n"]
# One number, one integer, and one integer for each rank or shell.
Scalar: TypeAlias = Inexact[Array, ""]
Count: TypeAlias = Int[Array, ""]
Counts: TypeAlias = Int[Array, "_n"]
# Each particle has a vector, displacements of first and second order, a mesh cell, a name, and may
# be absent; rows are anything that there is one of for each particle. Particles of a lattice have
# their vectors in its order.
Vectors: TypeAlias = Float[Array, "_particles 3"]
LatticeVectors: TypeAlias = Float[Array, "_n0 _n1 _n2 3"]
Displacements: TypeAlias = Float[Array, "_particles 2 3"]
Cells: TypeAlias = Int[Array, "_particles 3"]
Mask: TypeAlias = Bool[Array, "_particles"]
Names: TypeAlias = Int[Array, "_particles"]
Rows: TypeAlias = Shaped[Array, "_particles ..."]

# Functions make such arrays of arrays of JAX and of NumPy, and of Python's numbers.
Number: TypeAlias = float | np.integer | np.floating | Real[Array, ""] | Real[np.ndarray, ""]
BlockLike: TypeAlias = Num[ArrayLike, "... _n0 _n1 _n2"]
RealBlockLike: TypeAlias = Real[ArrayLike, "... _n0 _n1 _n2"]
FieldLike: TypeAlias = Num[ArrayLike, "... _n0 _n1"]
RealsLike: TypeAlias = Real[ArrayLike, "..."]
SeriesLike: TypeAlias = Real[ArrayLike, "_n"] | Sequence[Number]
VectorsLike: TypeAlias = Float[ArrayLike, "_particles 3"]
RowsLike: TypeAlias = Shaped[ArrayLike, "_particles ..."]
# The side of a periodic box: one number, or one for each axis; each may be traced.
BoxSize: TypeAlias = Number | SeriesLike

# An array, or a container of such, of any depth: types cannot tell how the caller has built it.
PyTree: TypeAlias = Any
# Fields of pytrees that say so are part of a program: `dataclasses.field(metadata=STATIC)`.
STATIC = {"static": True}
