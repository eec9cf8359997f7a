"""What `pfftjax.fft` has for the folders above it, beside what is public."""

from ._fused import Fused as Fused
from ._fused import What as What
from ._local import Kind as Kind
from ._local import fft_of_lines as fft_of_lines
from ._local import times_i as times_i
from ._plan import between_two_transforms as between_two_transforms
from ._plan import is_length as is_length
from ._plan import run as run
from ._plan import sides_of as sides_of
