"""What telescopes see of a simulation: its light cone on the sky, and what lenses make of it.

Maps are HEALPix's (Gorski et al. 2005), in the order of rings, which is healpy's.
"""

from ._healpix import directions as directions
from ._healpix import interpolation_weights as interpolation_weights
from ._healpix import pixels_of as pixels_of
from ._lensing import convergence as convergence
from ._light_cone import LightCone as LightCone
from ._light_cone import Shells as Shells
