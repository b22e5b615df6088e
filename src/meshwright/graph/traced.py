"""Provenance of a graph: the traced module, its settings and mode. Enters: settings of modules as
text. Leaves: `Traced`, which tells another module from it, attribute by attribute.

A graph says what one call of a module computed; a module with other sizes, rates or code may have
the same parameters and compute something else. Knows neither PyTorch nor how settings are found.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from meshwright.graph.returned import Returned

Settings = tuple[tuple[str, str], ...]
"""Attributes and what they are, as text; sorted."""


CHANGING = "changes in every call"
"""Stands for what an attribute is that forward writes."""

MODE = "mode"
"""The setting of a module that evaluates in a model that is trained, as a frozen teacher does."""

EVALUATION = "evaluation"
"""What that setting says; an attribute that a module calls `mode`, as an LSTM does, says other."""

NOT_SET = {MODE: "the model's"}
"""What is said of settings that a module does not have."""


class Alike(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of one class with the same settings."""

    kind: str
    """Their class."""
    settings: Settings = ()
    paths: tuple[str, ...]


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """The module that was traced, and in which mode."""

    modules: tuple[Alike, ...]
    training: bool = True
    other_mode: str = ""
    """What the graph does not compute as the module does in the other mode; empty if nothing."""
    fixed: Settings = ()
    """Arguments of the call that are no tensors, in their order."""
    returned: Returned | None = None
    """What the call returned, where the graph has a loss; tensors that the graph computes alone."""

    @property
    def mode(self) -> str:
        """The mode in words."""
        return "training" if self.training else "evaluation"

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """Those of every module, by its path."""
        return {path: dict(group.settings) for group in self.modules for path in group.paths}

    def difference(self, other: Traced) -> str | None:
        """The first thing in which another module differs from this, with both values.

        >>> drop = Alike(kind="Dropout", settings=(("p", "0.1"),), paths=("drop",))
        >>> other = Alike(kind="Dropout", settings=(("p", "0.5"),), paths=("drop",))
        >>> Traced(modules=(drop,)).difference(Traced(modules=(other,)))
        "p of module 'drop' (Dropout) is 0.5, and in the plan 0.1"
        """
        planned, actual = _by_path(self), _by_path(other)
        for path in (*planned, *(path for path in actual if path not in planned)):
            one, two = planned.get(path), actual.get(path)
            if one is None or two is None:
                present = one or two
                assert present is not None
                where = ("the plan", "the model") if two is None else ("the model", "the plan")
                return f"module {path!r} ({present.kind}) is in {where[0]} and not in {where[1]}"
            mismatch = _difference(path, one, two)
            if mismatch is not None:
                return mismatch
        return None


def _by_path(traced: Traced) -> Mapping[str, Alike]:
    return {path: module for module in traced.modules for path in module.paths}


def _difference(path: str, planned: Alike, actual: Alike) -> str | None:
    what = f"module {path!r}" if path else "the model"
    if planned.kind != actual.kind:
        return f"{what} is a {actual.kind}, and in the plan a {planned.kind}"
    one, two = dict(planned.settings), dict(actual.settings)
    for name in sorted(one.keys() | two.keys()):
        if one.get(name) not in (two.get(name), CHANGING):
            nothing = NOT_SET.get(name, "missing")
            values = (two.get(name, nothing), one.get(name, nothing))
            return f"{name} of {what} ({actual.kind}) is {values[0]}, and in the plan {values[1]}"
    return None
