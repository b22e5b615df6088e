"""How the time of the joint search grows with devices and with layers; draws a figure.

    python benchmarks/joint_growth.py

Each point is a new process. BERT-Large on nodes of 8 A100, 4 samples a device; GPT-2 XL with some
number of layers on 8 of them. CPU seconds are drawn, which others on the machine disturb least.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import NamedTuple

from joint_cases import Case, measured

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "joint_growth.svg"

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LAYERS = (2, 4, 8, 16, 32, 64, 96)

WIDTH, HEIGHT, LEFT, TOP = 300, 180, 48, 28
"""Pixels: of a curve's field, and what lies before it."""

STYLE = "font-family:sans-serif;font-size:11px;fill:#333"


class Point(NamedTuple):
    """A size and the CPU seconds of a search."""

    size: int
    seconds: float


def by_devices() -> Iterator[Point]:
    """BERT-Large on more and more devices."""
    for nodes in NODES:
        case = Case(model="zoo:bert-large", batch=32 * nodes, cluster=f"dgx-a100 node={nodes}")
        yield point("bert-large", case, 8 * nodes)


def by_layers() -> Iterator[Point]:
    """GPT-2 XL with more and more layers."""
    for layers in LAYERS:
        case = Case(
            model=f"zoo:gpt2-xl?layers={layers}", batch=256, cluster="dgx-a100 node=8", half=True
        )
        yield point("gpt2-xl", case, layers)


def point(name: str, case: Case, size: int) -> Point:
    """Measure and print one."""
    row = measured(case)
    print(
        f"{name:12} {size:7} {row.devices:8} {row.operators:9} {row.seconds:8.1f} {row.cpu:8.1f}"
        f"{row.step * 1e3:11.3f} {row.gap:7.1%}  {row.stopped}",
        flush=True,
    )
    return Point(size, row.cpu)


def drawn(curves: list[tuple[str, list[Point]]]) -> str:
    """An SVG with a field for each curve: sizes on a logarithmic axis, seconds from 0 on."""
    across, down = len(curves) * (LEFT + WIDTH) + 16, TOP + HEIGHT + 44
    fields = "".join(
        f'<g transform="translate({LEFT + n * (LEFT + WIDTH)} {TOP})">{_field(title, points)}</g>'
        for n, (title, points) in enumerate(curves)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}" height="{down}">'
        f'<rect width="100%" height="100%" fill="white"/>{fields}</svg>\n'
    )


def _field(title: str, points: list[Point]) -> str:
    first, last = log2(points[0].size), log2(points[-1].size)
    most = max(1.0, 1.15 * max(point.seconds for point in points))
    places = [
        ((log2(point.size) - first) / (last - first) * WIDTH, HEIGHT * (1 - point.seconds / most))
        for point in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f77b4"/>'
        f"{_text(x, y - 7, f'{point.seconds:.1f}')}{_text(x, HEIGHT + 15, f'{point.size:,}')}"
        for (x, y), point in zip(places, points, strict=True)
    )
    return (
        f'<path d="M0 0V{HEIGHT}H{WIDTH}" fill="none" stroke="#999"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>{marks}'
        f"{_text(WIDTH / 2, -10, 'CPU seconds of a search')}{_text(WIDTH / 2, HEIGHT + 33, title)}"
    )


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" style="{STYLE}">{words}</text>'


def main() -> None:
    """Print all points and draw both curves."""
    print("model           size  devices operators  seconds      CPU    step ms     gap")
    curves = [
        ("devices (BERT-Large)", list(by_devices())),
        ("layers (GPT-2 XL on 64 devices)", list(by_layers())),
    ]
    FIGURE.write_text(drawn(curves))
    print(f"drawn in {FIGURE.relative_to(FIGURE.parent.parent.parent)}")


if __name__ == "__main__":
    main()
