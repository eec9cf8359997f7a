"""What `pfftjax.pm` has for the folders above it, beside what is public."""

from ._assignment import Assignment as Assignment
from ._assignment import Kernel as Kernel
from ._capacity import default_capacity as default_capacity
from ._distances import HUBBLE_DISTANCE as HUBBLE_DISTANCE
from ._exchange import located as located
from ._expected import as_known as as_known
from ._expected import expect as expect
from ._growth import Cosmology as Cosmology
from ._growth import are_positive as are_positive
from ._growth import check_cosmology as check_cosmology
from ._identity import cells_of as cells_of
from ._identity import identities_of as identities_of
from ._on_host import CRITICAL_DENSITY as CRITICAL_DENSITY
from ._on_host import OnHost as OnHost
from ._on_host import on_host as on_host
from ._painting import on as on
from ._painting import one_by_one as one_by_one
from ._particles import check_fits as check_fits
from ._particles import scaled_index as scaled_index
from ._particles import to_owners_with_room as to_owners_with_room
from ._passages import Passage as Passage
from ._positions import Places as Places
from ._positions import as_positions as as_positions
from ._shells import Shells as Shells
from ._shells import shells_of as shells_of
from ._spectral import real_plan as real_plan
