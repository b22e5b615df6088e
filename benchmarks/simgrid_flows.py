"""Prices of collectives against SimGrid, an independent simulator of networks (Casanova et al.
2014). Enters: how many steps to draw, and a seed. Leaves: for each operation our seconds over
SimGrid's.

A step is one collective on random groups of a random machine of two to four levels. A level has for
each instance a port that everything crosses on its way out (`outward`), full or half duplex, or one
bus for all that its instances send each other. SimGrid gets hosts, ports and buses as links, the
route of every pair up to where both ways meet and down again, and each transfer as a flow; all
begin at once and share links fairly. The transfers are listed device by device in
`tests/support/links.py`, which knows nothing of how prices are counted by level.

    apt-get install python3-simgrid
    PYTHONPATH=src:tests python benchmarks/simgrid_flows.py 300 0

SimGrid lives in the system's Python: this file runs itself there (`--solve`), with the steps as
JSON.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

BYTES = 1e9
"""That each member holds."""

KINDS = ("full", "half", "bus")


def drawn(count: int, seed: int) -> list[dict[str, Any]]:
    """So many steps, each with its links, flows and our price."""
    from meshwright.base.quantities import BytesPerSecond
    from meshwright.cluster.cluster import Cluster, Level, Link
    from meshwright.cost.alpha_beta import Pricer
    from meshwright.cost.backend import NCCL, RINGS, Algorithm
    from meshwright.cost.collective import Collective, Movement
    from meshwright.cost.pattern import Digit, PatternUse, groups, members
    from support.links import coordinates, rounds_of_transfers
    from support.strategies import DEVICE, NAMES

    chance, outermost = random.Random(seed), ""
    operations = [*Collective, *Movement, "tree"]

    def level(name: str) -> Level:
        rate = BytesPerSecond(chance.choice((1e9, 2e9, 4e9, 10e9, 25e9)))
        kind = chance.choices(KINDS, (8, 2, 2))[0]
        outside = ("cluster", *NAMES)[NAMES.index(name)] if name != outermost else "cluster"
        link = Link(
            name=f"{name}-{kind}",
            per=outside if kind == "bus" else name,
            out=rate,
            into=rate,
            duplex="half" if kind == "half" else "full",
            outward=kind != "bus",
        )
        return Level(name=name, cardinality=chance.choice((2, 3, 4)), links=(link,))

    steps: list[dict[str, Any]] = []
    while len(steps) < count:
        names = NAMES[-chance.choice((2, 3, 4)) :]
        outermost = names[0]
        levels = tuple(map(level, names))
        cluster = Cluster(name="random", levels=levels, device=DEVICE, machine=names[-2])
        pattern = tuple(
            (Digit(cardinality, chance.choice(list(PatternUse))),)
            for cardinality in cluster.hierarchy
        )
        size = math.prod(map(members, pattern))
        if size == 1:
            continue
        kind = chance.choice(operations)
        tree = kind == "tree"
        operation = Collective.ALL_REDUCE if isinstance(kind, str) else kind
        algorithm: Algorithm = "tree" if tree else "ring"
        backend = RINGS if chance.random() < 0.2 and not tree else NCCL
        phases = backend.phases(operation, algorithm)[0]
        flows = []
        for group in groups(pattern):
            for phase in phases:
                share = operation.size(phase.share(size), size)
                for moved in rounds_of_transfers(phase.shape, group, cluster):
                    flows += [(a, b, weight * share * BYTES) for a, b, weight in moved]
        line = Pricer(cluster, backend, algorithm).lines(operation, pattern)[0]
        steps.append(
            {
                "name": "AllReduce, tree" if isinstance(kind, str) else operation.value,
                "machine": "x".join(map(str, cluster.hierarchy)),
                "ours": line.per_byte * BYTES,
                "rates": [tier.links[0].out for tier in levels],
                "kinds": [tier.links[0].name.partition("-")[2] for tier in levels],
                "places": [coordinates(cluster, device) for device in range(cluster.devices)],
                "flows": flows,
            }
        )
    return steps


class Machine:
    """The hosts and links of one step."""

    def __init__(self, simgrid: Any, zone: Any, number: int, step: dict[str, Any]) -> None:
        self._simgrid, self._zone, self._number = simgrid, zone, number
        self._places, self._rates = step["places"], step["rates"]
        self._kinds = step["kinds"]
        self.hosts = [zone.create_host(f"{number}.{i}", 1e9) for i in range(len(self._places))]
        self._links: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._routed: set[tuple[int, int]] = set()

    def route(self, source: int, target: int) -> None:
        """Have a way from one host to another."""
        if (source, target) in self._routed:
            return
        self._routed.add((source, target))
        from_place, to_place = self._places[source], self._places[target]
        meet = next(i for i, (x, y) in enumerate(zip(from_place, to_place, strict=True)) if x != y)
        depths = [d for d in range(len(from_place) - 1, meet - 1, -1) if self._kinds[d] != "bus"]
        path = [self._link("up", from_place, depth) for depth in depths]
        path += [self._link("bus", from_place, meet)] * (self._kinds[meet] == "bus")
        path += [self._link("down", to_place, depth) for depth in reversed(depths)]
        ends = self.hosts[source].netpoint, self.hosts[target].netpoint
        self._zone.add_route(*ends, None, None, list(map(self._simgrid.LinkInRoute, path)), False)

    def _link(self, way: str, place: Sequence[int], depth: int) -> Any:
        """The port of an instance of a level, one for both ways if it is half duplex; a bus belongs
        to the instance outside.
        """
        kind = self._kinds[depth]
        owner = tuple(place[: depth + (kind != "bus")])
        key = way if kind == "full" else kind, (depth, *owner)
        if key not in self._links:
            link = self._zone.create_link(f"{self._number}.{key}", self._rates[depth])
            self._links[key] = link.set_latency(0).seal()
        return self._links[key]


def solved(steps: list[dict[str, Any]]) -> list[float]:
    """SimGrid's seconds of each step; all steps run in one simulation, on hosts of their own."""
    import simgrid  # type: ignore[import-not-found]

    options = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0")
    words = ["bench", "--log=root.thres:error", *(f"--cfg={option}" for option in options)]
    engine, zone = simgrid.Engine(words), simgrid.NetZone.create_full_zone("all")
    ends = [0.0] * len(steps)

    def sender(box: str, size: float) -> None:
        simgrid.Mailbox.by_name(box).put("", int(size))

    def receiver(box: str, number: int) -> None:
        simgrid.Mailbox.by_name(box).get()
        ends[number] = max(ends[number], simgrid.Engine.clock)

    machines = [Machine(simgrid, zone, number, step) for number, step in enumerate(steps)]
    for machine, step in zip(machines, steps, strict=True):
        for source, target, _ in step["flows"]:
            machine.route(source, target)
    zone.seal()
    for number, (machine, step) in enumerate(zip(machines, steps, strict=True)):
        for flow, (source, target, size) in enumerate(step["flows"]):
            box = f"{number}.{flow}"
            simgrid.Actor.create(f"s{box}", machine.hosts[source], sender, box, size)
            simgrid.Actor.create(f"r{box}", machine.hosts[target], receiver, box, number)
    engine.run()
    return ends


def main(count: int, seed: int) -> None:
    """Print a line for each operation."""
    steps = drawn(count, seed)
    command = ["/usr/bin/python3", __file__, "--solve"]
    text = json.dumps(steps)
    completed = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    seconds = json.loads(completed.stdout.splitlines()[-1])
    ratios: dict[str, list[float]] = {}
    for step, theirs in zip(steps, seconds, strict=True):
        ratios.setdefault(step["name"], []).append(step["ours"] / theirs)
    print(f"{'ours / SimGrid':<18} steps  within 0.1 %  least  median  most")
    for name, step_ratios in sorted(ratios.items()):
        exact = sum(abs(ratio - 1) < 1e-3 for ratio in step_ratios)
        middle = statistics.median(step_ratios)
        least, most = min(step_ratios), max(step_ratios)
        print(
            f"{name:<18} {len(step_ratios):>5}  {exact:>12}  {least:>5.3f}  {middle:>6.3f}  "
            f"{most:>4.3f}"
        )


if __name__ == "__main__":
    if sys.argv[1] == "--solve":
        print(json.dumps(solved(json.load(sys.stdin))))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
