"""Images, videos and their places in a text, as a configuration of Transformers has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.capture.transformers.reading import image_part, setting

IMAGE, FRAMES, CHANNELS = 224, 4, 3
"""What is taken where a configuration says nothing."""


def side(config: Any) -> tuple[int, int]:
    """Height and width of an image."""
    own = image_part(config)
    size = setting(own, "image_size", "img_size", "input_size", otherwise=None)
    if size is None:
        size = setting(config, "image_size", otherwise=IMAGE)
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def images(config: Any, batch: int) -> Tensor:
    """An image for each sample, or a video where the configuration counts frames."""
    own = image_part(config)
    if isinstance(getattr(own, "num_frames", None), int):
        return videos(config, batch)
    return torch.randn(batch, _channels(config), *side(config))


def videos(config: Any, batch: int) -> Tensor:
    """A video for each sample."""
    frames = setting(image_part(config), "num_frames", "frames_per_clip", otherwise=FRAMES)
    return torch.randn(batch, frames, _channels(config), *side(config))


def _channels(config: Any) -> int:
    names = ("num_channels", "in_channels", "in_chans", "num_input_channels")
    channels: int = setting(image_part(config), *names, otherwise=CHANNELS)
    return channels


def patches(config: Any) -> int:
    """Into how many patches an image is cut."""
    own = image_part(config)
    high, wide = side(config)
    size = setting(own, "patch_size", otherwise=16)
    down, across = (size, size) if isinstance(size, int) else (size[0], size[1])
    frames = setting(own, "num_frames", otherwise=1) // setting(own, "tubelet_size", otherwise=1)
    stride = setting(own, "mask_patch_size", "encoder_stride", otherwise=None)
    del stride
    return int(frames * (high // down) * (wide // across))


def image_tokens(model: Any, text: Tensor) -> Tensor:
    """A text with a place for each feature of its image before it."""
    config = model.config
    token = setting(config, "image_token_id", "image_token_index", otherwise=None)
    if token is None:
        return text
    # A text without the token would be refused, and one with it by chance has one too many.
    text = torch.where(text == token, text.new_zeros(()), text)
    places = torch.full((text.shape[0], _places(model)), token, dtype=text.dtype)
    return torch.cat([places, text], dim=1)


def _places(model: Any) -> int:
    """How many positions the features of an image take."""
    counted = getattr(model, "get_image_features", None)
    if counted is not None:
        try:
            with torch.no_grad():
                found = counted(pixel_values=images(model.config, 1))
        except Exception:
            return patches(model.config)
        held = getattr(found, "pooler_output", found)
        rows = held if isinstance(held, Tensor) else torch.cat(list(held))
        return rows.numel() // rows.shape[-1]
    return patches(model.config)
