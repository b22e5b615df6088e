"""From the text `hf:ClassName?setting=value`, or `hf:path/config.json`, to an `Example`.

Classes, settings, small sizes and inputs have a module each; this one joins them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example
from meshwright.capture.source.model_source import Source, plain_value
from meshwright.capture.transformers.classes import Choice, chosen_class, library
from meshwright.capture.transformers.config_file import is_configuration, read_configuration
from meshwright.capture.transformers.inputs import Kinds, Sizes, example_inputs, notes_on
from meshwright.capture.transformers.settings import Settings, configurations, joined
from meshwright.capture.transformers.tiny import (
    fewer_heads_settings,
    narrow_settings,
    padded,
    shallow_settings,
    small_settings,
)
from meshwright.capture.transformers.trials import first_that_runs

BATCH = 8
SIZES, TINY_SIZES = {"sequence": 128, "image": 224}, {"sequence": 16, "image": 64}
"""Positions of a text, and pixels of an image's side where the configuration leaves that open."""

TINY = "/tiny"


def example_of_class(
    source: Source, batch: int | None, device: torch.device | None = None
) -> Example:
    """A class of Transformers built from its configuration, with labels where it takes them; or the
    class and the settings that a config.json names.

    The options of the source are settings of the configuration, besides `sequence` and `image`,
    the number of positions of a text and of pixels of an image's side, `attention_mask=true`, which
    gives one, and `model_type`, for a class that fits several. With `/tiny` behind the name every
    size that the source does not set is small, and nothing is dropped out.
    """
    choice, config, sizes = settings_of_class(source, batch)
    with device or torch.device("meta"):
        return _example(choice, config, sizes, source.text)


def settings_of_class(source: Source, batch: int | None) -> tuple[Choice, object, Sizes]:
    """The class that a source means, its configuration, and the sizes of the inputs."""
    options: dict[str, object] = {key: plain_value(value) for key, value in source.options}
    name, tiny = source.name.removesuffix(TINY), source.name.endswith(TINY)
    sizes = _sizes(options, TINY_SIZES if tiny else SIZES, batch or BATCH, source)
    settings: Settings = {}
    if is_configuration(name):
        name, settings = read_configuration(name)
    choice = chosen_class(library(), name, options)
    # Some classes describe every layer, and refuse to have fewer.
    smaller = (
        (small_settings, narrow_settings, fewer_heads_settings, shallow_settings, padded)
        if tiny
        else (_as_they_are,)
    )
    others = [
        lambda known, change=change: joined(settings, change(joined(known, settings)))
        for change in smaller
    ]
    configs = configurations(choice, options, others, source.text)
    config, kinds = (
        first_that_runs(
            configs,
            lambda candidate, kinds: _example(
                choice, candidate, sizes._replace(kinds=kinds), source.text
            ),
        )
        if tiny
        else (next(configs), Kinds.ALL)
    )
    return choice, config, sizes._replace(kinds=kinds)


def _example(choice: Choice, config: object, sizes: Sizes, source: str) -> Example:
    model = _built(choice, config, source)
    named = example_inputs(model, sizes)
    return Example(model=model, named=named, notes=notes_on(model, named, sizes.kinds))


def _as_they_are(settings: Settings) -> Settings:
    return {}


def _sizes(
    options: dict[str, object], default: Mapping[str, int], batch: int, source: Source
) -> Sizes:
    """Sizes of the inputs, taken out of the options."""
    sizes = {name: options.pop(name, size) for name, size in default.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise InputError(f"{name} is {size!r} in {source.text!r}", "give a number above 0")
    masked = options.pop("attention_mask", False)
    if not isinstance(masked, bool):
        raise InputError(f"attention_mask is {masked!r} in {source.text!r}", "give true or false")
    return Sizes(batch=batch, masked=masked, **sizes)  # type: ignore[arg-type]


def _built(choice: Choice, config: object, source: str) -> torch.nn.Module:
    try:
        model: torch.nn.Module = choice.model(config).train()
    except ImportError as error:
        missing = " ".join(str(error).split())
        raise InputError(f"{source!r} cannot be built here: {missing}", "install it") from error
    except Exception as error:
        raise InputError(
            f"Transformers cannot build {source!r}: {type(error).__name__}: {error}",
            "give settings that fit together",
        ) from error
    return model
