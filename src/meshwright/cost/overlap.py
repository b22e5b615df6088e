"""Exposed share of a collective: overlap with computing, deduplicated MoE dispatch (DeepEP).
Enters: `Software`, an operation, how it lies. Leaves: a share of its bytes.

A token that goes to k experts on m machines, drawn alike, has some on  m (1 - (1 - 1/m)^k)  of
them; where it is sent to each machine once (DeepEP), that, and not k, is what the network sees.
Inside a machine it is sent once to each device that has some of its experts.
"""

from __future__ import annotations

import math

from meshwright.cluster.rates import Software
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.pattern import Pattern, members


def exposed_share(software: Software, kind: Operation, pattern: Pattern) -> float:
    """The share of an operation's bytes that anybody waits for."""
    *machines, inside = (members(digits) for digits in pattern)
    crossed = math.prod(machines)
    if kind is Movement.ALL_TO_ALL:
        places = crossed if crossed > 1 else inside
        return (1 - software.hidden_exchange) * _sent_once(software.dispatched, places)
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and crossed == 1 < inside:
        return 1 - software.hidden_tensor
    return 1.0


def _sent_once(copies: int, machines: int) -> float:
    """The share of what k copies of a token are that is left where machines, or devices of one, get
    it once.

    >>> _sent_once(8, 2), _sent_once(0, 2), _sent_once(8, 1)
    (0.2490234375, 1.0, 1.0)
    """
    if not copies or machines == 1:
        return 1.0
    return machines * (1 - (1 - 1 / machines) ** copies) / copies
