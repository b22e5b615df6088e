"""Reading a configuration of Transformers, whose names differ from model to model."""

from __future__ import annotations

from typing import Any

from meshwright.base.errors import InputError

MISSING = object()


def setting(config: Any, *names: str, otherwise: object = MISSING) -> Any:
    """The first of these settings that a configuration has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    if otherwise is MISSING:
        raise InputError(
            f"{type(config).__name__} has no {' or '.join(map(repr, names))}",
            "write a function that returns the model and its inputs, and give that",
        )
    return otherwise


def part(config: Any, *names: str) -> Any:
    """The part of a configuration that tells of one kind of input, or the whole."""
    for name in names:
        section = getattr(config, name, None)
        if hasattr(section, "to_dict"):
            return part(section, *names)
    return config


def text_part(config: Any) -> Any:
    """What a configuration says of text."""
    section = part(config, "text_config", "thinker_config")
    return section if hasattr(section, "vocab_size") else config.get_text_config()


def image_part(config: Any) -> Any:
    """What a configuration says of images."""
    return part(config, "vision_config", "image_config", "backbone_config", "encoder")


def sound_part(config: Any) -> Any:
    """What a configuration says of sounds."""
    return part(config, "audio_config", "speech_config", "encoder_config", "encoder")
