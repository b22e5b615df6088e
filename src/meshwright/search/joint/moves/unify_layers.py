"""Unified layouts of repeated layers, where the step hardly gets longer. Enters: a plan, the roles
of its units. Leaves: roles of a plan that costs hardly more, with as many copies of a layer's units
laid out alike as that allows.

A walk leaves units wherever they do no harm. For every node of a field whose units differ, its
roles in the order of how often they occur are tried for all of them, and the first that is cheap
enough stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from meshwright.base.errors import InputError
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.request.violations import violations
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.sharding.reshard import Codes

UNTIDY = 1e-3
"""The share of a step that layers laid out alike may cost."""


def unify_layer_layouts(
    question: PlanRequest,
    best: CandidateEntry,
    others: Sequence[Candidate],
    late: Callable[[], bool],
) -> Candidate | None:
    """The best plan with copies of a layer laid out alike where a step gets no longer than that of
    the fastest of some others, and by UNTIDY of it at most; None if there is no such plan.
    """
    fitting = [candidate.prediction.step for candidate in others if candidate.fits(question.memory)]
    most = min(
        (best.step * (1 + UNTIDY), *(seconds for seconds in fitting if seconds >= best.step))
    )
    plan, candidates = best.candidate.plan, list[Candidate]()

    def cheap(roles: Codes) -> bool:
        if late():
            return False
        try:
            tried = best.context.simulated(plan.origin, plan.options, roles)
        except InputError:
            return False  # Layers alike would leave a stage of a pipeline twice.
        good = tried.prediction.step <= most and tried.fits(question.memory)
        good = good and not violations(tried.plan, question.constraints)
        candidates.extend([tried] * good)
        return good

    tidied(best.roles, best.context.node, cheap)
    return candidates[-1] if candidates else None


def tidied(roles: Codes, node: Sequence[int], cheap: Callable[[Codes], bool]) -> Codes:
    """The roles, with units of a node alike where that is cheap.

    >>> tidied(np.array([[0], [1], [0]], np.int8), [0, 0, 0], lambda roles: True).tolist()
    [[0], [0], [0]]
    """
    current = roles
    for number in dict.fromkeys(node):
        units = [unit for unit, unit_node in enumerate(node) if unit_node == number]
        kinds = Counter(current[unit].tobytes() for unit in units)
        if len(kinds) == 1:
            continue
        for kind, _ in kinds.most_common():
            trial = current.copy()
            trial[units] = np.frombuffer(kind, np.int8)
            if cheap(trial):
                current = trial
                break
    return current
