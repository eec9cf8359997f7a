"""Loads the C++ core and the backend that fits the MPI that mpi4py runs on.

The only module that imports the extension.
"""

import ctypes
import os
import pathlib

import jax
from mpi4py import MPI  # before the extension: it brings libmpi into the process

from . import _native as native
from . import launcher
from .options import options


def implementation_of(text: str) -> str | None:
    """The kind of MPI that a library or a launcher names: openmpi, or mpich for all its kin.

    For advice only: it decides which launcher and which variables apply. What a handle is may be
    another matter, as either may be used through the standard ABI.
    """
    if "Open MPI" in text:
        return "openmpi"
    if any(name in text for name in ("MPICH", "HYDRA", "Intel(R) MPI", "MVAPICH")):
        return "mpich"
    return None


# MPI_COMM_WORLD in MPICH's ABI, an int, and in the standard ABI of MPI 5, an invalid pointer.
_WORLD_OF_MPICH = 0x44000000
_WORLD_OF_THE_STANDARD = 0x101


def _family() -> str | None:
    """The family of the MPI below mpi4py, by what its handles are; None for an unknown one."""
    is_pointer = MPI._sizeof(MPI.COMM_WORLD) == ctypes.sizeof(ctypes.c_void_p)
    world = MPI._handleof(MPI.COMM_WORLD)
    if not is_pointer:
        return "mpich" if world == _WORLD_OF_MPICH else None
    # Open MPI's is the address of an object.
    return "abi" if world == _WORLD_OF_THE_STANDARD else "openmpi"


_ABIS = {
    "openmpi": "Open MPI's ABI",
    "mpich": "MPICH's ABI",
    "abi": "the standard ABI of MPI 5",
    None: "an unknown ABI",
}


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
            "MPI4PY_RC_THREAD_LEVEL, or call MPI.Init_thread(MPI.THREAD_MULTIPLE); with Cray "
            "MPICH also set MPICH_MAX_THREAD_SAFETY=multiple; if that does not help, this MPI "
            "was built without thread support"
        )
    version = MPI.Get_library_version().split("\x00")[0].strip().splitlines()[0]
    family = _family()
    folder = pathlib.Path(native.__file__).parent
    built = {path.name.split(".")[0][len("_mpi_") :]: path for path in folder.glob("_mpi_*.so")}
    if family is None or family not in built:
        compiler = "mpicc_abi" if family == "abi" else "mpicc"
        raise ImportError(
            f"mpi4py runs on {version!r} through {_ABIS[family]}, but this pfftjax was built for "
            f"{' and '.join(_ABIS.get(name, name) for name in sorted(built)) or 'no MPI'}: "
            f"install mpi4py for the same MPI, or build pfftjax with the {compiler} of that MPI "
            "on PATH: pip install --force-reinstall --no-binary=pfftjax pfftjax"
        )
    native.share_mpi(MPI.__file__)
    native.load_mpi(str(built[family]))
    native.choose_simd(options.simd)
    if options.keep_bytes:
        native.keep_freed_memory(options.keep_bytes)
    native.configure(
        max_chunk_bytes=options.max_chunk_bytes,
        check=options.check,
        debug=options.debug,
        timeout=options.timeout,
        first_call=options.first_call,
        shared_memory=options.shared_memory,
        local_ranks=launcher.here.local_ranks or 0,
        profile=options.profile,
        deterministic=options.deterministic,
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
    for platform, name in (("CUDA", "_cuda.so"), ("ROCM", "_hip.so")):
        module = pathlib.Path(native.__file__).parent / name
        if not module.exists():
            continue
        try:
            native.load_device(str(module))
        except RuntimeError as error:
            raise ImportError(
                f"pfftjax was built for {platform}, but that part cannot be loaded: {error}; "
                f"build it again on this machine, or without {platform}"
            ) from error
        found.add(_register(platform, native.device_registrations()))
        break  # handlers know one runtime
    return frozenset(found)


# Tests set this: arrays on CPUs then take the way of those on GPUs (tools/fake_device).
is_fake_device = bool(os.environ.get("PFFTJAX_FAKE_DEVICE"))
family, library_version = _load()
# XLA's names of the platforms whose arrays can be communicated.
platforms = _register_all()
