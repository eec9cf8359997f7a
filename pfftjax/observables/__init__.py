"""What telescopes see: of particles and fields, what surveys measure.

Distributed, and the same on any number of ranks; all but groups of particles are differentiable.
Units are those of `pfftjax.pm`. Maps of the sky are HEALPix's (Gorski et al. 2005), in the order
of rings, which is healpy's.
"""

from ._bispectrum import Bispectrum as Bispectrum
from ._bispectrum import bispectrum as bispectrum
from ._friends import GroupCatalogue as GroupCatalogue
from ._friends import friends_of_friends as friends_of_friends
from ._healpix import directions as directions
from ._healpix import interpolation_weights as interpolation_weights
from ._healpix import pixels_of as pixels_of
from ._lensing import convergence as convergence
from ._light_cone import LightCone as LightCone
from ._light_cone import Shells as Shells
from ._redshift_space import redshift_space as redshift_space
from ._spectra import CrossSpectrum as CrossSpectrum
from ._spectra import PowerMultipoles as PowerMultipoles
from ._spectra import PowerWedges as PowerWedges
from ._spectra import cross_spectrum as cross_spectrum
from ._spectra import power_multipoles as power_multipoles
from ._spectra import power_wedges as power_wedges
