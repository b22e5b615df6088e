"""Small sizes for any configuration, by the names that Transformers gives to sizes. Enters: the
defaults of a configuration. Leaves: settings of those that are sizes or rates of dropout.

The same structure at sizes that a CPU runs in milliseconds, and nothing drawn at random, so that a
run can be compared with one device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WIDTH, HEADS, FEED_FORWARD, LAYERS, VOCABULARY = 64, 4, 128, 2, 256

SIZES: tuple[tuple[str, int], ...] = (
    (r"(?!.*(conv|feat)).*layers|n_layer|num_layer|depth|.*num_blocks", LAYERS),
    (r".*(key_value|kv|query_groups).*heads?|.*multi_query_group_num", HEADS // 2),
    (r".*(?<!per_)heads?", HEADS),
    (r".*head_(dim|size|width)|d_kv|.*_head_dim", WIDTH // HEADS),
    (r"(.*_)?(ff|ffn|feed_?forward|intermediate|mlp|inner)_?(dim|size|hidden_size)?|n_inner|"
     r"d_ff|.*(ffn|ff)_dim|.*intermediate_size", FEED_FORWARD),
    (r".*hidden_(size|dim)|d_model|n_embd|(.*_)?embed(ding)?_(dim|size)|dim|width|.*_width|"
     r"projection_dim|.*_proj_(dim|size)|output_dim|d_embed|emb_dim", WIDTH),
    (r"(.*_)?vocab_size(_.*)?", VOCABULARY),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|.*n_routed_experts", 4),
    (r".*experts_per_(tok|token)|moe_k|moe_topk|num_selected_experts", 2),
    (r".*image_size|.*img_size", 32),
    (r"num_frames|frames_per_clip", 4),
    (r"(.*_)?num_query_tokens|num_queries|num_latents", 8),
    (r".*max_.*positions?(_embeddings)?|n_positions|n_ctx", 512),
    (r".*max_source_positions|max_length", 64),
)
"""The largest that a size may be, by the whole name of a setting; the last that fits decides."""

LISTS: tuple[tuple[str, int], ...] = (
    (r".*depths|.*num_layers|layers|num_blocks", 1),
    (r".*(hidden_sizes|embed_dims?|channels|dims?|conv_dim|widths?)", 32),
)
"""The same for settings that have a number for each stage."""

RATE = re.compile(r".*(drop|dropout|layerdrop).*|.*_(dropout|drop)(_rate|_prob)?|.*pdrop")
TOKEN = re.compile(r".*token_(id|index)|.*_(bos|eos|pad)_id")


def shrunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration small.

    >>> shrunk({"num_hidden_layers": 32, "hidden_size": 4096, "hidden_dropout": 0.1, "name": "x"})
    {'num_hidden_layers': 2, 'hidden_size': 64, 'hidden_dropout': 0.0}
    """
    small = {name: _small(name, value) for name, value in settings.items()}
    return {name: value for name, value in small.items() if value != settings[name]}


def _small(name: str, value: Any) -> Any:
    match value:
        case bool():
            return value
        case int() if TOKEN.fullmatch(name):
            return value if value < VOCABULARY else _token(name)
        case int() if value > 0:
            return min(value, _limit(name, value))
        case float() if RATE.fullmatch(name):
            return 0.0
        case list() | tuple() if value and all(type(one) is int for one in value):
            return type(value)(min(one, _limit(name, one, LISTS)) for one in value)
        case Mapping() if "model_type" in value:
            return shrunk(value)
        case _:
            return value


def _limit(name: str, otherwise: int, sizes: tuple[tuple[str, int], ...] = SIZES) -> int:
    fitting = [size for pattern, size in sizes if re.fullmatch(pattern, name)]
    return fitting[-1] if fitting else otherwise


def _token(name: str) -> int:
    """An id inside of a small vocabulary, another for each name, if not always."""
    return VOCABULARY - 1 - sum(map(ord, name)) % (VOCABULARY // 2)
