"""Fourier, cosine and sine transforms of arrays distributed over a process grid."""

from ._description import Description as Description
from ._description import Stage as Stage
from ._grids import default_dims as default_dims
from ._padding import dealiased_product as dealiased_product
from ._padding import pad_spectrum as pad_spectrum
from ._padding import padded_inverse as padded_inverse
from ._padding import truncate_spectrum as truncate_spectrum
from ._padding import truncated_forward as truncated_forward
from ._pencil_fft import PencilFFT as PencilFFT
from ._pencil_fft import PencilTransform as PencilTransform
from ._timings import Timing as Timing
from ._timings import Timings as Timings
from ._timings import Tuning as Tuning
from ._transforms import fft2d as fft2d
from ._transforms import fft3d as fft3d
from ._transforms import ifft2d as ifft2d
from ._transforms import ifft3d as ifft3d
from ._transforms import irfft2d as irfft2d
from ._transforms import irfft3d as irfft3d
from ._transforms import rfft2d as rfft2d
from ._transforms import rfft3d as rfft3d
from ._transforms import wavenumbers as wavenumbers
from ._tuning import tune as tune
