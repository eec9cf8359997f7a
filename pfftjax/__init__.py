"""pfftjax: distributed FFTs and MPI collectives inside JAX.

Arrays distributed over a process grid of MPI ranks, their Fourier transforms and halos, and the
collectives below them: from inside jitted code, with exact derivatives of any order.

Grids and blocks
    ProcessGrid, Pencil, transpose, ExchangeMethod, ExchangePrecision, halo_exchange, halo_reduce,
    vdot, norm
Transforms
    PencilFFT, PencilTransform, Tuning; fft3d, ifft3d, rfft3d, irfft3d, fft2d, ifft2d, rfft2d,
    irfft2d, wavenumbers; pad_spectrum, truncate_spectrum, padded_inverse, truncated_forward,
    dealiased_product
Derivatives of programs on several ranks
    grad, value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian;
    UndeclaredArgumentWarning
Modules
    collectives (MPI's operations), pm (particle-mesh simulations), spectral (derivatives,
    filters, Poisson's equation), nufft (transforms of points that are on no mesh), observables
    (what telescopes see), sampling (posteriors), io (files), sharded (global arrays of
    jax.sharding); fft, pencils and autodiff have the above
This job
    info, Info, of diagnostics; in a shell, `pfftjax doctor`

`help(pfftjax.PencilFFT)` and the like say more.
"""

from importlib.metadata import version as _version

from pfftjax._runtime.job import join_job as _join_job

_join_job()  # before the rest: a rank that cannot import it ends the job

from pfftjax.diagnostics.info import Info as Info
from pfftjax.diagnostics.info import info as info

from . import autodiff as autodiff
from . import collectives as collectives
from . import fft as fft
from . import io as io
from . import nufft as nufft
from . import observables as observables
from . import pencils as pencils
from . import pm as pm
from . import sampling as sampling
from . import sharded as sharded
from . import spectral as spectral
from .autodiff import UndeclaredArgumentWarning as UndeclaredArgumentWarning
from .autodiff import grad as grad
from .autodiff import hessian as hessian
from .autodiff import jacfwd as jacfwd
from .autodiff import jacrev as jacrev
from .autodiff import jvp as jvp
from .autodiff import linearize as linearize
from .autodiff import value_and_grad as value_and_grad
from .autodiff import vjp as vjp
from .fft import PencilFFT as PencilFFT
from .fft import PencilTransform as PencilTransform
from .fft import Tuning as Tuning
from .fft import dealiased_product as dealiased_product
from .fft import fft2d as fft2d
from .fft import fft3d as fft3d
from .fft import ifft2d as ifft2d
from .fft import ifft3d as ifft3d
from .fft import irfft2d as irfft2d
from .fft import irfft3d as irfft3d
from .fft import pad_spectrum as pad_spectrum
from .fft import padded_inverse as padded_inverse
from .fft import rfft2d as rfft2d
from .fft import rfft3d as rfft3d
from .fft import truncate_spectrum as truncate_spectrum
from .fft import truncated_forward as truncated_forward
from .fft import wavenumbers as wavenumbers
from .pencils import ExchangeMethod as ExchangeMethod
from .pencils import ExchangePrecision as ExchangePrecision
from .pencils import Pencil as Pencil
from .pencils import ProcessGrid as ProcessGrid
from .pencils import halo_exchange as halo_exchange
from .pencils import halo_reduce as halo_reduce
from .pencils import norm as norm
from .pencils import transpose as transpose
from .pencils import vdot as vdot

__version__ = _version("pfftjax")
