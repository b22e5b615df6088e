"""Atomic file writes (a temporary file, then a rename). Enters: a path and bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from meshwright.base.errors import InputError

REMEDY = "name a file in a folder that exists and that you may write to"


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file beside the old one and let it take its place."""
    whole = Path(path)
    part = whole.with_name(f".{whole.name}.part")
    try:
        part.write_bytes(content)
        part.replace(whole)
    except OSError as error:
        # On a full disk nothing is left of it.
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError(f"cannot write {str(path)!r} ({error.strerror})", REMEDY) from None


def require_writable(path: str | Path) -> None:
    """Refuse a path that `write_atomically` could not write, before the work for it."""
    whole = Path(path)
    if not whole.name or whole.is_dir():
        raise InputError(f"cannot write {str(path)!r} (it is a folder)", REMEDY)
    if not whole.parent.is_dir():
        raise InputError(f"cannot write {str(path)!r} (there is no such folder)", REMEDY)
    if not os.access(whole.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {str(path)!r} (the folder is write-protected)", REMEDY)
