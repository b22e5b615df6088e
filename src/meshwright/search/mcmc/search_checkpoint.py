"""Checkpoint of an MCMC search: chain states in a file that is replaced atomically. Enters: the
state of its chains. Leaves: a file, always whole.

A file is written beside the old one and then takes its place, so that a search that is killed
leaves the last whole one. It carries the question it belongs to: a search for another graph,
cluster, options, space, seed or starts refuses it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.files import write_atomically
from meshwright.sharding.reshard import Codes
from meshwright.simulate.layout_space import space
from meshwright.simulate.problem import StepModel

VERSION = 1
EVERY = 2.0
"""Seconds between two checkpoints."""


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """One chain."""

    name: str
    random: int
    numbers: tuple[int, ...]
    temperature: float
    roles: bytes
    best: bytes


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A search."""

    seconds: float
    chains: tuple[ChainState, ...]
    history: tuple[tuple[int, float, int], ...]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    meshwright_checkpoint: int
    question: str
    state: Checkpoint


class Keeper:
    """The checkpoint file of one search."""

    def __init__(
        self, path: str, problem: StepModel, starts: Mapping[str, Codes], seed: int
    ) -> None:
        self.path = Path(path)
        self._question = _question(problem, starts, seed)
        self._saved = time.monotonic()

    def load(self) -> Checkpoint | None:
        """What an earlier search knew, or None if there is no file."""
        if not self.path.exists():
            return None
        try:
            file = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except (msgspec.MsgspecError, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"checkpoint {str(self.path)!r} cannot be read ({error})",
                "delete it to start anew, or name another file",
            ) from None
        if file.meshwright_checkpoint != VERSION:
            raise InputError(
                f"checkpoint {str(self.path)!r} has version {file.meshwright_checkpoint}",
                f"this Meshwright reads version {VERSION}; delete it to start anew",
            )
        if file.question != self._question:
            raise InputError(
                f"checkpoint {str(self.path)!r} belongs to a search with another model, cluster, "
                "constraint, seed or start",
                "name another file, or delete it to start anew",
            )
        return file.state

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._saved > EVERY

    def save(self, state: Checkpoint) -> None:
        """Write the file, whole or not at all."""
        file = _File(meshwright_checkpoint=VERSION, question=self._question, state=state)
        write_atomically(self.path, msgspec.json.encode(file))
        self._saved = time.monotonic()


def _question(problem: StepModel, starts: Mapping[str, Codes], seed: int) -> str:
    encoded = msgspec.json.encode((problem.graph, problem.cluster, problem.options, seed))
    digest = hashlib.sha256(encoded)
    room = space(problem)
    for array in (room.role, room.roles, problem.times.table.cuttable):
        digest.update(array.tobytes())
    for name, roles in starts.items():
        digest.update(name.encode() + b"\0" + roles.tobytes())
    return digest.hexdigest()
