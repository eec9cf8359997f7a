"""What `pfftjax.autodiff` has for the folders above it, beside what is public."""

from ._by_hand import differentiated_by_hand as differentiated_by_hand
