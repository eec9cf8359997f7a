"""Loads the C++ core and the backend that fits the MPI that mpi4py runs on.

The only module that imports the extension.
"""

import pathlib

import jax
from mpi4py import MPI  # before the extension: it brings libmpi into the process

from . import _native as native
from ._options import options


def _family(library_version: str) -> str | None:
    """The MPI family by MPI_Get_library_version: those of one family share an ABI."""
    if "Open MPI" in library_version:
        return "openmpi"
    if any(name in library_version for name in ("MPICH", "Intel(R) MPI", "MVAPICH")):
        return "mpich"
    return None


def _load() -> None:
    if not MPI.Is_initialized():
        raise ImportError(
            "pfftjax needs MPI to be initialised: call mpi4py.MPI.Init_thread() before importing "
            "pfftjax, or leave mpi4py.rc.initialize at True"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise ImportError(
            "pfftjax needs the thread level MPI_THREAD_MULTIPLE, because XLA calls MPI from its "
            "own threads: leave mpi4py.rc.thread_level at 'multiple', unset "
            "MPI4PY_RC_THREAD_LEVEL, or call MPI.Init_thread(MPI.THREAD_MULTIPLE); if that does "
            "not help, this MPI was built without thread support"
        )
    version = MPI.Get_library_version().split("\x00")[0].strip().splitlines()[0]
    family = _family(version)
    folder = pathlib.Path(native.__file__).parent
    built = {path.name.split(".")[0][len("_mpi_") :]: path for path in folder.glob("_mpi_*.so")}
    if family not in built:
        raise ImportError(
            f"mpi4py runs on {version!r}, but this pfftjax was built for "
            f"{' and '.join(sorted(built)) or 'no MPI'}: install mpi4py for the same MPI, or "
            "build pfftjax with the mpicc of that MPI on PATH: "
            "pip install --force-reinstall --no-binary=pfftjax pfftjax"
        )
    native.load_mpi(str(built[family]))
    native.choose_simd(options.simd)
    native.configure(
        max_chunk_bytes=options.max_chunk_bytes,
        check=options.check,
        debug=options.debug,
        timeout=options.timeout,
        first_call=options.first_call,
        shared_memory=options.shared_memory,
    )
    for name, handler in native.registrations().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


_load()
