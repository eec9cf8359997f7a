"""What `pfftjax.fft` has for the folders above it, beside what is public."""

from ._gradient import fused_divergence as fused_divergence
from ._gradient import fused_gradient as fused_gradient
from ._gradient import times_i as times_i
from ._local import Kind as Kind
from ._local import fft_of_lines as fft_of_lines
from ._plan import between_two_transforms as between_two_transforms
from ._plan import is_length as is_length
from ._plan import run as run
from ._plan import sides_of as sides_of
