"""What becomes of a file that is there already."""

import pathlib
from typing import Literal

Mode = Literal["x", "w", "a"]


def check_mode(mode: object) -> None:
    """Refuse a mode that there is not."""
    if mode not in ("x", "w", "a"):
        raise ValueError(f"mode must be x (new), w (replace) or a (add), got {mode!r}")


def check_free(target: pathlib.Path) -> None:
    """Refuse a path at which there is something."""
    if target.exists():
        raise FileExistsError(
            f"{target} is there already; mode='a' adds to it or replaces what has the same name, "
            "mode='w' replaces all of it"
        )
