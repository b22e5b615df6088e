"""Small sizes for any configuration, by the names that Transformers gives to sizes. Enters: the
defaults of a configuration. Leaves: settings of those that are sizes or rates of dropout.

The same structure at sizes that a CPU runs in milliseconds, and nothing drawn at random, so that a
run can be compared with one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH, HEADS, FEED_FORWARD, LAYERS, VOCABULARY = 64, 4, 128, 2, 256

Limits = tuple[tuple[str, int], ...]

OF_A_HEAD = r".*head_(dim|size|width)|d_kv|(.*_)?d_head|rotary_(dim|ndims)|.*lora_rank"
WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim")
"""Names of a model's width, of which each head has its share."""

GROUPS, QUERIES = (
    r".*(key_value|kv|query_groups).*heads?|multi_query_group_num",
    r"(?!.*(key_value|kv)).*(?<!per_)heads?",
)
DEPTH = r"(?!.*(conv|feat)).*layers|n_layer|num_layer|depth|.*num_blocks"

SIZES: Limits = (
    (GROUPS, HEADS // 2),
    (QUERIES, HEADS),
    (r".*head_(dim|size|width)|d_kv|(.*_)?d_head", WIDTH // HEADS),
    (r"rotary_(dim|ndims)", WIDTH // HEADS // 2),
    (
        r"(.*_)?(ff|ffn|feed_?forward|intermediate|mlp|inner)_?(dim|size|hidden_size)?"
        r"|n_inner|d_ff",
        FEED_FORWARD,
    ),
    (
        r".*hidden_(size|dim)|d_model|n_embd|(.*_)?embed(ding)?_(dim|size)|dim|(.*_)?width"
        r"|(.*_)?projection_dim|.*_proj_(dim|size)|output_dim|d_embed|emb_dim|.*bottleneck_size",
        WIDTH,
    ),
    (r"coordinate_size", 12),
    (r"shape_size", 8),
    (r".*condition_dim", WIDTH),
    (r".*lora_rank", WIDTH // HEADS),
    (r"(.*_)?vocab_size(_.*)?", VOCABULARY),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|.*n_routed_experts", 4),
    (r".*experts_per_(tok|token)|moe_k|moe_topk|num_selected_experts", 2),
    (r"label_length", 4),
    (r"n_group", 2),
    (r"topk_group", 1),
    (r"first_k_dense_replace", 1),
    (r".*image_size|.*img_size", 32),
    (r"mm_tokens_per_image", 4),
    (r"num_frames|frames_per_clip", 4),
    (r"(.*_)?num_query_tokens|num_queries|num_latents", 8),
    (r".*max_.*positions?(_embeddings)?|n_positions|n_ctx", 512),
    (r".*max_source_positions|max_length", 64),
)
"""The largest that a size may be, by the whole name of a setting; the last that fits decides."""

LISTS: Limits = (
    (r".*depths|.*num_layers|layers|num_blocks", 1),
    (r".*heads", 2),
    (r".*image_size", 32),
    (r".*(hidden_sizes|embed_dims?|channels|dims?|conv_dim|widths?)", 32),
    (r"decoder_in_channels", WIDTH),
)
"""The same for settings that have a number for each stage."""

CHOSEN: Limits = (
    (r".*classifier_dropout", 0),
    (r".*key_value_heads", HEADS // 2),
    (r"head_dim", WIDTH // HEADS),
    (r"vocab_size", VOCABULARY),
    (r".*experts_per_tok|top_k_experts", 2),
    (r"num_experts", 4),
    (r"moe_intermediate_size", FEED_FORWARD),
    (r"image_token_(id|index)", VOCABULARY - 1),
)
"""What is taken where a configuration has nothing and no model can be built without."""

RATE = re.compile(r".*drop.*|mask_(time|feature)_prob")
TOKEN = re.compile(r".*token_(id|index)|.*_(bos|eos|pad)_id")
OF_LAYERS = re.compile(r".*(indices|layers)")


def narrow_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration narrow, with all of its layers."""
    return _shrunk(settings, VOCABULARY)


def small_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration small.

    >>> small_settings({"num_hidden_layers": 32, "hidden_size": 4096, "hidden_dropout": 0.1})
    {'num_hidden_layers': 2, 'hidden_size': 64, 'hidden_dropout': 0.0}
    """
    return _shrunk(settings, max(LAYERS, *_named_layers(settings), 0))


def fewer_heads_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration small and leave every head as wide as it is, for those
    that name parts of a head one by one (sections of rotary angles, say).

    >>> fewer_heads_settings({"num_attention_heads": 32, "hidden_size": 4096, "head_dim": 128})
    {'num_attention_heads': 4, 'hidden_size': 512}
    """
    return _with_whole_heads(settings, small_settings(settings))


def padded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration small, with a token of padding where it has none."""
    missing = "pad_token_id" in settings and settings["pad_token_id"] is None
    return small_settings(settings) | ({"pad_token_id": 1} if missing else {})


def shallow_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that leave a configuration as wide as it is, with few layers and words."""
    layers = max(LAYERS, *_named_layers(settings), 0)
    return _kept(
        _shrunk(settings, layers), rf"{DEPTH}|.*vocab_size.*|{TOKEN.pattern}|{RATE.pattern}"
    )


def _kept(small: Mapping[str, Any], names: str) -> dict[str, Any]:
    """The settings that have one of these names, those of parts too."""
    parts = {n: _kept(v, names) for n, v in small.items() if isinstance(v, Mapping)}
    return {n: v for n, v in small.items() if re.fullmatch(names, n)} | parts


def _with_whole_heads(settings: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    resized = {n: v for n, v in small.items() if not re.fullmatch(OF_A_HEAD, n)}
    for name, value in small.items():
        if isinstance(value, Mapping):
            resized[name] = _with_whole_heads(settings[name], value)
    width = next((n for n in WIDTHS if type(settings.get(n)) is int), None)
    heads = next(
        (n for n, v in settings.items() if type(v) is int and v > 0 and re.fullmatch(QUERIES, n)),
        None,
    )
    if width is not None and heads is not None:
        size = settings.get("head_dim") or settings[width] // settings[heads]
        resized[width] = min(size * resized.get(heads, settings[heads]), settings[width])
    return resized


def _shrunk(settings: Mapping[str, Any], layers: int) -> dict[str, Any]:
    depths = {v for n, v in settings.items() if type(v) is int and re.fullmatch(DEPTH, n)}
    heads = {v for n, v in settings.items() if type(v) is int and re.fullmatch(QUERIES, n)}
    small = {name: _small(name, value, layers) for name, value in settings.items()}
    for name, value in settings.items():
        if re.fullmatch(GROUPS, name) and type(value) is int and value in heads:
            # One for each head, which latent attention takes for granted.
            small[name] = min(value, HEADS)
    for name, value in settings.items():
        if isinstance(value, list | tuple) and len(value) in depths and len(value) > layers:
            small[name] = small[name][:layers]
    return {name: value for name, value in small.items() if value != settings[name]}


def _named_layers(settings: Mapping[str, Any]) -> Iterator[int]:
    """How many layers there must be for those that settings name one by one."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and "model_type" in value:
            yield from _named_layers(value)
        elif OF_LAYERS.fullmatch(name) and _are_whole(value):
            yield max(layer + 1 if layer >= 0 else -layer for layer in value)


def _are_whole(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(type(o) is int for o in value)


def _small(name: str, value: Any, layers: int) -> Any:
    match value:
        case bool():
            return value
        case None:
            return _limit(name, CHOSEN, value)
        case int() if TOKEN.fullmatch(name):
            return value if value < VOCABULARY else _token(name)
        case int() if value > 0 and re.fullmatch(DEPTH, name):
            return min(value, layers)
        case int() if value > 0:
            return min(value, _limit(name, SIZES, value))
        case float() if RATE.fullmatch(name):
            return 0.0
        case [float(), *_] if RATE.fullmatch(name):
            return [0.0] * len(value)
        case list() | tuple() if _are_whole(value):
            return _small_list(name, value)
        case Mapping() if "model_type" in value:
            return _shrunk(value, layers)
        case _:
            return value


def _small_list(name: str, value: Sequence[int]) -> Sequence[int]:
    return type(value)(min(size, _limit(name, LISTS, size)) for size in value)  # type: ignore[call-arg]


def _limit(name: str, limits: Limits, otherwise: Any) -> Any:
    fitting = [size for pattern, size in limits if re.fullmatch(pattern, name)]
    return fitting[-1] if fitting else otherwise


def _token(name: str) -> int:
    """An id inside of a small vocabulary, another for each name, if not always."""
    return VOCABULARY - 2 - sum(map(ord, name)) % (VOCABULARY // 2)
