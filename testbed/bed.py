"""A testbed. Enters: a `Cluster`. Leaves: what the ranks on it return, and the bytes that crossed
its edges. What can be emulated is decided in `tiers`, what is laid in `tree`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType

from meshwright.base.quantities import BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.run.launch.ranks import PATIENCE, Home, run_ranks
from testbed import netlink, tree
from testbed.counters import Carried, read_counters
from testbed.owners import Owner
from testbed.removal import remove, remove_leftovers
from testbed.tiers import inside_rate, tiers


class Testbed:
    """A cluster as a tree of network namespaces, for as long as it is entered.

    >>> with Testbed(Cluster.load("testbed/clusters/2x4.toml")) as bed:  # doctest: +SKIP
    ...     results = bed.run(body)
    """

    __test__ = False  # pytest would take the name for a class of tests.

    def __init__(
        self, cluster: Cluster, *, inside: bool = False, owner: Owner | None = None
    ) -> None:
        """With `inside`, loopbacks too are limited, to the rate of the innermost level's links.

        The owner is this process if nothing else is said.
        """
        self.cluster = cluster
        self._edges = tree.edges(tiers(cluster))
        self._inside = inside_rate(cluster) if inside else None
        name = partial((owner or Owner.this()).name, secrets.token_hex(3))
        self.fabric = name(tree.FABRIC)
        self.leaves = tuple(name(f"leaf{e.instance}") for e in self._edges if e.below is None)

    def up(self) -> None:
        """Lay the network. What a failure leaves is removed, and so is what dead owners left."""
        netlink.require_available()
        remove_leftovers()
        try:
            _lay(self.fabric, self.leaves, self._edges, self._inside)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Remove the network and end what runs in it."""
        remove((*self.leaves, self.fabric))

    def __enter__(self) -> Testbed:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def run(
        self,
        body: Callable[..., object],
        *arguments: object,
        gpus: int = 0,
        environment: Mapping[str, str] | None = None,
        timeout: Seconds = PATIENCE,
    ) -> list[object]:
        """What each rank returns; rank i is device i of the cluster, in row-major order.

        Ranks use gloo, or NCCL on so many GPUs that they share. Those of a leaf have one address,
        and what they send each other goes over its loopback. The environment is set in each rank
        before its libraries read it.
        """
        members = self.cluster.levels[-1].cardinality
        homes = tuple(leaf for leaf in self.leaves for _ in range(members))
        enter = partial(go_home, homes, dict(environment or {}))
        home = Home(tree.address(0), tree.INTERFACE, enter, gpus)
        return run_ranks(body, *arguments, ranks=len(homes), home=home, timeout=timeout)

    def counters(self) -> tuple[Carried, ...]:
        """Bytes that crossed each edge so far, outer levels first."""
        return read_counters(self.fabric, self._edges)


def _lay(
    fabric: str,
    leaves: Sequence[str],
    edges: Sequence[tree.Edge],
    inside: BytesPerSecond | None,
) -> None:
    for name in (fabric, *leaves):
        netlink.add_namespace(name)
    netlink.add_switches(fabric, tree.switches(edges))
    netlink.add_cables(fabric, edges, leaves)
    netlink.limit(fabric, tree.fabric_buckets(edges))
    rates = [edge.out for edge in edges if edge.below is None]
    for leaf, (name, rate) in enumerate(zip(leaves, rates, strict=True)):
        netlink.join(name, tree.address(leaf))
        loopback = () if inside is None else (tree.bucket("lo", inside),)
        netlink.limit(name, (tree.bucket(tree.INTERFACE, tree.on_the_wire(rate)), *loopback))


def go_home(homes: Sequence[str], environment: Mapping[str, str], rank: int) -> None:
    """Move this process, which has no socket yet, to where a rank lives."""
    told(environment, rank)
    netlink.enter(homes[rank])


def told(environment: Mapping[str, str], rank: int) -> None:
    """Set the environment of a rank."""
    os.environ |= environment
