"""The programs in the documentation and the examples run, and say what they should."""

import re
import subprocess

import pytest

from tests.jobs.job import RANKS, assert_succeeds, compiling_once
from tools import launcher

pytestmark = pytest.mark.timeout(300)

# Most of the time of a page is that of compiling it.
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def _blocks(path):
    """The Python of a page, as one program."""
    text = (launcher.ROOT / path).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks, path
    return "\n".join(blocks)


def _pages():
    """The README, and the pages under docs/ that have programs."""
    elsewhere = {"docs/index.md", "docs/coming-from-jpi.md"}  # below, by what they print
    fragments = {"docs/theory/adjoints.md"}  # two lines, one of which is wrong
    paths = [path.relative_to(launcher.ROOT) for path in (launcher.ROOT / "docs").rglob("*.md")]
    pages = {str(path) for path in paths if "```python" in (launcher.ROOT / path).read_text()}
    return sorted({"README.md"} | pages - fragments - elsewhere)


@pytest.mark.parametrize("page", _pages())
def test_pages(page, tmp_path):
    script = _blocks(page) + "\nprint('done', flush=True)\n"
    # JAX 0.10.2 crashes where it keeps the programs of several processes that are one to it.
    how = {"preamble": ""} if "jax.distributed" in script else compiling_once(tmp_path)
    ended = assert_succeeds(script, limit=230, JAX_ENABLE_X64="0", **how, **QUICK)
    assert ended.output.count("done") == 2


def test_the_landing_page_shows_what_its_program_prints(tmp_path):
    """On four ranks, of which each prints a line, in any order."""
    page = (launcher.ROOT / "docs" / "index.md").read_text()
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    how = {"JAX_ENABLE_X64": "0", **compiling_once(tmp_path)}
    ended = assert_succeeds(_blocks("docs/index.md"), ranks=4, **how)
    assert sorted(ended.output.split("\n"))[-4:] == sorted(shown.strip().split("\n"))


def test_the_numbers_of_the_program_of_jpi(tmp_path):
    """The value and the gradient that docs/coming-from-jpi.md states, on four ranks."""
    script = _blocks("docs/coming-from-jpi.md")
    how = {"JAX_ENABLE_X64": "0", **compiling_once(tmp_path)}
    ended = assert_succeeds(script, ranks=4, **how)
    printed = re.findall(r"rank (\d): (\S+) and \[(.*?)\]", ended.output)
    numbers = {int(rank): (float(v), [float(g) for g in gs.split()]) for rank, v, gs in printed}
    on_root = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    assert numbers == {rank: (41.0, [0.0] * 8 if rank else on_root) for rank in range(4)}


def test_the_program_from_jaxdecomp():
    """On rows and columns; on slabs it is one of the pages."""
    script = _blocks("docs/coming-from-jaxdecomp.md") + "\nprint('done', flush=True)\n"
    ended = assert_succeeds(script, ranks=4, preamble="", JAX_ENABLE_X64="0")
    assert ended.output.count("done") == 4


@pytest.mark.parametrize(
    ("ranks", "arguments", "limit"),
    [
        (4, ["--mesh", "40", "--grid", "2x2"], 1e-12),
        (3, ["--mesh", "45"], 1e-12),
        (2, ["--mesh", "32", "--dtype", "float32"], 1e-5),
    ],
)
def test_poisson_against_the_analytic_solution(ranks, arguments, limit):
    script = "import runpy\nrunpy.run_path('examples/poisson.py', run_name='__main__')\n"
    ended = assert_succeeds(script, ranks=ranks, preamble="", arguments=arguments)
    errors = [float(e) for e in re.findall(r"relative error (\S+)", ended.output)]
    assert len(errors) == 2
    for error in errors:
        assert error <= limit, ended.output


LATE = """
import time
def pytest_runtest_call(item):
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 0 and item.name.endswith("recv"):
        time.sleep(2)
"""


@pytest.mark.reproducer
def test_examples_of_messages_when_a_rank_is_late(tmp_path):
    """Between two examples ranks do not wait for each other. The example of recv once took a
    message from any rank: where rank 0 was late, that was the one of the example of send, which
    then waited for it for ever."""
    (tmp_path / "late.py").write_text(LATE)
    files = [f"pfftjax/collectives/{name}.py" for name in ("_send", "_sendrecv")]
    options = ["-p", "late", "-p", "no:cacheprovider", "-q", "--with-mpi", "--doctest-modules"]
    ended = subprocess.run(
        launcher.command(RANKS, "-m", "pytest", *options, *files),
        env=launcher.environment(PYTHONPATH=str(tmp_path)),
        cwd=launcher.ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("3 passed") == RANKS, ended.stdout
