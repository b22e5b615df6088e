"""Error bands of predicted steps against published ones, in words. Enters: a plan, how many times
as fast it is. Leaves: a sentence, a part of a document (`validate.bands` has the figures).
"""

from __future__ import annotations

from meshwright.plan.plan import Plan
from meshwright.report.documents import Document
from meshwright.validate.bands import band_of, inside


def describe_band(
    plan: Plan, step: float, faster: float | None = None, than: str = ""
) -> list[str]:
    """The band of a plan's step, and whether a gain is inside of it; nothing if nobody knows."""
    band = band_of(plan.cluster, plan, step)
    if band is None:
        return []
    text = f"error of such steps: {band}"
    if faster is not None and faster > 1 and inside(band, faster):
        text += f"; {faster:.2f}x as fast as {than} is inside of that"
    return [text]


def band_document(plan: Plan, step: float) -> Document | None:
    """The band of a plan's step, for scripts."""
    band = band_of(plan.cluster, plan, step)
    if band is None:
        return None
    return {"share": band.share, "rows": band.rows, "of": band.of}
