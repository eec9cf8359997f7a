"""Fourier transforms of arrays distributed over a process grid."""

from ._frequencies import wavenumbers as wavenumbers
from ._plan import PencilFFT as PencilFFT
from ._transforms import fft3d as fft3d
from ._transforms import ifft3d as ifft3d
from ._transforms import irfft3d as irfft3d
from ._transforms import rfft3d as rfft3d
