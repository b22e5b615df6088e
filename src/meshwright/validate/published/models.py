"""Model of a published row: a transformer of the zoo with its sizes. Enters: a row. Leaves: a
structure of the zoo with its sizes, or why there is none.

    gated layers (Llama, Qwen, Gemma, ...)      zoo:llama3-8b
    experts ("MoE 128 experts top 8")           zoo:mixtral-8x7b, with a shared expert and latent
                                                attention where the model has them
    all others (GPT, MPT, OPT, Nemotron-4)      zoo:gpt3-175b, projections of queries, keys and
                                                values apart, as Megatron orders their columns

Approximate, since the zoo has no other structure: first layers without experts are taken as layers
with them (as many weights are used by a token); where every other layer has experts, all have half
as many; where some layers attend to a window, all attend to as many positions as they on average.
"""

from __future__ import annotations

import re

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.validate.published.rows import PublishedRow
from meshwright.validate.published.shapes import PublishedSizes, Structure

GATED = ("llama", "codellama", "qwen", "gemma", "mixtral", "mistral", "deepseek", "kimi", "grok")
WIDTHS = {"qwen3": 128, "gpt-oss": 64, "gemma3": 256}
"""Widths of heads that are not the hidden width over heads, by how a model's name begins."""
LATENT = {"query_rank": 1536, "latent": 512, "rotary": 64, "width": 128}
"""DeepSeek-V3's and Kimi-K2's attention, from their papers."""
WINDOWS = {"gpt-oss": (128, 2), "gemma3": (1024, 6)}
"""Positions that layers attend to, and of how many layers one attends to all, from model cards."""
EXPERTS = re.compile(r"MoE (\d+) experts top (\d+)( \+ (?:1 )?shared)?")
USUAL_WIDTH = 128
PADDED = 128
"""Vocabularies are padded to so many words a device of the tensor axis."""

OTHERS = {
    "resnet": "a convolutional network, not a transformer",
    "dlrm": "a recommendation model, whose embeddings lie by HugeCTR's own plan",
    "bert": "its sequences are packed without padding, of lengths that are not given",
    "nemotron-h": "state-space layers (Mamba-2), which the zoo has no structure for",
}
"""Models that cannot be expressed, by how their names begin, and why."""


def shape_of(row: PublishedRow) -> PublishedSizes:
    """The model of a row; refuses what cannot be expressed."""
    for name, reason in OTHERS.items():
        if row.model.startswith(name):
            raise InputError(f"{row.model}: {reason}", "leave the row out")
    if row.layers is None or row.hidden is None or row.seq is None:
        raise InputError(
            f"{row.model}: layers, hidden or seq is missing or no whole number", "fill them in"
        )
    if row.layers < 2:
        raise InputError(f"{row.model}: {row.layers} layer does not repeat", "give 2 or more")
    heads, inner = _heads(row), row.ffn or 4 * row.hidden
    sizes = {
        "hidden": row.hidden,
        "heads": heads,
        "key_value_heads": row.kv_heads or heads,
        "sequence": row.seq,
        "vocabulary": _vocabulary(row),
        "inner": inner,
    }
    if heads % sizes["key_value_heads"]:
        raise InputError(
            f"{row.model}: {heads} heads on {sizes['key_value_heads']} heads of keys and values",
            "give heads that divide",
        )
    experts = EXPERTS.search(row.note)
    gated = row.model.startswith(GATED) or inner != 4 * row.hidden
    if experts is None and not gated:
        structure: Structure = "gpt" if sizes["key_value_heads"] == heads else "grouped gpt"
    else:
        sizes |= {"width": _width(row, heads)}
        structure = "llama"
    if experts is not None:
        sizes |= _experts(row, experts, inner)
        structure = "latent experts" if "latent" in sizes else "experts"
        if structure == "experts" and "shared" in sizes:
            structure = "shared experts"
    return PublishedSizes(
        structure=structure,
        layers=row.layers,
        sizes=tuple(sizes.items()),
        attended=_attended(row, row.seq),
    )


def _attended(row: PublishedRow, positions: int) -> float:
    """The share of a causal mask's scores that layers compute on average.

    With a window of w of s positions a layer computes  w s - w² / 2  of  s² / 2  scores.
    """
    for name, (window, of) in WINDOWS.items():
        if row.model.startswith(name) and window < positions:
            share = (2 * window * positions - window**2) / positions**2
            return round((1 + (of - 1) * share) / of, 4)
    return 1.0


def _experts(row: PublishedRow, match: re.Match[str], inner: int) -> dict[str, int]:
    """The sizes of a mixture."""
    count, chosen = int(match[1]), int(match[2])
    sizes = {"experts": count // 2 if "every other layer" in row.note else count, "chosen": chosen}
    if match[3] or "MLA" in row.note:
        sizes["shared"] = inner
    return sizes | (LATENT if "MLA" in row.note else {})


def _width(row: PublishedRow, heads: int) -> int:
    hidden = row.hidden or heads
    known = (width for name, width in WIDTHS.items() if row.model.startswith(name))
    return next(known, hidden // heads)


def _heads(row: PublishedRow) -> int:
    """As given; else of the usual width, or of the width nearest to it that tensor divides."""
    if row.heads is not None:
        return row.heads
    hidden, tensor = row.hidden or 1, row.tp or 1
    working = [n for n in divisors(hidden) if n % tensor == 0]
    return min(working or [1], key=lambda n: abs(hidden / n - USUAL_WIDTH))


def _vocabulary(row: PublishedRow) -> int:
    step = PADDED * (row.tp or 1)
    return -(-(row.vocab or 50_304) // step) * step
