"""The model that Megatron's flags describe. Enters: flags by name. Leaves: the source of a model of
the zoo with those sizes, and the counts that a model given besides must have. Reads no file.

Flags of a gated layer (--swiglu) mean Llama's structure, with experts Mixtral's, all others that
of GPT, whose inner layers are four times as wide.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base.errors import InputError
from meshwright.base.integers import parse_whole

SIZES = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "key_value_heads",
    "ffn-hidden-size": "inner",
    "seq-length": "sequence",
    "vocab-size": "vocabulary",
    "num-experts": "experts",
    "moe-router-topk": "chosen",
    "swiglu": "",
    "group-query-attention": "",
    "max-position-embeddings": "",
}
"""Flags of the model, by what the zoo calls them."""

NEEDED = ("layers", "hidden", "heads", "sequence")

SAID = {
    "num-layers": "layers",
    "num-attention-heads": "heads",
    "num-query-groups": "key_value_heads",
    "seq-length": "positions",
    "num-experts": "experts",
}
"""Flags of counts that degrees must divide, by the name of the fact."""

Values = Mapping[str, str | None]


def model_source_of_flags(values: Values) -> str | None:
    """The source of a model with the sizes that are given, if they are enough.

    >>> model_source_of_flags({"num-layers": "24", "hidden-size": "1024",
    ...                        "num-attention-heads": "16", "seq-length": "1024"})
    'zoo:gpt3-175b?layers=24&hidden=1024&heads=16&sequence=1024'
    """
    sizes = {ours: _whole(values, name) for name, ours in SIZES.items() if ours and name in values}
    if not all(name in sizes for name in NEEDED):
        return None
    if "swiglu" in values:
        base = "mixtral-8x7b" if "experts" in sizes else "llama3-8b"
        sizes.setdefault("key_value_heads", sizes["heads"])
        sizes.setdefault("inner", _gated(sizes["hidden"]))
    else:
        base = "gpt3-175b"
        if sizes.pop("inner", 4 * sizes["hidden"]) != 4 * sizes["hidden"] or "experts" in sizes:
            return None
        sizes.pop("key_value_heads", None)
        sizes.pop("chosen", None)
    return f"zoo:{base}?" + "&".join(f"{name}={value}" for name, value in sizes.items())


def stated_sizes(values: Values) -> tuple[tuple[str, int], ...]:
    """The counts that are given, as facts."""
    return tuple((fact, _whole(values, name)) for name, fact in SAID.items() if name in values)


def _gated(hidden: int) -> int:
    """Megatron's inner width of a gated layer: 8/3 of the hidden one, in steps of 64."""
    return 4 * hidden * 2 // 3 // 64 * 64


def _whole(values: Values, name: str) -> int:
    text = values[name] or ""
    try:
        return parse_whole(text)
    except InputError:
        raise InputError(
            f"--{name} is {text!r}", "write a number, or assign the variable in the same file"
        ) from None
