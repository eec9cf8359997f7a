"""What `pfftjax.pm` has for the folders above it, beside what is public."""

from ._capacity import default_capacity as default_capacity
from ._distances import HUBBLE_DISTANCE as HUBBLE_DISTANCE
from ._growth import Cosmology as Cosmology
from ._particles import check_fits as check_fits
from ._particles import to_owners_with_room as to_owners_with_room
from ._passages import Passage as Passage
