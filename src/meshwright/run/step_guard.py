"""Guards of a step, behind a dirty check: identities of what they looked at last. Enters: a module
run by a plan. Leaves: nothing, or a guard's sentence.

Guards (`loop_guards`, `module_tree`) say what is wrong and with what; that takes milliseconds for a
model of hundreds of layers, in which a GPU waits for its host. A few thousand comparisons of
pointers tell whether anything is another one since they looked. What is changed and right (the
mode) they look at once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from meshwright.run.exec.executor import Executor
from meshwright.run.exec.parameters import ParameterPiece
from meshwright.run.loop_guards import refuse_changed_parameters
from meshwright.run.module_tree import HOOKS, TREES, PlanModule, Setting

PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class StepGuard:
    """Refuses what was done to a module since the last step, and no plan does."""

    def __init__(self, executor: Executor, module: PlanModule) -> None:
        self._executor, self._module = executor, module
        self._unchanged: Unchanged | None = None

    def refuse_changes(self) -> None:
        """Have guards look if anything is another one."""
        if self._unchanged is None or not self._unchanged():
            refuse_changed_parameters(self._executor, self._module)
            self._module.refuse_changed_modules()
            pieces = self._executor.parameters.pieces.values()
            self._unchanged = Unchanged(self._module, pieces, self._module.planned_settings)


class Unchanged:
    """What was there."""

    def __init__(
        self, module: nn.Module, pieces: Iterable[ParameterPiece], settings: Iterable[Setting]
    ) -> None:
        parts = [vars(part) for part in module.modules()]
        trees = [part[kind] for part in parts for kind in TREES]
        self._entries: list[tuple[dict[str, Any], str, Any]] = [
            *((part, name, part.get(name)) for part in parts for name in ("training", *TREES)),
            *((tree, name, value) for tree in trees for name, value in tree.items()),
            *((s.attributes, s.name.rpartition(".")[2], s.value) for s in settings),
        ]
        self._lists = [(it.value, list(it.value)) for it in settings if isinstance(it.value, list)]
        hooks = [part[kind] for part in parts for kind in HOOKS]
        self._sizes = [(names, len(names)) for names in (*trees, *hooks)]
        self._pieces = [(piece, *_looks(piece)) for piece in pieces]

    def __call__(self) -> bool:
        """Whether it is there still."""
        return (
            all(names.get(name) is value for names, name, value in self._entries)
            and all(len(names) == count for names, count in self._sizes)
            and all(now == before for now, before in self._lists)
            and all(_looks(piece) == (*before,) for piece, *before in self._pieces)
        )


def _looks(piece: ParameterPiece) -> tuple[bool, bool, int]:
    """Whether a parameter is trained and moved, and how many hooks its gradient has."""
    parameter = piece.parameter
    hooks = sum(len(getattr(parameter, kind) or ()) for kind in PARAMETER_HOOKS)
    return parameter.requires_grad, piece.moved, hooks
