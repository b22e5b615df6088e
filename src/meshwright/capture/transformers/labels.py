"""Example labels of a Transformers task (classification, language modelling, ...). Enters: the name
of a class, which says its task, and the inputs that were made for it. Leaves: labels, where
Transformers computes a loss from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.transformers.config_fields import setting, text_part
from meshwright.capture.zoo.entry import tokens

Given = Mapping[str, Any]
Label = Callable[[Any, Given], Tensor | None]
"""Makes labels from a configuration and the inputs; None: such a class has no loss of its own."""


def labels_of(
    task: str, config: Any, arguments: Mapping[str, object], inputs: Given
) -> dict[str, object]:
    """The labels of a class, if its `forward` takes some."""
    if "labels" not in arguments:
        return {}
    label = next((label for word, label in TASKS if word in task), _text)
    value = label(config, inputs)
    return {} if value is None else {"labels": value}


def _batch(inputs: Given) -> int:
    return int(next(iter(inputs.values())).shape[0])


def _class(config: Any, inputs: Given) -> Tensor:
    return tokens(config.num_labels, _batch(inputs))


def _class_of_each_position(config: Any, inputs: Given) -> Tensor:
    return tokens(config.num_labels, *inputs["input_ids"].shape[:2])


def _class_of_each_pixel(config: Any, inputs: Given) -> Tensor:
    return tokens(config.num_labels, _batch(inputs), *inputs["pixel_values"].shape[-2:])


def _mask(config: Any, inputs: Given) -> Tensor:
    return torch.rand(_batch(inputs), *inputs["pixel_values"].shape[-2:])


def _share_of_each_class(config: Any, inputs: Given) -> Tensor:
    return torch.rand(_batch(inputs), config.num_labels)


def _choice(config: Any, inputs: Given) -> Tensor:
    return tokens(inputs["input_ids"].shape[1], _batch(inputs))


def _one_of_two(config: Any, inputs: Given) -> Tensor:
    return tokens(2, _batch(inputs))


def _replaced(config: Any, inputs: Given) -> Tensor:
    return tokens(2, *inputs["input_ids"].shape)


def _text(config: Any, inputs: Given) -> Tensor:
    """A token for each position of the text, or a short text for what is no text."""
    ids = inputs.get("input_ids")
    shape = (_batch(inputs), SPOKEN) if ids is None else tuple(ids.shape)
    return tokens(setting(text_part(config), "vocab_size"), *shape)


def _spoken(config: Any, inputs: Given) -> Tensor:
    """Shorter than the sound, and without the blank, which is token 0."""
    vocabulary = setting(config, "vocab_size", otherwise=None) or text_part(config).vocab_size
    return 1 + tokens(vocabulary - 1, _batch(inputs), SPOKEN)


def _none(config: Any, inputs: Given) -> None:
    return None


SPOKEN = 4
"""Tokens of a text that tells what a sound or an image says."""

TASKS: tuple[tuple[str, Label], ...] = (
    ("TapasForQuestionAnswering", _replaced),
    ("SequenceClassification", _class),
    ("ImageClassification", _class),
    ("VideoClassification", _class),
    ("AudioClassification", _class),
    ("XVector", _class),
    ("TokenClassification", _class_of_each_position),
    ("AudioFrameClassification", _none),
    ("SemanticSegmentation", _class_of_each_pixel),
    ("InstanceSegmentation", _none),
    ("UniversalSegmentation", _none),
    ("ObjectDetection", _none),
    ("ImageSegmentation", _mask),
    ("Estimation", _none),
    ("SuperResolution", _none),
    ("VisualQuestionAnswering", _share_of_each_class),
    ("ForQuestionAnswering", _share_of_each_class),
    ("MultipleChoice", _choice),
    ("NextSentencePrediction", _one_of_two),
    ("ElectraForPreTraining", _replaced),
    ("ForCTC", _spoken),
    ("MaskedImageModeling", _none),
)
"""The first word that the name of a class contains decides."""
