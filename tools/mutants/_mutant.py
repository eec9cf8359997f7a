"""What a mutant is, and where."""

import dataclasses

from tools import launcher
from tools.simulated_faults import FAULTS

PYTHON = launcher.ROOT / "pfftjax" / "collectives"
RUNTIME = launcher.ROOT / "pfftjax" / "_runtime"
PENCILS = launcher.ROOT / "pfftjax" / "pencils"
FFT = launcher.ROOT / "pfftjax" / "fft"
SPECTRAL = launcher.ROOT / "pfftjax" / "spectral"
PM = launcher.ROOT / "pfftjax" / "pm"
NUFFT = launcher.ROOT / "pfftjax" / "nufft"
OBSERVABLES = launcher.ROOT / "pfftjax" / "observables"
IO = launcher.ROOT / "pfftjax" / "io"
CXX = launcher.ROOT / "cpp"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`old` in `file` becomes `new`; then `test` must fail on `ranks` ranks (0: a job test)."""

    what: str
    file: object
    old: str
    new: str
    test: str
    ranks: int = 2


def of_core(what, test, ranks=2):
    """The fault of `tools.simulated_faults` with the name `what`, for a test to find."""
    (fault,) = (fault for fault in FAULTS if fault.what == what)
    return Mutant(what, CXX / fault.file, fault.old, fault.new, test, ranks)
