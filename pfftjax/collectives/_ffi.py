"""Loads the C++ core and the backend that fits the MPI that mpi4py runs on.

The only module that imports the extension.
"""

import os
import pathlib

import jax
from mpi4py import MPI  # before the extension: it brings libmpi into the process

from . import _native as native
from ._options import options


def family_of(text: str) -> str | None:
    """The MPI family that a library or a launcher names: those of one family share an ABI."""
    if "Open MPI" in text:
        return "openmpi"
    if any(name in text for name in ("MPICH", "HYDRA", "Intel(R) MPI", "MVAPICH")):
        return "mpich"
    return None


def _load() -> tuple[str, str]:
    """Load the backend and register the handlers; MPI's family, and its version in its words."""
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
    family = family_of(version)
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
        gpu_chunk_bytes=options.gpu_chunk_bytes,
    )
    return family, version


def _register(platform: str, handlers: dict[str, object]) -> str:
    for name, handler in handlers.items():
        jax.ffi.register_ffi_target(name, handler, platform=platform)
    return platform


def _register_all() -> frozenset[str]:
    """Register the handlers that this build has, whether or not there are devices here."""
    handlers = dict(native.registrations())
    if is_fake_device:
        native.load_device(os.environ["PFFTJAX_FAKE_DEVICE"])
        handlers |= native.device_registrations()
        return frozenset({_register("cpu", handlers)})
    found = {_register("cpu", handlers)}
    cuda = pathlib.Path(native.__file__).parent / "_cuda.so"
    if cuda.exists():
        try:
            native.load_device(str(cuda))
        except RuntimeError as error:
            raise ImportError(
                f"pfftjax was built for CUDA, but that part cannot be loaded: {error}; build it "
                "again on this machine, or without CUDA"
            ) from error
        found.add(_register("CUDA", native.device_registrations()))
    return frozenset(found)


# For tests: arrays on CPUs take the way of those on GPUs (tests/fake_device).
is_fake_device = bool(os.environ.get("PFFTJAX_FAKE_DEVICE"))
family, library_version = _load()
# XLA's names of the platforms whose arrays can be communicated.
platforms = _register_all()
