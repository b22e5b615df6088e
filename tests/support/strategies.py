"""Hypothesis strategies for the nouns."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from meshwright.base.integers import factorizations
from meshwright.base.quantities import Bytes, BytesPerSecond, OpsPerSecond, Seconds
from meshwright.cluster.cluster import WHOLE, Cluster, Device, Level, Link
from meshwright.cost.pattern import Digit, Pattern, PatternUse

DEVICE = Device(
    name="test",
    memory=Bytes(1 << 30),
    memory_bandwidth=BytesPerSecond(1e9),
    peak=(("fp32", OpsPerSecond(1e12)),),
)
NAMES = ("pod", "rack", "node", "socket", "gpu")


@st.composite
def links(draw: st.DrawFn, name: str, owners: tuple[str, ...], inner: bool) -> Link:
    out = draw(st.sampled_from((1e9, 2e9, 7e9, 25e9)))
    half = draw(st.booleans())
    into = out if half else draw(st.sampled_from((1e9, 3e9, 25e9)))
    return Link(
        name=name,
        per=draw(st.sampled_from(owners)),
        out=BytesPerSecond(out),
        into=BytesPerSecond(into),
        latency=Seconds(draw(st.sampled_from((0.0, 1e-6, 5e-6)))),
        duplex="half" if half else "full",
        hub=False,
        outward=inner and draw(st.booleans()),
    )


def _fitting(link: Link, inner_owners: tuple[str, ...], outward: bool) -> Link:
    """A port may be outward; a medium has one bandwidth."""
    if link.per in inner_owners:
        return msgspec.structs.replace(link, outward=outward)
    return msgspec.structs.replace(link, into=link.out)


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """Machines of one to four levels, some with a wired innermost level."""
    names = NAMES[-draw(st.integers(1, most)) :]
    levels = []
    for depth, name in enumerate(names):
        innermost = depth == len(names) - 1
        cardinality = draw(st.sampled_from((1, 2, 3, 4, 6) if innermost else (1, 2, 3, 4)))
        sizes = [d for d in (1, 2, 3) if innermost and cardinality % d == 0]
        chosen = [draw(st.sampled_from(sizes))] if innermost and draw(st.booleans()) else []
        levels.append((name, cardinality, tuple(("block", size) for size in chosen)))
    every = (WHOLE, *names, *(b for _, _, blocks in levels for b, _ in blocks))
    built = []
    for depth, (name, cardinality, blocks) in enumerate(levels):
        innermost = depth == len(names) - 1
        level_links = [
            draw(links(f"{name}-{i}", every, False)) for i in range(draw(st.integers(1, 2)))
        ]
        inner_owners = (
            *names[depth:],
            *(b for _, _, level_blocks in levels for b, _ in level_blocks),
        )
        level_links = [
            _fitting(link, inner_owners, draw(st.booleans()) and not innermost)
            for link in level_links
        ]
        if innermost:
            inside = (name, *(b for b, _ in blocks))
            level_links.append(draw(links(f"{name}-port", (name,), True)))
            level_links.append(draw(links(f"{name}-shared", inside, True)))
            if len(blocks) > 0 and draw(st.booleans()):
                hub = Link(
                    name="hub",
                    per="block",
                    out=BytesPerSecond(5e9),
                    into=BytesPerSecond(5e9),
                    hub=True,
                    outward=draw(st.booleans()),
                )
                level_links.append(hub)
            if draw(st.booleans()):
                ring = Link(
                    name="ring",
                    per=name,
                    out=BytesPerSecond(9e9),
                    into=BytesPerSecond(9e9),
                    kind="ring",
                )
                level_links.append(ring)
        built.append(
            Level(name=name, cardinality=cardinality, links=tuple(level_links), blocks=blocks)
        )
    machine = draw(st.sampled_from((None, *names)))
    return Cluster(name="random", levels=tuple(built), device=DEVICE, machine=machine)


@st.composite
def patterns(draw: st.DrawFn, cluster: Cluster) -> Pattern:
    """Concurrent groups on a cluster; possibly of one device."""
    levels = []
    for cardinality in cluster.hierarchy:
        radices = draw(st.sampled_from(list(factorizations(cardinality, (cardinality,) * 3))))
        uses = [draw(st.sampled_from(PatternUse)) for _ in radices]
        levels.append(tuple(Digit(r, u) for r, u in zip(radices, uses, strict=True)))
    return tuple(levels)
