"""Settings of a configuration, nested ones too. Enters: a configuration's class and settings by
name, as `hidden_size` or `text_config.hidden_size`. Leaves: the configuration.

A plain name that only parts of a configuration have is set in all of them. What is not set keeps
its default; what Transformers derives from others (the kind of each layer, say) is derived anew,
so that a configuration is always made by its own class and never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.base.errors import InputError, nearest
from meshwright.capture.transformers.classes import Choice

Settings = Mapping[str, Any]
"""By name; a part of a configuration is a mapping of its own."""

TRAINING: Settings = {"use_cache": False}
"""Keys and values of earlier steps serve generation, not training."""

ALWAYS = frozenset({"num_labels"})
"""Settings of every configuration that are no fields of it."""

KIND = "model_type"


def configurations(
    choice: Choice,
    options: Mapping[str, object],
    others: Sequence[Callable[[Settings], Settings]],
    source: str,
) -> Iterator[Any]:
    """The configurations with these settings, and with others that are told from the defaults of
    all, in turn; those that the class takes.
    """
    try:
        default = choice.config()
    except Exception as error:
        raise InputError(
            f"{choice.config.__name__} has no defaults: {' '.join(str(error).split())}",
            "write a function that returns the model and its inputs, and give that",
        ) from error
    wanted, known = _placed(default, options), default.to_dict()
    refused: Exception | None = None
    taken = 0
    for other in others:
        settings = _with_tokens(choice, known, joined(other(known), wanted))
        try:
            config = choice.config(**_complete(default, settings))
        except Exception as error:
            refused = refused or error
            continue
        taken += 1
        yield config
    if taken:
        return
    raise InputError(
        f"{choice.config.__name__} refuses the settings of {source!r}: "
        f"{' '.join(str(refused).split())}",
        "give values that Transformers takes",
    ) from refused


def _with_tokens(choice: Choice, known: Settings, settings: Settings) -> Settings:
    """Settings with the special tokens that training needs."""
    if "SequenceClassification" in choice.model.__name__ and known.get("pad_token_id") is None:
        # The last token that is no padding is classified.
        settings = joined({"pad_token_id": 0}, settings)
    if isinstance(languages := known.get("languages"), list | tuple) and languages:
        settings = joined({"default_language": languages[0]}, settings)
    if known.get("is_encoder_decoder"):
        start = settings.get("pad_token_id", known.get("pad_token_id")) or 0
        settings = joined({"decoder_start_token_id": start, "pad_token_id": start}, settings)
    return settings


def joined(first: Settings, second: Settings) -> dict[str, Any]:
    """Settings of both; the second's where both have one.

    >>> joined({"a": 1, "part": {"b": 2, "c": 3}}, {"part": {"b": 4}})
    {'a': 1, 'part': {'b': 4, 'c': 3}}
    """
    both = dict(first)
    for key, value in second.items():
        before = both.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            both[key] = joined(before, value)
        else:
            both[key] = value
    return both


def parts_of(config: Any) -> dict[str, Any]:
    """The configurations inside of a configuration, by name."""
    sections = {name: getattr(config, name, None) for name in config.sub_configs}
    return {name: part for name, part in sections.items() if hasattr(part, "to_dict")}


def _placed(config: Any, options: Mapping[str, object]) -> dict[str, Any]:
    """Options as settings of the part that each belongs to."""
    placed: dict[str, Any] = {}
    for key, value in options.items():
        paths = list(_paths(config, key.split(".")))
        if not paths:
            known = [".".join(path) for path in _all_paths(config)]
            raise InputError(f"{type(config).__name__} has no setting {key!r}", nearest(key, known))
        for path in paths:
            setting: Any = value
            for name in reversed(path):
                setting = {name: setting}
            placed = joined(placed, setting)
    return placed


def _paths(config: Any, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Where a setting lies: here, in the part that is named, or else in every part that has it."""
    first, *rest = names
    parts = parts_of(config)
    if rest:
        if first in parts:
            yield from ((first, *path) for path in _paths(parts[first], rest))
        return
    key = config.attribute_map.get(first, first)
    if (key in config.to_dict() or key in ALWAYS) and key not in parts:
        yield (key,)
        return
    for name, part in parts.items():
        yield from ((name, *path) for path in _paths(part, names))


def _all_paths(config: Any) -> Iterator[tuple[str, ...]]:
    parts = parts_of(config)
    for name in config.to_dict():
        if name not in parts and not name.startswith("_"):
            yield (name,)
    for name, part in parts.items():
        yield from ((name, *path) for path in _all_paths(part))


def _complete(config: Any, settings: Settings) -> dict[str, Any]:
    """Settings with what a part needs beside them: its type, and its defaults inside of a whole,
    which may be others than those that it has alone.
    """
    known = config.to_dict()
    merged = {key: value for key, value in TRAINING.items() if key in known} | dict(settings)
    for name, part in parts_of(config).items():
        alone = type(part)().to_dict()
        changed = {
            key: value
            for key, value in part.to_dict().items()
            if key not in parts_of(part) and alone.get(key) != value
        }
        within = joined(changed, _complete(part, settings.get(name, {})))
        merged[name] = {KIND: part.model_type, **within}
    return merged
