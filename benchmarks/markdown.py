"""Figures and tables as README.md and the pages under docs/ show them."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def results(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}-openmpi.json").read_text())


def size(count: int) -> str:
    if count >> 20:
        return f"{count >> 20} MiB"
    return f"{count >> 10} KiB" if count >> 10 else f"{count} bytes"


def short(value: float) -> str:
    """Two digits, or all that stand before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def factor(ratio: float) -> str:
    """A ratio of times, ours over another one, in words."""
    return f"{1 / ratio:.1f} times faster" if ratio < 1 else f"{ratio:.1f} times slower"


def beside(ratio: float, what: str) -> str:
    """A ratio of times, ours over that of `what`, in words."""
    return f"{factor(ratio)} than {what}"


def table(*lines: tuple[str, ...]) -> str:
    text = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines]
    return "\n".join([text[0], "|---" * len(lines[0]) + "|", *text[1:]]) + "\n"
