"""The example inputs of a model of Transformers, by the names of its `forward`'s arguments.

Enters: a model, on any device, and how many samples and positions. Leaves: a tensor for each
argument that a training step wants. One table says how each input is made; what a class calls its
labels is told by the task in its name, as Transformers' own `AutoModelFor...` classes tell it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.transformers.config_fields import setting, text_part
from meshwright.capture.transformers.image_inputs import (
    image_tokens,
    images,
    is_video,
    patches,
    side,
    videos,
    without_tokens,
)
from meshwright.capture.transformers.labels import labels_of
from meshwright.capture.transformers.sounds import features, waves
from meshwright.capture.zoo.entry import tokens

GRIDS = "image_grid_thw"
"""What a class takes whose images have sizes of their own, which decide shapes: its example is a
text alone."""

BESIDE_TEXT = frozenset({"pixel_values", "pixel_values_videos", "input_features", "input_values"})
"""What a model may do without that takes a text too."""

CHOICES = 2
"""Answers of a question with several."""


class Kinds(Enum):
    """What an example has besides its text."""

    ALL = "all that the class takes"
    IMAGES = "images, where its configuration counts the frames of a video"
    TEXT = "nothing"
    OUTPUTS = (
        "nothing, and no labels: those of its class are of a kind that hf: knows no example of"
    )


class Sizes(NamedTuple):
    """How much is in a batch."""

    batch: int
    sequence: int
    """Positions of a text."""
    image: int
    """Pixels of an image's side, where the configuration leaves that open."""
    masked: bool = False
    """Whether an attention mask is given, even if it masks nothing."""
    kinds: Kinds = Kinds.ALL

    @property
    def text(self) -> tuple[int, int]:
        """The shape of token ids."""
        return self.batch, self.sequence


class Wanted(NamedTuple):
    """What an input is made from."""

    model: Any
    sizes: Sizes
    arguments: Mapping[str, inspect.Parameter]
    """Of the model's forward."""

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    @property
    def is_text_alone(self) -> bool:
        """Whether nothing but a text is given to a model that takes more."""
        grids = GRIDS in self.arguments
        alone = self.sizes.kinds in (Kinds.TEXT, Kinds.OUTPUTS)
        return "input_ids" in self.arguments and (grids or alone)

    @property
    def task(self) -> str:
        """The name of the model's class."""
        return type(self.model).__name__


Maker = Callable[[Wanted], object]
"""Makes an input; None: this model does without."""


def example_inputs(model: nn.Module, sizes: Sizes) -> dict[str, object]:
    """The inputs and labels of a training step, by the names of `forward`'s arguments."""
    arguments = inspect.signature(model.forward).parameters
    wanted = Wanted(model, sizes, arguments)
    inputs: dict[str, object] = {}
    for name, argument in arguments.items():
        maker = GIVEN.get(name)
        if maker is None and _is_required(argument):
            maker = IF_REQUIRED.get(name)
            if maker is None:
                raise InputError(
                    f"{wanted.task} takes {name!r}, for which hf: knows no example",
                    "write a function that returns the model and its inputs, and give that",
                )
        if wanted.is_text_alone and name in BESIDE_TEXT and not _is_required(argument):
            maker = None
        value = None if maker is None else maker(wanted)
        if value is not None:
            inputs[name] = value
    if sizes.masked and "attention_mask" in arguments:
        inputs["attention_mask"] = _ones(wanted)
    if sizes.kinds is Kinds.OUTPUTS:
        return inputs
    return inputs | labels_of(wanted.task, wanted.config, arguments, inputs)


def notes_on(model: nn.Module, named: Mapping[str, object], kinds: Kinds) -> tuple[str, ...]:
    """What an example leaves out that the class takes."""
    name = type(model).__name__
    if kinds is Kinds.OUTPUTS:
        return (
            f"the example of {name} is a text alone, without labels, of which hf: knows none that "
            "fit: its outputs are captured, and no loss; give file.py:function to have one",
        )
    left_out = sorted(BESIDE_TEXT & inspect.signature(model.forward).parameters.keys())
    if not left_out or BESIDE_TEXT & named.keys():
        return ()
    return (
        f"the example of {name} is a text alone, without {' and '.join(left_out)}: "
        "what those are for is not in the graph; give file.py:function to have it",
    )


def _is_required(argument: inspect.Parameter) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return argument.default is argument.empty and argument.kind not in several


def _input_ids(wanted: Wanted) -> Tensor | None:
    batch, sequence = wanted.sizes.text
    if (
        wanted.model.main_input_name != "input_ids"
        and not _is_required(wanted.arguments["input_ids"])
        and not _joins_modes(wanted)
    ):
        return None
    vocabulary = setting(
        text_part(wanted.config), "vocab_size", "text_vocab_size", "num_hash_buckets"
    )
    if "MultipleChoice" in wanted.task:
        return tokens(vocabulary, batch, CHOICES, sequence)
    text = tokens(vocabulary, batch, sequence)
    if "SequenceClassification" in wanted.task and wanted.config.is_encoder_decoder:
        return _ended(wanted.config, text)
    if wanted.is_text_alone:
        return without_tokens(wanted.config, text)
    if "pixel_values" not in wanted.arguments:
        return text
    return image_tokens(wanted.model, text, wanted.sizes.image)


def _ended(config: Any, text: Tensor) -> Tensor:
    """Texts with one end each, where a decoder is classified."""
    end = setting(text_part(config), "eos_token_id", otherwise=None)
    if not isinstance(end, int):
        return text
    before = torch.where(text == end, end - 1 if end else 1, text)[:, :-1]
    return torch.cat([before, torch.full_like(text[:, :1], end)], dim=1)


def _joins_modes(wanted: Wanted) -> bool:
    return "pixel_values" in wanted.arguments or "input_features" in wanted.arguments


def _decoder_input_ids(wanted: Wanted) -> Tensor | None:
    """Only for a decoder that does not make them from labels."""
    if "labels" in wanted.arguments and "Question" not in wanted.task:
        return None
    vocabulary = setting(text_part(wanted.config), "vocab_size", "decoder_vocab_size")
    return tokens(vocabulary, *wanted.sizes.text)


def _token_types(wanted: Wanted) -> Tensor | None:
    """For a text after an image: which positions are the prefix that all attend to, and which are
    learnt. Transformers wants them where the prefix is attended to in both directions.
    """
    config = wanted.config
    if not hasattr(config, "image_token_id") or "pixel_values" not in wanted.arguments:
        return None
    if getattr(text_part(config), "use_bidirectional_attention", None) is None:
        return None
    ids = _input_ids(wanted)
    return None if ids is None else (ids != config.image_token_id).to(torch.int64)


def _pixel_values(wanted: Wanted) -> Tensor | None:
    config, sizes = wanted.config, wanted.sizes
    if is_video(config) and "Image" not in wanted.task and sizes.kinds is not Kinds.IMAGES:
        return videos(config, sizes.batch, sizes.image)
    pixels = images(config, sizes.batch, sizes.image)
    several = (
        "pixel_attention_mask" in wanted.arguments and "spatial_shapes" not in wanted.arguments
    )
    return pixels.unsqueeze(1) if several else pixels


def _pixel_values_videos(wanted: Wanted) -> Tensor | None:
    if "pixel_values" in wanted.arguments:
        return None
    return videos(wanted.config, wanted.sizes.batch, wanted.sizes.image)


def _input_features(wanted: Wanted) -> Tensor:
    if setting(wanted.config, "audio_token_id", "audio_token_index", otherwise=None) is not None:
        raise InputError(
            f"{wanted.task} takes sounds inside of a text, for which hf: knows no example",
            "write a function that returns the model and its inputs, and give that",
        )
    return features(wanted.config, wanted.sizes.batch)


def _input_values(wanted: Wanted) -> Tensor:
    return waves(wanted.config, *wanted.sizes.text)


def _boxes(wanted: Wanted) -> Tensor:
    corners = torch.tensor([0, 0, 1, 1], device="cpu").to(_device(wanted))
    return corners.expand(*wanted.sizes.text, 4).contiguous()


def _masked_patches(wanted: Wanted) -> Tensor | None:
    """Every other patch, for models that are trained to paint them anew."""
    if not any(word in wanted.task for word in ("MaskedImage", "PreTraining")):
        return None
    count = patches(wanted.config, wanted.sizes.image)
    row = torch.arange(count) % 2 == 0
    return row.expand(wanted.sizes.batch, count).contiguous()


def _positions(wanted: Wanted) -> Tensor:
    return tokens(wanted.sizes.sequence, wanted.sizes.batch)


def _past_values(wanted: Wanted) -> Tensor:
    """A series, with the lags that a model looks back."""
    config, batch = wanted.config, wanted.sizes.batch
    lags = getattr(config, "lags_sequence", None) or [0]
    length = setting(config, "context_length") + max(lags)
    channels = setting(config, "num_input_channels", "input_size", otherwise=1)
    many = channels > 1 or hasattr(config, "num_input_channels")
    return torch.randn(batch, length, channels) if many else torch.randn(batch, length)


def _past_times(wanted: Wanted) -> Tensor:
    length = _past_values(wanted).shape[1]
    count = setting(wanted.config, "num_time_features", otherwise=0)
    return torch.randn(wanted.sizes.batch, length, count)


def _future_values(wanted: Wanted) -> Tensor:
    config, batch = wanted.config, wanted.sizes.batch
    shape = (
        batch,
        setting(config, "prediction_length", "horizon_length"),
        *_past_values(wanted).shape[2:],
    )
    return torch.randn(*shape)


def _future_times(wanted: Wanted) -> Tensor:
    config = wanted.config
    count = setting(config, "num_time_features", otherwise=0)
    return torch.randn(
        wanted.sizes.batch, setting(config, "prediction_length", "horizon_length"), count
    )


def _grounds(wanted: Wanted) -> Tensor:
    return torch.ones_like(_past_values(wanted))


def _ones(wanted: Wanted) -> Tensor:
    return torch.ones(*wanted.sizes.text, dtype=torch.int64)


def _device(wanted: Wanted) -> torch.device:
    device: torch.device = next(wanted.model.parameters()).device
    return device


def _prompt_masks(wanted: Wanted) -> Tensor:
    high, wide = side(wanted.config, wanted.sizes.image)
    return torch.randn(wanted.sizes.batch, 3, high, wide)


GIVEN: Mapping[str, Maker] = {
    "input_ids": _input_ids,
    "decoder_input_ids": _decoder_input_ids,
    "pixel_values": _pixel_values,
    "pixel_values_videos": _pixel_values_videos,
    "input_features": _input_features,
    "input_values": _input_values,
    "token_type_ids": _token_types,
    "bbox": _boxes,
    "bool_masked_pos": _masked_patches,
    "start_positions": _positions,
    "end_positions": _positions,
    "next_sentence_label": lambda wanted: tokens(2, wanted.sizes.batch),
    "sentence_order_label": lambda wanted: tokens(2, wanted.sizes.batch),
    "return_loss": lambda _: True,
    "past_values": _past_values,
    "past_time_features": _past_times,
    "past_observed_mask": _grounds,
    "future_values": _future_values,
    "future_time_features": _future_times,
}
"""Inputs that are given wherever `forward` takes them."""

IF_REQUIRED: Mapping[str, Maker] = {
    "attention_mask": _ones,
    "qformer_input_ids": lambda wanted: tokens(
        setting(wanted.config.qformer_config, "vocab_size"), *wanted.sizes.text
    ),
    "prompt_pixel_values": _pixel_values,
    "prompt_masks": _prompt_masks,
}
"""Inputs that are given only where `forward` has no default for them."""
