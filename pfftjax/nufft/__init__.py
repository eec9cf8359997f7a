"""Non-uniform Fourier transforms: between points on any rank and the modes of a periodic box."""

from ._plan import PencilNUFFT as PencilNUFFT
from ._points import Points as Points
