"""What `pfftjax.pm` has for the folders above it, beside what is public."""

from ._capacity import default_capacity as default_capacity
from ._growth import Cosmology as Cosmology
from ._identity import cells_of as cells_of
from ._identity import identities_of as identities_of
from ._on_host import CRITICAL_DENSITY as CRITICAL_DENSITY
from ._on_host import OnHost as OnHost
from ._on_host import on_host as on_host
from ._particles import check_fits as check_fits
from ._particles import to_owners_with_room as to_owners_with_room
