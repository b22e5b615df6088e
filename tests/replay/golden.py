"""Lines of text beside a golden file. Enters: lines. Leaves: nothing, or a difference."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden"

SHOWN = 40
"""Lines of a difference."""


def words() -> Mapping[str, str]:
    """Old words, each with the new one."""
    mapping: Mapping[str, str] = tomllib.loads((FOLDER / "words.toml").read_text())["words"]
    return mapping


def reworded(text: str, mapping: Mapping[str, str]) -> str:
    """A text with new words in the place of old ones: whole words, and all at once."""
    if not mapping:
        return text
    longest_first = sorted(mapping, key=len, reverse=True)
    old = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")
    return old.sub(lambda match: mapping[match[0]], text)


def compare(name: str, lines: Iterable[str]) -> None:
    """Fail with the difference if a golden file says anything else; with UPDATE=1 write it."""
    path, replayed = GOLDEN / f"{name}.txt", [*lines]
    if os.environ.get("UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in replayed), encoding="utf-8")
        return
    assert path.exists(), f"{path} is missing: write it with 'make replay UPDATE=1'"
    golden = reworded(path.read_text(encoding="utf-8"), words()).splitlines()
    if golden != replayed:
        changed = [*difflib.unified_diff(golden, replayed, "golden", "replayed", n=0, lineterm="")]
        more = f"\n... and {len(changed) - SHOWN} lines more" if len(changed) > SHOWN else ""
        excerpt = "\n".join(changed[:SHOWN])
        raise AssertionError(f"{path.name}: numbers have changed\n{excerpt}{more}")
