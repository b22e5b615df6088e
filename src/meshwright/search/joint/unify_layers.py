"""Units that need not differ. Enters: the roles of a plan. Leaves: roles of a plan that costs
hardly more, with as many copies of a layer's units laid out alike as that allows.

A walk leaves units wherever they do no harm. For every node of a field whose units differ, its
roles in the order of how often they occur are tried for all of them, and the first that is cheap
enough stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from meshwright.sharding.reshard import Codes


def tidied(roles: Codes, node: Sequence[int], cheap: Callable[[Codes], bool]) -> Codes:
    """The roles, with units of a node alike where that is cheap.

    >>> tidied(np.array([[0], [1], [0]], np.int8), [0, 0, 0], lambda roles: True).tolist()
    [[0], [0], [0]]
    """
    found = roles
    for number in dict.fromkeys(node):
        units = [unit for unit, own in enumerate(node) if own == number]
        kinds = Counter(found[unit].tobytes() for unit in units)
        if len(kinds) == 1:
            continue
        for kind, _ in kinds.most_common():
            trial = found.copy()
            trial[units] = np.frombuffer(kind, np.int8)
            if cheap(trial):
                found = trial
                break
    return found
