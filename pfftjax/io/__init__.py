"""Distributed arrays and particles to and from HDF5 files, and arrays to and from Zarr, never
gathered on one rank.

Needs h5py: ``pip install pfftjax[io]``; for Zarr zarr: ``pip install pfftjax[zarr]``.
"""

from ._checkpoint import Checkpoint as Checkpoint
from ._fields import attributes as attributes
from ._fields import load as load
from ._fields import save as save
from ._particles import load_cosmology as load_cosmology
from ._particles import load_particles as load_particles
from ._particles import save_particles as save_particles
