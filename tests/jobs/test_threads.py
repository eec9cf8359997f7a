"""The code that shares memory between ranks or threads, under ThreadSanitizer: cpp/threads.cc."""

import os
import shutil
import subprocess

import pytest

from tests.launcher import ROOT

pytestmark = pytest.mark.timeout(180)
SOURCES = (
    "tests/cpp/threads.cc",
    "cpp/node.cc",
    "cpp/progress.cc",
    "cpp/pages.cc",
    "cpp/shared_memory.cc",
)


def build(folder, *options):
    """The program, or None where this compiler cannot build it so."""
    program = folder / "threads"
    command = ["g++", "-std=c++17", "-g", "-O1", *options, "-I", ROOT / "cpp"]
    command += ["-Wl,--wrap=mmap,--wrap=munmap", *(ROOT / source for source in SOURCES)]
    ended = subprocess.run([*command, "-o", program, "-pthread"], check=False)
    return program if ended.returncode == 0 else None


def test_ranks_as_threads(tmp_path):
    """Where there is no ThreadSanitizer, at least the data are right."""
    program = build(tmp_path, "-fsanitize=thread") or build(tmp_path)
    assert program is not None
    # Its addresses must lie where it expects them.
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    ended = subprocess.run(
        [*prefix, program, "100"],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert "all data right" in ended.stdout
    assert "ThreadSanitizer" not in ended.stderr
