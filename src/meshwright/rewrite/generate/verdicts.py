"""Proof cache: a prover's verdicts kept in a folder. Enters: a prover, a folder. Leaves: the same
prover, resumable.

A folder belongs to one prover: what it said of a rule is kept there under the text of the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.files import require_writable, write_atomically
from meshwright.rewrite.language.terms import Rule

Prove = Callable[[Rule], bool]
"""Whether a rule is certain; what is not certain is no rule."""

EVERY = 64
"""Proofs after which the file is written again."""


class Verdicts:
    """A prover that does not prove anything twice."""

    def __init__(self, prove: Prove, folder: Path | None) -> None:
        self._prove = prove
        self._path = folder / "verdicts.json" if folder else None
        if self._path is not None:
            require_writable(self._path)
        self._known = _read(self._path)
        self._unsaved = 0

    def __call__(self, rule: Rule) -> bool:
        """Whether the rule is certain, whatever its name."""
        text = str(msgspec.structs.replace(rule, name="rule"))
        if text not in self._known:
            self._known[text] = self._prove(rule)
            self._unsaved += 1
            if self._unsaved >= EVERY:
                self.save()
        return self._known[text]

    def save(self) -> None:
        """Write what was found since the file was written."""
        if self._path is not None and self._unsaved:
            write_atomically(self._path, msgspec.json.format(msgspec.json.encode(self._known)))
        self._unsaved = 0


def _read(path: Path | None) -> dict[str, bool]:
    if path is None or not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, bool])
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise InputError(
            f"{str(path)!r} does not hold verdicts", "remove it, or name another folder"
        ) from None
