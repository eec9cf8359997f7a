"""The rows and the page of `validate.py`."""

import dataclasses
import pathlib
import platform
import re
import textwrap

import jax
from mpi4py import MPI
from nbody_pm import TABLE

# What the pictures show: file, in this folder beside the page, -> words.
FOLDER = pathlib.Path("pictures")
PICTURES = {
    "steps.png": "Power spectra of runs in few steps over that of a run in many",
    "multipoles.png": "Multipoles of the power spectrum in redshift space beside Kaiser's",
    "convergence.png": "Angular spectrum of the convergence beside the integral over spectra",
}
HEADER = ("| what | setting | measured | expected | bound | ok |", "|---|---|---|---|---|---|")


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement. `ok` is None for one that is shown only."""

    what: str
    setting: str
    measured: str
    expected: str
    bound: str = ""
    ok: bool | None = None


def between(what, setting, value, expected, low, high):
    """A number between two others."""
    bound, ok = f"{low:.4g} to {high:.4g}", bool(low < value < high)
    return Row(what, setting, f"{value:.4f}", expected, bound, ok)


def error(what, setting, value, bound, expected="0"):
    """An error below its bound."""
    return Row(what, setting, f"{value:.1e}", expected, f"< {bound:g}", bool(value < bound))


def processor():
    """The name of this machine's processor."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def line(row):
    """A row as a line of the table."""
    ok = {None: "", True: "yes", False: "**no**"}[row.ok]
    cells = (row.what, row.setting, row.measured, row.expected, row.bound, ok)
    return f"| {' | '.join(cells)} |"


def with_rows(page, rows):
    """A page with these rows in place of those with the same names, or at its end."""
    lines = page.splitlines()
    for row in rows:
        begin, new = f"| {row.what} | {row.setting} |", line(row)
        old = [i for i, text in enumerate(lines) if text.startswith(begin)]
        if old:
            lines[old[0]] = new
        else:
            lines.append(new)
    return "\n".join(lines) + "\n"


def document(rows, seconds, ranks):
    """The page."""
    library = re.split(r"[,\n]", MPI.Get_library_version())[0].strip()
    paragraphs = (
        "The particle-mesh simulation measured against theory, in double precision, for the "
        f"cosmology of [examples/data/{TABLE.name}](../examples/data/{TABLE.name}). Lengths are "
        "in Mpc/h, settings n^3 are particles. T is the growth from the linear density to that "
        "today, over linear theory's: their cross spectrum over the linear one. A row without a "
        "bound is shown only.",
        f"Made by `mpirun -n {ranks} python examples/validate.py` (`make validate`) in "
        f"{seconds:.0f} s, ranks: {ranks}, on {processor()}, with {library}, JAX "
        f"{jax.__version__} and Python {platform.python_version()}.",
    )
    lines = ["# Validation", ""]
    for text in paragraphs:
        lines += [*textwrap.wrap(text, 99, break_long_words=False, break_on_hyphens=False), ""]
    for name, words in PICTURES.items():
        lines += [f"![{words}]({FOLDER / name})", ""]
    lines += [*HEADER, *map(line, rows)]
    return "\n".join(lines) + "\n"
