"""Where the user's program is: the line that calls pfftjax, for errors and warnings."""

import functools
import os
import sys
from types import FrameType

import jax
import jaxlib
from jax.extend import source_info_util

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_JAX = tuple(os.path.dirname(os.path.abspath(str(m.__file__))) + os.sep for m in (jax, jaxlib))


@functools.cache
def _is_users(path: str) -> bool:
    return not path.startswith((_HERE, *_JAX)) and not path.startswith("<frozen ")


def user_line() -> str:
    """The innermost line outside of pfftjax and JAX, as "model.py:17"; empty where there is none.

    Inside a lowering rule, that of the operation's call, and not of what has it lowered.
    """
    trace = source_info_util.current().traceback
    if trace is None:
        return ""
    for code, instruction in zip(*trace.raw_frames(), strict=True):
        path = code.co_filename
        if not _is_users(path):
            continue
        line = next(
            (line for start, end, line in code.co_lines() if start <= instruction < end and line),
            code.co_firstlineno,
        )
        here = os.getcwd() + os.sep
        return f"{path.removeprefix(here)}:{line}"
    return ""


def stacklevel() -> int:
    """What the caller gives `warnings.warn`, so that a warning is of the user's innermost line.

    1, the caller itself, where no line outside of pfftjax and JAX leads there.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return level
        frame = frame.f_back
        level += 1
    return 1
