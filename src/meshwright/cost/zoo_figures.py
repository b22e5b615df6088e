"""Figures of the zoo at its published sizes, computed once (`benchmarks/zoo_figures.py`) and kept
as data: a list of models must not capture them all. Enters: names. Leaves: `ModelFigures`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.cost.figures import ModelFigures
from meshwright.cost.memory import Memory, Optimizer

FILE = "zoo_figures.json"


class ZooFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the zoo at its published sizes."""

    batch: int
    figures: ModelFigures
    """With Adam."""
    memory: dict[Optimizer, Memory]

    def with_optimizer(self, optimizer: Optimizer) -> ModelFigures:
        """The figures, with what another optimizer holds."""
        return msgspec.structs.replace(self.figures, memory=self.memory[optimizer])


@cache
def zoo_figures() -> dict[str, ZooFigures]:
    """Every model of the zoo, by name.

    >>> zoo_figures()["bert-large"].figures.parameters
    335174458
    """
    text = files(__package__).joinpath(FILE).read_bytes()
    return msgspec.json.decode(text, type=dict[str, ZooFigures])


def figures_of(name: str) -> ZooFigures:
    """A model of the zoo by its name."""
    known = zoo_figures()
    if name not in known:
        raise InputError(f"there is no model {name!r} in the zoo", nearest(name, known))
    return known[name]
