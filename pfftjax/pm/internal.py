"""What `pfftjax.pm` has for the folders above it, beside what is public."""

from ._assignment import Kernel as Kernel
from ._capacity import default_capacity as default_capacity
from ._expected import as_known as as_known
from ._expected import expect as expect
from ._growth import Cosmology as Cosmology
from ._growth import are_positive as are_positive
from ._growth import check_cosmology as check_cosmology
from ._particles import check_fits as check_fits
from ._particles import to_owners_with_room as to_owners_with_room
from ._shells import Shells as Shells
from ._shells import shells_of as shells_of
from ._spectral import real_plan as real_plan
