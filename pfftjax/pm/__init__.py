"""Particle-mesh simulations: distributed, differentiable, the same on any number of ranks.

Lengths are in Mpc/h, H0 = 1, and momenta are a^2 dx/dt. Cosmologies are those of jax-cosmo
(``pip install pfftjax[pm]``).
"""

from ._distances import comoving_distance as comoving_distance
from ._distances import scale_factor_at as scale_factor_at
from ._exchange import Route as Route
from ._field import eisenstein_hu as eisenstein_hu
from ._field import linear_field as linear_field
from ._field import tabulated as tabulated
from ._from_coordinates import particles_at as particles_at
from ._gravity import gravity as gravity
from ._growth import Growth as Growth
from ._growth import growth as growth
from ._growth import hubble as hubble
from ._integrators import Outputs as Outputs
from ._integrators import Paths as Paths
from ._integrators import Steps as Steps
from ._integrators import bullfrog as bullfrog
from ._integrators import cola as cola
from ._integrators import fastpm as fastpm
from ._integrators import leapfrog as leapfrog
from ._interlacing import paint_interlaced as paint_interlaced
from ._lpt import lpt as lpt
from ._noise import fixed_amplitudes as fixed_amplitudes
from ._noise import nested_noise as nested_noise
from ._noise import white_noise as white_noise
from ._painting import paint as paint
from ._painting import readout as readout
from ._particles import Particles as Particles
from ._particles import to_owners as to_owners
from ._positions import Positions as Positions
from ._power_spectrum import PowerSpectrum as PowerSpectrum
from ._power_spectrum import power_spectrum as power_spectrum
from ._primordial import local_non_gaussianity as local_non_gaussianity
from ._simulate import density_contrast as density_contrast
from ._simulate import force as force
from ._simulate import simulate as simulate
from ._simulate import step as step
from ._simulation import Simulation as Simulation
