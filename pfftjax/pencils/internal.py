"""Names of `pfftjax.pencils` for the folders above it, beside the public ones."""

from ._coordinate import coordinate as coordinate
from ._halo import Periodic as Periodic
from ._halo import Width as Width
from ._known import is_block as is_block
from ._known import is_distributed as is_distributed
from ._known import note_block as note_block
from ._known import note_type as note_type
from ._method import checked_method as checked_method
from ._method import checked_precision as checked_precision
from ._method import different_methods as different_methods
from ._method import refuse_on_cpus as refuse_on_cpus
from ._method import refuse_on_gpus as refuse_on_gpus
from ._overlap import overlapped as overlapped
from ._pencil import block as block
from ._pencil import change_of as change_of
from ._pencil import checked_pencil as checked_pencil
from ._process_grid import checked_grid as checked_grid
from ._transpose import Redistribution as Redistribution
from ._transpose import check_dimensions as check_dimensions
from ._transpose import transpose_p as transpose_p
