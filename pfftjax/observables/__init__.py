"""What telescopes see: of particles and fields, what surveys measure.

Distributed and differentiable, with the same results on any number of ranks. Units are those of
`pfftjax.pm`.
"""

from ._bispectrum import Bispectrum as Bispectrum
from ._bispectrum import bispectrum as bispectrum
from ._redshift_space import redshift_space as redshift_space
from ._spectra import CrossSpectrum as CrossSpectrum
from ._spectra import PowerMultipoles as PowerMultipoles
from ._spectra import PowerWedges as PowerWedges
from ._spectra import cross_spectrum as cross_spectrum
from ._spectra import power_multipoles as power_multipoles
from ._spectra import power_wedges as power_wedges
"""What telescopes see of a simulation: groups of particles."""

from ._friends import GroupCatalogue as GroupCatalogue
from ._friends import friends_of_friends as friends_of_friends
