"""What `pfftjax.pm` has for the folders above it, beside what is public."""

from ._particles import check_fits as check_fits
from ._particles import default_capacity as default_capacity
