"""Names of `pfftjax.fft` for the folders above it, beside the public ones."""

from ._local import Kind as Kind
from ._local import as_complex as as_complex
from ._local import fft_of_lines as fft_of_lines
from ._local import times_i as times_i
from ._operation import What as What
from ._padding import check_series as check_series
from ._plan import Plan as Plan
from ._plan import is_length as is_length
from ._plan import operand as operand
from ._plan import sides_of as sides_of
from ._plan import wavenumbers_along as wavenumbers_along
from ._plan import wavenumbers_of as wavenumbers_of
from ._shards import Shards as Shards
from ._shards import known as known
from ._shards import rows_of as rows_of
from ._shards import shards_of as shards_of
from ._sizes import smooth_size as smooth_size
from ._steps import differentiating as differentiating
from ._steps import forward_steps as forward_steps
from ._steps import inverse_steps as inverse_steps
from ._steps import run as run
from ._steps import stages as stages
