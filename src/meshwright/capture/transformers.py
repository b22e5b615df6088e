"""Models of Hugging Face's Transformers, from a configuration. Enters: a class and settings.
Leaves: an `Example` on meta tensors. Nothing is ever fetched from a hub.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.example import Example
from meshwright.capture.options import Source, plain_value
from meshwright.capture.zoo.entry import tokens
from meshwright.foundation.errors import InputError, nearest

BATCH, SEQUENCE, IMAGE = 8, 128, 224
"""What is taken where the source names none."""

_SETTINGS: Mapping[str, object] = {"use_cache": False}
"""Keys and values of earlier steps serve generation, not training."""


def example_of_class(
    source: Source, batch: int | None, device: torch.device | None = None
) -> Example:
    """A class of Transformers built from its configuration, with labels where it takes them.

    The options of the source are settings of the configuration, besides `sequence`, the number of
    positions.
    """
    library = _library()
    options = {key: plain_value(value) for key, value in source.options}
    sequence = options.pop("sequence", SEQUENCE)
    if not isinstance(sequence, int) or sequence < 1:
        raise InputError(f"sequence is {sequence!r} in {source.text!r}", "give a number above 0")
    chosen = _class(library, source)
    config = _config(chosen, options, source)
    with device or torch.device("meta"):
        model = chosen(config).train()
        named = _inputs(chosen, config, batch or BATCH, sequence)
    return Example(model=model, named=named)


def _library() -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise InputError(
            "models of the form hf:ClassName need the library 'transformers', which is missing",
            "install it with: pip install 'meshwright[hf]'",
        ) from error


def _class(library: ModuleType, source: Source) -> Any:
    try:
        found = getattr(library, source.name)
    except AttributeError as error:
        models = [name for name in dir(library) if "For" in name or name.endswith("Model")]
        close = difflib.get_close_matches(source.name, models, n=3, cutoff=0.5)
        raise InputError(
            f"Transformers {library.__version__} has no class {source.name!r}",
            f"give one of its models, such as {', '.join(close or ['BertForMaskedLM'])}",
        ) from error
    if getattr(found, "config_class", None) is None:
        raise InputError(
            f"{source.name!r} of Transformers is not a model with a configuration of its own",
            "give a model's class, such as 'BertForMaskedLM'",
        )
    return found


def _config(chosen: Any, options: Mapping[str, object], source: Source) -> Any:
    default = chosen.config_class()
    known = default.to_dict()
    for key in options:
        if key not in known:
            raise InputError(
                f"{chosen.config_class.__name__} has no setting {key!r}", nearest(key, known)
            )
    given = {key: value for key, value in _SETTINGS.items() if key in known}
    if known.get("is_encoder_decoder"):
        given["decoder_start_token_id"] = known.get("pad_token_id") or 0
    try:
        return chosen.config_class(**given, **options)
    except Exception as error:
        raise InputError(
            f"{chosen.config_class.__name__} refuses the settings of {source.text!r}: {error}",
            "give values that Transformers takes",
        ) from error


def _inputs(chosen: Any, config: Any, batch: int, sequence: int) -> dict[str, Tensor]:
    """The main input, and labels of the shape that the name of the class promises."""
    inputs = {}
    match chosen.main_input_name:
        case "pixel_values":
            side = config.to_dict().get("image_size", IMAGE)
            inputs["pixel_values"] = torch.randn(batch, config.num_channels, side, side)
        case "input_ids":
            inputs["input_ids"] = tokens(config.vocab_size, batch, sequence)
        case other:
            raise InputError(
                f"{chosen.__name__} takes {other!r}, which is neither text nor an image",
                "write a function that returns the model and its inputs, and give that",
            )
    if "labels" not in inspect.signature(chosen.forward).parameters:
        return inputs
    name = chosen.__name__
    if "SequenceClassification" in name or "ImageClassification" in name:
        inputs["labels"] = tokens(config.num_labels, batch)
    elif "TokenClassification" in name:
        inputs["labels"] = tokens(config.num_labels, batch, sequence)
    elif "pixel_values" not in inputs:
        inputs["labels"] = tokens(config.vocab_size, batch, sequence)
    return inputs
