"""How hot loops are compiled."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])

BARE: dict[str, Any] = {"_nrt": False}
"""Compiled code counts no references to arrays, which would take most of the time of a function
that gets dozens of them; it cannot make any either."""

PACKAGE = Path(__file__).parent.parent
IMPORTS = re.compile(r"^from meshwright\.([\w.]+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)

UNUSED = 14 * 86400.0
"""Seconds after which compiled code of other versions is thrown away."""

_DISPATCHERS: list[Any] = []


def compiled(function: Function) -> Function:
    """The function, compiled at its first call and kept on disk."""
    return cast(Function, _kept(numba.njit(**BARE)(function)))


def inlined(function: Function) -> Function:
    """A part of compiled functions: its code goes into theirs, and it has no door for Python."""
    alone: dict[str, Any] = {
        "forceinline": True,
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return cast(Function, _kept(numba.njit(**BARE, **alone)(function)))


def _kept(dispatcher: Any) -> Any:
    """A compiled function whose code is kept in a folder of this version of Meshwright.

    By itself Numba looks only at the file of a function for changes, but its code holds that of
    the functions which it calls. With NUMBA_DISABLE_JIT=1 the function stays what it was.
    """
    config: Any = numba.config
    if config.DISABLE_JIT:
        return dispatcher
    _DISPATCHERS.append(dispatcher)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder())
    try:
        dispatcher.enable_caching()
    finally:
        config.CACHE_DIR = before
    return dispatcher


def compilations() -> tuple[int, int]:
    """How many functions this process has compiled, and how many it found compiled on disk."""
    stats = [dispatcher.stats for dispatcher in _DISPATCHERS]
    made = sum(sum(own.cache_misses.values()) for own in stats)
    return made, sum(sum(own.cache_hits.values()) for own in stats)


@cache
def _folder() -> Path:
    """Where compiled code of this version is kept: beside the user's other caches."""
    digest = hashlib.sha256()
    for source in sorted(_behind_compiled_code()):
        state = source.stat()
        digest.update(f"{source} {state.st_size} {state.st_mtime_ns}\n".encode())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    own = home / f"compiled-{digest.hexdigest()[:16]}"
    if not own.exists():
        for other in home.glob("compiled-*"):
            if time.time() - other.stat().st_mtime > UNUSED:
                shutil.rmtree(other, ignore_errors=True)
    return own


def _behind_compiled_code() -> set[Path]:
    """The files of compiled functions and all that they import, from which constants may come."""
    texts = {own: own.read_text(encoding="utf-8") for own in PACKAGE.rglob("*.py")}
    waiting = [own for own, text in texts.items() if f"{__name__} import" in text]
    found = set(waiting)
    while waiting:
        for own in _imported(texts[waiting.pop()]) - found:
            if own in texts:
                found.add(own)
                waiting.append(own)
    return found


def _imported(text: str) -> set[Path]:
    """Where modules that a text imports may be; names that it takes from them, too."""
    found = set()
    for module, several, one in IMPORTS.findall(text):
        folder = PACKAGE.joinpath(*module.split("."))
        rooms = (folder, *folder.relative_to(PACKAGE).parents)
        found |= {folder.with_suffix(".py"), *(PACKAGE / own / "__init__.py" for own in rooms)}
        found |= {folder / f"{name}.py" for name in re.findall(r"\w+", several or one)}
    return found


@compiled
def copy_row(source: NDArray[Any], row: int, target: NDArray[Any], at: int) -> None:
    """Copy a row of one matrix into another; assigning slices would make an array."""
    for column in range(source.shape[1]):
        target[at, column] = source[row, column]
