"""Audio inputs of Transformers models: waveforms, or features of frames (spectrograms)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.transformers.config_fields import setting, sound_part

FRAMES = 64
"""Of a sound whose length a configuration leaves open."""


def features(config: Any, batch: int) -> Tensor:
    """Features of each frame: before the frames where the encoder begins with a convolution over
    channels, as Whisper's, and after them otherwise.
    """
    sound_config = sound_part(config)
    positions = getattr(sound_config, "max_source_positions", None)
    bins = setting(sound_config, "num_mel_bins", otherwise=None)
    if (
        bins is not None
        and positions is not None
        and not hasattr(sound_config, "conv_kernel_sizes")
    ):
        return torch.randn(batch, bins, 2 * positions)
    if hasattr(sound_config, "spec_size"):
        return torch.randn(batch, 1, sound_config.spec_size, bins)
    width = setting(
        sound_config,
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "input_dim",
        "num_mel_bins",
    )
    return torch.randn(batch, FRAMES, width)


def waves(config: Any, batch: int, sequence: int) -> Tensor:
    """A wave that a stack of convolutions makes into so many frames; a spectrogram where the
    configuration has patches of one.
    """
    sound_config = sound_part(config)
    if hasattr(sound_config, "max_length") and hasattr(sound_config, "num_mel_bins"):
        return torch.randn(batch, sound_config.max_length, sound_config.num_mel_bins)
    if hasattr(sound_config, "conv_stride"):
        return torch.randn(
            batch, _samples(sound_config.conv_kernel, sound_config.conv_stride, sequence)
        )
    if hasattr(sound_config, "audio_channels"):
        return torch.randn(batch, sound_config.audio_channels, sequence * _ratio(sound_config))
    return torch.randn(batch, sequence * _ratio(sound_config))


def _samples(kernels: Any, strides: Any, frames: int) -> int:
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        frames = (frames - 1) * stride + kernel
    return int(frames)


def _ratio(config: Any) -> int:
    return math.prod(setting(config, "upsampling_ratios", "downsampling_ratios", otherwise=[320]))
