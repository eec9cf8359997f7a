"""The code that shares memory between ranks or threads, under ThreadSanitizer: tests/cpp/."""

import os
import shutil
import subprocess

import pytest

from tools.launcher import ROOT

pytestmark = pytest.mark.timeout(240)
CORE = (
    "base/memory_in_use",
    "base/pages",
    *(f"runtime/{name}" for name in "node background shared_memory window".split()),
)
WATCH = (
    "abort agreement call call_sites communicator crossing deadlock departure gathering inquiry "
    "profile terminate watch"
).split()
# How each is built, its argument, and what it says when all went well.
PROGRAMS = {
    "threads": (
        (*CORE, "collectives/node_exchange"),
        "-Wl,--wrap=mmap,--wrap=munmap",
        "100",
        "all data right",
    ),
    "watch_threads": (
        (*CORE, *(f"runtime/{name}" for name in WATCH)),
        "-rdynamic",
        "3",
        "all right",
    ),
    "deadlock": (("runtime/deadlock",), "-O1", "1", "all right"),
    "tasks": ((), "-rdynamic", "1", "all right"),
    "in_flight": (("gpu/in_flight",), "-rdynamic", "1", "all right"),
}


def build(folder, name, *options):
    """The program, or None where this compiler cannot build it so."""
    sources, linking, *_ = PROGRAMS[name]
    program = folder / name
    command = ["g++", "-std=c++17", "-g1", "-O1", *options, linking]
    command += ["-I", ROOT / "cpp", "-I", ROOT / "tests" / "cpp", ROOT / f"tests/cpp/{name}.cc"]
    command += [ROOT / f"cpp/{source}.cc" for source in sources]
    ended = subprocess.run([*command, "-o", program, "-pthread", "-ldl"], check=False)
    return program if ended.returncode == 0 else None


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_as_threads(tmp_path, name):
    """Where there is no ThreadSanitizer, at least the data are right."""
    *_, argument, all_is_well = PROGRAMS[name]
    program = build(tmp_path, name, "-fsanitize=thread") or build(tmp_path, name)
    assert program is not None
    # Its addresses must lie where it expects them.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    ended = subprocess.run(
        [*prefix, program, argument],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert all_is_well in ended.stdout
    assert "ThreadSanitizer" not in ended.stderr
