"""Removes each remedy in turn and sees that a test fails: `make mutants`.

    python -m tools.mutants [words of their names] [--part 2/5]

Edits the files of this checkout and puts them back, so it wants a clean one. Each test must pass
on the code as it is before it is believed to have caught anything.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from tools import launcher

from . import arrays, collectives, gpus, nufft, observables
from ._mutant import CXX

_MODULES = (collectives, arrays, gpus, nufft, observables)
MUTANTS = [mutant for module in _MODULES for mutant in module.MUTANTS]


# Tests that compile what they test themselves.
NEED_NO_MODULE = ("tests/jobs/test_threads.py", "tests/jobs/test_kernels.py")
# A test that takes longer hangs.
SECONDS = 60
HANGS = "a hang or a crash"


def outcomes(tests, ranks, *options):
    """What became of these tests on the code as it is now: {its name in full: outcome}.

    One that hangs or crashes is there as HANGS, and those after it are not there.
    """
    extra = {}
    if tests == ["chunks"]:
        tests = ["tests/collectives/test_values.py"]
        extra = {"PFFTJAX_MAX_CHUNK_BYTES": "64", "PFFTJAX_SHARED_MEMORY": "0"}
    # Compiling is most of the work; order is at stake where XLA's passes are on.
    if not any("test_ordering" in test for test in tests):
        extra["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    arguments = ["-m", "pytest", "-q", f"--timeout={SECONDS}", *options, *tests]
    if ranks == 0:
        command = [sys.executable, *arguments]
    else:
        command = launcher.command(ranks, *arguments, "--with-mpi")
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        ended = subprocess.run(
            command,
            cwd=launcher.ROOT,
            env=launcher.environment(PFFTJAX_TEST_LOG=str(log), **extra),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        lines = log.read_text().splitlines() if log.exists() else []
    found = {entry["test"]: entry["outcome"] for entry in map(json.loads, lines)}
    if ended.returncode != 0 and "failed" not in found.values():
        found[HANGS] = "failed"
    return found


def culprit(found):
    """The test that fails, or None."""
    return next((name for name, outcome in found.items() if outcome == "failed"), None)


def healthy(cases):
    """Those of the cases (test, ranks) that pass; many in one job, to start fewer."""
    groups = {}
    for test, ranks in cases:
        is_alone = test == "chunks" or "test_ordering" in test
        groups.setdefault((ranks, test if is_alone else None), []).append(test)
    passed = set()
    for (ranks, _), tests in groups.items():
        found = outcomes(tests, ranks)
        for test in tests:
            mine = found if len(tests) == 1 else {k: v for k, v in found.items() if test in k}
            if HANGS in found or not mine:
                mine = outcomes([test], ranks)
            if "passed" in mine.values() and not culprit(mine):
                passed.add((test, ranks))
    return passed


def chosen(arguments):
    """The mutants that are asked for; those of one file together, for what must be compiled."""
    wanted = [m for m in MUTANTS if all(word in m.what for word in arguments.words)]
    wanted.sort(key=lambda m: (is_compiled(m), str(m.file)))
    part, parts = (int(number) for number in arguments.part.split("/"))
    return wanted[(part - 1) * len(wanted) // parts : part * len(wanted) // parts]


def is_compiled(mutant):
    """Whether the module must be built again before the test."""
    return CXX in mutant.file.parents and not mutant.test.startswith(NEED_NO_MODULE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="of the names of those wanted")
    parser.add_argument("--part", default="1/1", help="2/5: the second of five parts")
    arguments = parser.parse_args()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "pfftjax", "cpp"],
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if changed:
        print("commit first: this edits files and puts them back\n" + changed)
        return 1
    mutants = chosen(arguments)
    caught = 0
    is_mutated = False  # the module, as it is built
    stale = {m for m in mutants if m.file.read_text().count(m.old) != 1}
    cases = dict.fromkeys((m.test, m.ranks) for m in mutants if m not in stale)
    sound = healthy(cases)
    try:
        for mutant in mutants:
            if mutant in stale:
                verdict = "STALE"
            elif (mutant.test, mutant.ranks) not in sound:
                verdict = "UNSOUND"
            else:
                original = mutant.file.read_text()
                try:
                    mutant.file.write_text(original.replace(mutant.old, mutant.new))
                    if is_compiled(mutant):
                        is_mutated = True
                        launcher.rebuild()
                    by = culprit(outcomes([mutant.test], mutant.ranks, "-x"))
                    verdict = f"caught by {by}" if by else "SURVIVED"
                    caught += by is not None
                except subprocess.CalledProcessError:
                    verdict = "STALE (cannot be built)"
                finally:
                    mutant.file.write_text(original)
            print(f"{mutant.what}: {verdict}", flush=True)
    finally:
        if is_mutated:
            launcher.rebuild()
    print(f"{caught} of {len(mutants)} mutants caught")
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
