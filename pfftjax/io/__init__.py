"""Distributed arrays and particles to and from HDF5 files, arrays to and from Zarr, and particles
to and from snapshots of other codes (Gadget, bigfile), never gathered on one rank.

Needs h5py: ``pip install pfftjax[io]``; for Zarr zarr: ``pip install pfftjax[zarr]``.
"""

from ._bigfile import load_bigfile as load_bigfile
from ._bigfile import save_bigfile as save_bigfile
from ._checkpoint import Checkpoint as Checkpoint
from ._fields import attributes as attributes
from ._fields import load as load
from ._fields import save as save
from ._gadget import load_gadget as load_gadget
from ._gadget import save_gadget as save_gadget
from ._particles import load_cosmology as load_cosmology
from ._particles import load_particles as load_particles
from ._particles import save_particles as save_particles
