"""Sounds as a configuration of Transformers has them: waves, or features of frames."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.transformers.reading import setting, sound_part

FRAMES = 64
"""Of a sound whose length a configuration leaves open."""


def features(config: Any, batch: int) -> Tensor:
    """Features of each frame: before the frames where the encoder begins with a convolution over
    channels, as Whisper's, and after them otherwise.
    """
    own = sound_part(config)
    positions = getattr(own, "max_source_positions", None)
    bins = setting(own, "num_mel_bins", otherwise=None)
    if bins is not None and positions is not None and not hasattr(own, "conv_kernel_sizes"):
        return torch.randn(batch, bins, 2 * positions)
    if hasattr(own, "spec_size"):
        return torch.randn(batch, 1, own.spec_size, bins)
    width = setting(
        own, "input_feat_per_channel", "feature_projection_input_dim", "input_dim", "num_mel_bins"
    )
    return torch.randn(batch, FRAMES, width)


def waves(config: Any, batch: int, sequence: int) -> Tensor:
    """A wave that a stack of convolutions makes into so many frames; a spectrogram where the
    configuration has patches of one.
    """
    own = sound_part(config)
    if hasattr(own, "max_length") and hasattr(own, "num_mel_bins"):
        return torch.randn(batch, own.max_length, own.num_mel_bins)
    if hasattr(own, "conv_stride"):
        return torch.randn(batch, _samples(own.conv_kernel, own.conv_stride, sequence))
    if hasattr(own, "audio_channels"):
        return torch.randn(batch, own.audio_channels, sequence * _ratio(own))
    return torch.randn(batch, sequence * _ratio(own))


def _samples(kernels: Any, strides: Any, frames: int) -> int:
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        frames = (frames - 1) * stride + kernel
    return int(frames)


def _ratio(config: Any) -> int:
    return math.prod(setting(config, "upsampling_ratios", "downsampling_ratios", otherwise=[320]))
