"""Which class of Transformers a name means: a model's own class, an `AutoModel` class with a
`model_type`, or a configuration's class, which gets a head that has a loss.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from meshwright.base.errors import InputError, nearest

MODEL_TYPE = "model_type"

HEADS = (
    "MaskedLM",
    "CausalLM",
    "Seq2SeqLM",
    "ImageTextToText",
    "SpeechSeq2Seq",
    "CTC",
    "ImageClassification",
    "VideoClassification",
    "AudioClassification",
    "SemanticSegmentation",
    "PreTraining",
    "TimeSeriesPrediction",
)
"""What a configuration is trained with if only it is named: the first of these that it has."""


class Choice(NamedTuple):
    """A model's class and that of its configuration; neither has a type that we could name."""

    model: Any
    config: Any


def library() -> ModuleType:
    """Transformers itself, if it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("transformers")
    except ImportError as error:
        raise InputError(
            "models of the form hf:ClassName need the library 'transformers', which is missing",
            "install it with: pip install 'meshwright[hf]'",
        ) from error


def chosen_class(transformers: ModuleType, name: str, options: dict[str, object]) -> Choice:
    """The classes that a name means; takes `model_type` out of the options if it decides."""
    cls = _named(transformers, name)
    if hasattr(cls, "_model_mapping"):
        return _of_auto_class(transformers, name, cls, options.pop(MODEL_TYPE, None))
    if getattr(cls, "sub_configs", None) is not None and not hasattr(cls, "forward"):
        return _of_configuration(transformers, cls)
    config = getattr(cls, "config_class", None)
    if config is None:
        raise InputError(
            f"{name!r} of Transformers is not a model with a configuration of its own",
            "give a model's class, such as 'BertForMaskedLM'",
        )
    return Choice(cls, config)


def _named(transformers: ModuleType, name: str) -> Any:
    try:
        return getattr(transformers, name)
    except AttributeError as error:
        models = [
            attribute
            for attribute in dir(transformers)
            if "For" in attribute or attribute.endswith("Model")
        ]
        close = difflib.get_close_matches(name, models, n=3, cutoff=0.5)
        raise InputError(
            f"Transformers {transformers.__version__} has no class {name!r}",
            f"give one of its models, such as {', '.join(close or ['BertForMaskedLM'])}",
        ) from error
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"{name!r} of Transformers cannot be imported: {' '.join(str(error).split())}",
            "install what it needs",
        ) from error


def _of_auto_class(transformers: ModuleType, name: str, auto: Any, model_type: object) -> Choice:
    """The model that an `AutoModel` class makes for a type of configuration."""
    types = (
        {
            kind
            for kind, config in _configurations(transformers).items()
            if getattr(transformers, config, None) in auto._model_mapping
        }
        if model_type is None
        else set(_configurations(transformers))
    )
    if model_type is None or model_type not in types:
        shown = "names no model_type" if model_type is None else f"has {MODEL_TYPE}={model_type}"
        raise InputError(
            f"hf:{name} {shown}",
            f"write hf:{name}?{MODEL_TYPE}=TYPE; {nearest(str(model_type or ''), types)}",
        )
    config = _named(transformers, _configurations(transformers)[str(model_type)])
    if config not in auto._model_mapping:
        raise InputError(
            f"{name} of Transformers has no model of type {model_type!r}",
            f"give hf:{config.__name__}, which takes a head that it has",
        )
    return Choice(_first(auto._model_mapping[config]), config)


def _of_configuration(transformers: ModuleType, config: Any) -> Choice:
    """A configuration with the first head that has a loss, or with none."""
    for auto in _auto_classes(transformers):
        if config in auto._model_mapping:
            return Choice(_first(auto._model_mapping[config]), config)
    raise InputError(
        f"Transformers has no model for {config.__name__} alone", "give a model's class"
    )


def _auto_classes(transformers: ModuleType) -> Iterator[Any]:
    for head in HEADS:
        if hasattr(transformers, f"AutoModelFor{head}"):
            yield getattr(transformers, f"AutoModelFor{head}")
    yield transformers.AutoModel


def _configurations(transformers: ModuleType) -> dict[str, str]:
    """The name of each configuration's class by its `model_type`."""
    names: dict[str, str] = dict(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    return names


def _first(models: Any) -> Any:
    return models[0] if isinstance(models, tuple | list) else models
