"""Ranks that run one program compile it once: the first one does, and the others wait for it.

This is JAX's persistent cache of programs with a lock for each of them. Compiling is half of what
tests cost, on as many cores as there are ranks. A context of MLIR, of which JAX makes one for each
program in 3 ms, lasts for some programs as well. All this reaches into JAX, which has no names for
it: a newer JAX without these functions fails where `install` is called.
"""

import contextlib
import fcntl
import os
import pathlib
import threading

from jax._src import compilation_cache, compiler
from jax._src.interpreters import mlir

# A context keeps the constants of all its programs.
_PROGRAMS_A_CONTEXT = 100


class _Programs(compilation_cache.CacheInterface):
    """A folder of programs. Who asks for one that is not there holds its lock until it is."""

    def __init__(self, folder):
        self._path = pathlib.Path(folder)
        self._path.mkdir(parents=True, exist_ok=True)
        self._held = {}

    def get(self, key):
        file = self._path / key
        with contextlib.suppress(FileNotFoundError):
            return file.read_bytes()
        lock = os.open(f"{file}.lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            program = file.read_bytes()
        except FileNotFoundError:
            self._held[key] = lock
            return None
        os.close(lock)
        return program

    def put(self, key, value):
        file = self._path / key
        mine = self._path / f"{key}.{os.getpid()}"
        mine.write_bytes(value)
        mine.replace(file)

    def release(self, key):
        """Let another rank have a try. The system does so for a process that has ended."""
        lock = self._held.pop(key, None)
        if lock is not None:
            os.close(lock)


def install():
    """Make it the cache of this process. It has to be called before the first program is compiled.

    A folder is set by JAX_COMPILATION_CACHE_DIR; without one nothing is kept.
    """
    opened = []
    compiles = compiler._compile_and_write_cache

    def get_file_cache(folder):
        opened.append(_Programs(folder))
        return opened[-1], folder

    def compile_and_write_cache(*arguments):
        try:
            return compiles(*arguments)
        finally:  # also where nothing is kept, as for programs that call the host
            for programs in opened:
                programs.release(arguments[-1])

    compilation_cache.get_file_cache = get_file_cache
    compiler._compile_and_write_cache = compile_and_write_cache
    mlir.make_ir_context = _lasting_contexts(mlir.make_ir_context)


def _lasting_contexts(make):
    """In place of `make`: the same context for some calls, in each thread one of its own."""
    kept = threading.local()

    def context():
        if getattr(kept, "calls", _PROGRAMS_A_CONTEXT) == _PROGRAMS_A_CONTEXT:
            kept.context, kept.calls = make(), 0
        kept.calls += 1
        return kept.context

    return context
