"""Source locations: the line of the user's code that an error or a call comes from. Enters: an
error, or the running stack. Leaves: ' at FILE:LINE' for a sentence, or nothing.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FrameType

import torch
from torch.utils import _contextlib

_ROOM = Path(__file__).parent.parent
_ZOO = _ROOM / "zoo"
_STEP = str(_ROOM / "example.py")
_TORCH = Path(torch.__file__).parent
_DECORATORS = str(_contextlib.__file__)
_STANDARD_LIBRARY = Path(inspect.__file__).parent


def user_line(error: BaseException) -> str:
    """Where the user's own code stood when the error arose."""
    return _innermost(
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    )


def calling_line() -> str:
    """Where the user's own code stands now."""
    lines: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return _innermost(reversed(lines))


def called_by_the_user() -> bool:
    """Whether the user's own code calls the function that asks, itself or by a decorator."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == _DECORATORS:
        frame = frame.f_back
    return frame is not None and is_user_file(Path(frame.f_code.co_filename))


def model_line() -> str:
    """Where the model that is being traced stands now, as FILE:LINE; nothing if only PyTorch's code
    does: all frames of the model lie within the call of its step.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _STEP:
        if is_user_file(Path(frame.f_code.co_filename)):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of(function: Callable[..., object]) -> str:
    """Where a function is written."""
    try:
        file, line = inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return ""
    return f" at {file}:{line}"


@cache
def is_user_file(file: Path) -> bool:
    """Whether a file holds a model: the user's, the zoo's or that of a library of models."""
    if _ROOM in file.parents:
        return _ZOO in file.parents
    standard = _STANDARD_LIBRARY in file.parents and "site-packages" not in file.parts
    return file.is_file() and _TORCH not in file.parents and not standard


def _innermost(lines: Iterable[tuple[str, int]]) -> str:
    """The last of some lines that is the user's."""
    user_lines = [(file, line) for file, line in lines if is_user_file(Path(file))]
    return f" at {user_lines[-1][0]}:{user_lines[-1][1]}" if user_lines else ""
