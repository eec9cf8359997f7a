"""Runs the notebooks of examples/notebooks, on one rank and on MPI engines of ipyparallel.

    python -m tools.notebooks [NAME ...] [--ranks 1 2] [--write]

Each must end without an error on each number of ranks. With --write their outputs are kept: those
of one rank, and for mpi_engines those of the most ranks.
"""

import argparse
import os
import pathlib
import re
import sys
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools import launcher

FOLDER = launcher.ROOT / "examples" / "notebooks"
LIMIT = 900


# Progress of ipyparallel and of its cluster.
PROGRESS = re.compile(r"\d+%\||^Starting \d+ engines|^Stopping|^<DirectView|^$")


def cleaned(book):
    """Without what differs from run to run: times, progress, numbers of processes."""
    for cell in book.cells:
        cell.metadata.clear()
        kept = []
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                lines = re.split(r"[\r\n]+", output.text)
                output.text = "".join(f"{line}\n" for line in lines if not PROGRESS.search(line))
            data = output.get("data", {})
            is_widget = "application/vnd.jupyter.widget-view+json" in data
            is_view = str(data.get("text/plain", "")).startswith("<DirectView")
            if is_widget or is_view or output.get("text") == "":
                continue
            output.get("metadata", {}).clear()
            kept.append(output)
        if cell.cell_type == "code":
            cell.outputs = kept
    book.metadata.pop("widgets", None)
    return book


def run(path, ranks):
    """The notebook with its outputs. An error of a cell is that of this function."""
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(launcher.ROOT)}}
    os.environ["RANKS"] = str(ranks)
    NotebookClient(book, timeout=LIMIT, kernel_name="python3", resources=resources).execute()
    # On engines, an error is an output and does not always end the kernel's cell.
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" or "Error:" in str(output.get("text", "")):
                raise RuntimeError(f"{path.name} on {ranks} ranks: {output}")
    return cleaned(book)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", help="which; all by default")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--write", action="store_true", help="keep the outputs")
    arguments = parser.parse_args()
    here = launcher.environment(JAX_ENABLE_X64="0", PYTHONPATH=str(launcher.ROOT))
    os.environ.update(here)
    names = arguments.names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    failed = []
    for name in names:
        path = pathlib.Path(FOLDER / f"{name}.ipynb")
        for ranks in arguments.ranks:
            begin = time.perf_counter()
            try:
                book = run(path, ranks)
            except (CellExecutionError, RuntimeError) as error:
                failed.append(f"{name} on {ranks} ranks")
                print(f"{name} on {ranks} ranks: {error}", flush=True)
                continue
            seconds = time.perf_counter() - begin
            print(f"{name} on {ranks} ranks: {seconds:.0f} s", flush=True)
            kept = max(arguments.ranks) if name == "mpi_engines" else 1
            if arguments.write and ranks == kept:
                nbformat.write(book, path)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
