"""Image and video inputs of Transformers models, and their placeholder tokens in a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.capture.transformers.config_fields import image_part, setting

FRAMES, CHANNELS = 4, 3
"""What is taken where a configuration says nothing."""


def side(config: Any, otherwise: int) -> tuple[int, int]:
    """Height and width of an image."""
    image_config = image_part(config)
    size = setting(image_config, "image_size", "img_size", "input_size", otherwise=None)
    if size is None:
        size = setting(config, "image_size", otherwise=otherwise)
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def is_video(config: Any) -> bool:
    """Whether a configuration counts frames."""
    return isinstance(getattr(image_part(config), "num_frames", None), int)


def images(config: Any, batch: int, otherwise: int) -> Tensor:
    """An image for each sample."""
    return torch.randn(batch, _channels(config), *side(config, otherwise))


def videos(config: Any, batch: int, otherwise: int) -> Tensor:
    """A video for each sample."""
    frames = setting(image_part(config), "num_frames", "frames_per_clip", otherwise=FRAMES)
    return torch.randn(batch, frames, _channels(config), *side(config, otherwise))


def _channels(config: Any) -> int:
    names = ("num_channels", "in_channels", "in_chans", "num_input_channels")
    channels: int = setting(image_part(config), *names, otherwise=CHANNELS)
    return channels


def patches(config: Any, otherwise: int) -> int:
    """Into how many patches an image is cut."""
    image_config = image_part(config)
    high, wide = side(config, otherwise)
    size = setting(image_config, "patch_size", otherwise=16)
    down, across = (size, size) if isinstance(size, int) else (size[0], size[1])
    frames = setting(image_config, "num_frames", otherwise=1) // setting(
        image_config, "tubelet_size", otherwise=1
    )
    return int(frames * (high // down) * (wide // across))


def image_tokens(model: Any, text: Tensor, otherwise: int) -> Tensor:
    """A text with a place for each feature of its image before it."""
    token = setting(model.config, "image_token_id", "image_token_index", otherwise=None)
    if token is None:
        return text
    # The model counts these tokens, so that none may be there by chance.
    text = torch.where(text == token, text.new_zeros(()), text)
    places = torch.full((text.shape[0], _places(model, otherwise)), token, dtype=text.dtype)
    return torch.cat([places, text], dim=1)


def without_tokens(config: Any, text: Tensor) -> Tensor:
    """A text in which no place of an image or a sound is by chance."""
    for kind in ("image", "video", "audio"):
        token = setting(config, f"{kind}_token_id", f"{kind}_token_index", otherwise=None)
        if token is not None:
            text = torch.where(text == token, text.new_zeros(()), text)
    return text


def _places(model: Any, otherwise: int) -> int:
    """How many positions the features of an image take: the model itself is asked."""
    try:
        with torch.no_grad():
            features = model.get_image_features(pixel_values=images(model.config, 1, otherwise))
        held = getattr(features, "pooler_output", features)
        rows = held if isinstance(held, Tensor) else torch.cat(list(held))
    except Exception:
        # Without values some models cannot tell; those with learnt queries say how many.
        queries = setting(model.config, "num_query_tokens", otherwise=None)
        return int(queries or patches(model.config, otherwise))
    return rows.numel() // rows.shape[-1]
