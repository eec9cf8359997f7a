"""What the operating system says of the node that this process runs on; None where it does not."""

import importlib.metadata
import importlib.util
import os
import pathlib
import pkgutil

import jax


def read(path: str | pathlib.Path) -> str | None:
    """The text of a file of the system."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def cores() -> tuple[int, ...]:
    """The cores that this process may use, by the numbers of the system: the only answer."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def ranges(numbers: tuple[int, ...]) -> str:
    """Increasing numbers as a short text.

    >>> ranges((0, 1, 2, 3, 8, 10, 11))
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def huge_pages() -> str | None:
    """The kernel's setting of transparent huge pages: always, madvise or never."""
    text = read("/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None or "[" not in text:
        return None
    return text.split("[")[1].split("]")[0]


def ptrace_scope() -> int | None:
    """Which processes may read each other's memory, from 0 (all of a user) to 3 (none)."""
    text = read("/proc/sys/kernel/yama/ptrace_scope")
    return int(text) if text is not None and text.isdigit() else None


def has_xpmem() -> bool:
    """Whether processes can map each other's memory by XPMEM."""
    return os.path.exists("/dev/xpmem")


def xla_threads() -> int | None:
    """Threads in XLA's pool for computing on CPUs; None before JAX has started it."""
    names = [read(task / "comm") for task in pathlib.Path("/proc/self/task").glob("*")]
    return sum(name == "tf_XLAEigen" for name in names) or None


def jax_plugins() -> list[str]:
    """The names of what JAX is installed with, besides CPUs."""
    names = [entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")]
    found = importlib.util.find_spec("jax_plugins")
    if found is not None and found.submodule_search_locations:
        names += [module.name for module in pkgutil.iter_modules(found.submodule_search_locations)]
    return names


def _platforms() -> str | None:
    return jax.config.values["jax_platforms"]


def gpus(ask: bool) -> tuple[str, ...] | None:
    """The GPUs that JAX has; None where only starting its backends would tell, and not `ask`."""
    if not jax_plugins() or _platforms() == "cpu":
        return ()
    if not ask:
        return None
    try:
        return tuple(str(device) for device in jax.local_devices(backend="gpu"))
    except RuntimeError:
        return ()
