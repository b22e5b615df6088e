"""Just-in-time compilation of hot loops with Numba, cached on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])

BARE: dict[str, Any] = {"_nrt": False}
"""Compiled code counts no references to arrays, which would take most of the time of a function
that gets dozens of them; it cannot make any either."""

PACKAGE = Path(__file__).resolve().parent.parent
IMPORTS = re.compile(r"^from meshwright\.([\w.]+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)

UNUSED = 14 * 86400.0
"""Seconds after which compiled code of other versions is thrown away."""

_DISPATCHERS: list[Any] = []
_log = logging.getLogger(__name__)


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


class SharedCode:
    """Where Numba keeps the code of a function: in the folder of its text, wherever the file lies.

    A cache locator of Numba. Two checkouts with the same text share what was compiled.
    """

    def __init__(self, function: Any, file: str) -> None:
        self._line = str(function.__code__.co_firstlineno)
        self._path = _folder() / Path(file).resolve().parent.relative_to(PACKAGE)

    @classmethod
    def from_function(cls, function: Any, file: str) -> SharedCode | None:
        """The place for a function, or none outside Meshwright or where nothing can be written."""
        try:
            place = cls(function, file)
            place.ensure_cache_path()
        except (OSError, ValueError):
            return None
        return place

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        self._path.mkdir(parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK):
            raise PermissionError(self._path)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self._path)

    def get_source_stamp(self) -> str:
        """Nothing more to tell: the folder is that of the text."""
        return ""

    def get_disambiguator(self) -> str:
        """What tells functions of one name apart."""
        return self._line


def _kept(dispatcher: Any) -> Any:
    """A compiled function whose code is kept in a folder of this version of Meshwright.

    By itself Numba looks only at the file of a function for changes, but its code holds that of
    the functions which it calls. With NUMBA_DISABLE_JIT=1 the function stays what it was.
    """
    config: Any = numba.config
    if config.DISABLE_JIT:
        return dispatcher
    _DISPATCHERS.append(dispatcher)
    before = config.CACHE_DIR, getattr(config, "CACHE_LOCATOR_CLASSES", "")
    # Releases of Numba that cannot be told of a locator look at the folder.
    config.CACHE_DIR = str(_folder())
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{SharedCode.__name__}"
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        _log.info("compiled code cannot be kept in %s", _folder())
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before
    return dispatcher


def compilations() -> tuple[int, int]:
    """How many functions this process has compiled, and how many it found compiled on disk."""
    stats = [dispatcher.stats for dispatcher in _DISPATCHERS]
    compiled = sum(sum(stat.cache_misses.values()) for stat in stats)
    return compiled, sum(sum(stat.cache_hits.values()) for stat in stats)


@cache
def _folder() -> Path:
    """Where compiled code of this version is kept: beside the user's other caches."""
    digest = hashlib.sha256()
    for source in sorted(_behind_compiled_code()):
        digest.update(f"{source.relative_to(PACKAGE)}\0".encode() + source.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    folder = home / f"compiled-{digest.hexdigest()[:16]}"
    if not folder.exists():
        for other in home.glob("compiled-*"):
            if time.time() - other.stat().st_mtime > UNUSED:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _behind_compiled_code() -> set[Path]:
    """The files of compiled functions, and those from which their constants and named tuples come.

    Compiled code holds the numbers of constants, which are written in capitals, and the fields of
    named tuples; other classes and functions that are not compiled it cannot hold.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    waiting = [path for path, text in texts.items() if f"{__name__} import" in text]
    files = {Path(__file__).resolve(), *waiting}
    while waiting:
        for path, names in _imported(texts[waiting.pop()]):
            if path not in files and any(_is_held(name, texts.get(path, "")) for name in names):
                files.add(path)
                waiting.append(path)
    return files


def _imported(text: str) -> Iterator[tuple[Path, list[str]]]:
    """Files that a text imports from, each with the names that it takes."""
    for module, several, one in IMPORTS.findall(text):
        path = PACKAGE.joinpath(*module.split("."))
        yield path.with_suffix(".py"), re.findall(r"\w+", several or one)


def _is_held(name: str, text: str) -> bool:
    """Whether compiled code may hold what a text calls by this name."""
    if name.isupper():
        return bool(text)
    return re.search(rf"^class {name}\(NamedTuple\)", text, re.MULTILINE) is not None


@compiled
def copy_row(source: NDArray[Any], row: int, target: NDArray[Any], at: int) -> None:
    """Copy a row of one matrix into another; assigning slices would make an array."""
    for column in range(source.shape[1]):
        target[at, column] = source[row, column]
