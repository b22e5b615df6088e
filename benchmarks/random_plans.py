"""Random legal plans of all tiny models, and plans that the joint search finds, held against one
device: loss, every gradient, parameters after 5 steps, and the bytes that each rank sent.

Run as `PYTHONPATH=tests python benchmarks/random_plans.py [COUNT] [SEED] [DTYPE]` (300 plans, seed
0, float64), or with `found` instead of COUNT for the plans of the joint search on 2, 4 and 8 ranks.
Prints every plan that is wrong, how often everything occurred, and the largest errors. Exit code 1
if a plan is wrong.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from meshwright.foundation.units import Seconds
from meshwright.run.ranks import RankError
from meshwright.script.script import Script
from support.drawn_plans import Drawn, drawn_plans
from support.found_plans import found_plans
from support.plan_features import features
from support.proved import Verdict, verdicts

TOGETHER = 20
"""Plans that share one start of ranks."""

BUDGET = Seconds(1.0)
"""Of each search."""


def main(words: list[str]) -> int:
    """Draw, run, print."""
    count = words[0] if words else "300"
    seed = int(words[1]) if len(words) > 1 else 0
    dtype = words[2] if len(words) > 2 else "float64"
    if count == "found":
        plans = found_plans(BUDGET)
    else:
        plans = islice(drawn_plans(seed, dtype=dtype), int(count))
    return 1 if _told(plans) else 0


def _told(plans: Iterable[Drawn]) -> int:
    """Print what becomes of plans; how many are wrong."""
    began, wrong, done = time.monotonic(), 0, list[Verdict]()
    occurred: Counter[str] = Counter()
    waiting: dict[int, list[Drawn]] = {}
    for own in plans:
        occurred.update(features(Script(own.plan), own.rewrites))
        group = waiting.setdefault(own.plan.cluster.devices, [])
        group.append(own)
        if len(group) == TOGETHER:
            wrong += _judged(group, done)
            group.clear()
            print(f"{len(done)} plans, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)
    for group in waiting.values():
        wrong += _judged(group, done) if group else 0
    _print_totals(done, wrong, occurred)
    return wrong


def _judged(group: list[Drawn], done: list[Verdict]) -> int:
    """How many plans of a group are wrong; if ranks fail, each is run by itself."""
    try:
        found = verdicts(group)
    except RankError as error:
        if len(group) == 1:
            print(f"FAILED {group[0].key}: {group[0].plan.options}\n{error}")
            return 1
        return sum(_judged([own], done) for own in group)
    done += found
    bad = [own for own in found if not own.right]
    for own in bad:
        print("WRONG", own)
    return len(bad)


def _print_totals(done: list[Verdict], wrong: int, occurred: Counter[str]) -> None:
    print(f"\n{len(done)} plans ran, {wrong} wrong; each occurred in so many plans:")
    for word, count in sorted(occurred.items()):
        print(f"  {count:4d}  {word}")
    print(f"largest error of a loss: {max(done, key=lambda own: own.loss)}")
    print(f"largest error of a gradient: {max(done, key=lambda own: own.gradient)}")
    print(f"largest error of a parameter: {max(done, key=lambda own: own.parameter)}")
    sent = sum(own[0] for verdict in done for own in verdict.sent)
    print(f"bytes sent in a step, all plans and ranks: {sent}; each rank's as predicted if right")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
