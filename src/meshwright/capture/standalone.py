"""Standalone model code, for scripts that do not import Meshwright. Enters: a source, a batch.
Leaves: `Standalone`: the body of a function `build()` that imports torch (and Transformers, or the
user's module) only, and files that lie beside it.

    zoo:NAME     the modules of the zoo that define it, as files zoo_*.py with dataclasses
    hf:CLASS     its configuration's settings, and tensors like the example's
    function     the user's own, imported
    traces       have no code: nothing can be written

A configuration of Transformers is built again from the settings before they are handed out; what
does not become the same again is refused.
"""

from __future__ import annotations

import inspect
import pprint
import re
import sys
import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from meshwright.base.errors import InputError
from meshwright.capture.load import TINY, load_example
from meshwright.capture.source.model_source import Source, parse_source
from meshwright.capture.transformers.build import settings_of_class
from meshwright.capture.transformers.inputs import example_inputs
from meshwright.capture.zoo import entry
from meshwright.capture.zoo.entry import class_loss, token_loss, tokens

ZOO = "meshwright.capture.zoo."
PREFIX = "zoo_"
"""Of the files that hold a model of the zoo."""

WIDTH = 96

ENTRY_FILE = '''"""What a model of Meshwright's zoo is made of; written by 'meshwright export'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


class InputError(ValueError):
    """Sizes that do not fit together."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model, its sizes, and how inputs, targets and the loss are made."""

    name: str
    sizes: object
    tiny: object
    batch: int
    parameters: int
    source: str
    build: Callable
    inputs: Callable
    targets: Callable
    loss: Callable


{functions}'''

ZOO_BODY = """
from dataclasses import replace

from {module} import {constant}

sizes = {sizes}
model = {constant}.build(sizes)
inputs, targets = {constant}.inputs(sizes, {batch}), {constant}.targets(sizes, {batch})
return model, inputs, {{}}, {constant}.loss, targets
"""

CLASS_BODY = """
from transformers import {imports}

config = {config}
model = {model}(config)
named = {{
{named}
}}
return model, (), named, None, ()
"""

FUNCTION_BODY = """
{path}from {module} import {function}

model, inputs, *rest = {function}({arguments})
loss, targets = (*rest, None, ())[:2] if len(rest) < 2 else rest
named = dict(inputs) if isinstance(inputs, dict) else {{}}
inputs = () if named else inputs if isinstance(inputs, tuple) else (inputs,)
targets = targets if isinstance(targets, tuple) else (targets,)
return model, inputs, named, loss, targets
"""


class Standalone(NamedTuple):
    """How a script builds its model."""

    body: str
    """Of a function that returns model, inputs, named inputs, loss and targets."""
    files: dict[str, str]
    """To lie beside the script."""
    empty: bool
    """Whether the model's code builds with parameters on the meta device."""


@lru_cache(maxsize=4)
def standalone(source: str, batch: int | None) -> Standalone:
    """The code of a model for a script of its own; refuses a trace, which has none.

    >>> sorted(standalone("zoo:lenet/tiny", 4).files)
    ['zoo_entry.py', 'zoo_lenet.py']
    """
    parsed = parse_source(source)
    match parsed.form:
        case "zoo":
            return _of_zoo(parsed, batch)
        case "hf":
            return _of_class(parsed, batch)
        case "function":
            return _of_function(parsed, batch)
        case "program" | "graph":
            raise InputError(
                f"{source!r} is a trace, which no script can build a model from",
                "plan the model itself, as file.py:function",
            )


def _builds_empty(source: Source, batch: int | None) -> bool:
    """Whether a model can be built as the script does: parameters without values, all else with."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            with unset_fake_temporarily():
                empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                parameter = nn.Parameter(empty, parameter.requires_grad)
        register(module, name, parameter)

    def builds() -> bool:
        try:
            load_example(source.text, batch, torch.device("cpu"))
        except Exception:
            return False
        return True

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign,assignment]
    try:
        # What is built of fake tensors reads no values: those of large models take minutes.
        with FakeTensorMode(allow_non_fake_inputs=True):
            unread = builds()
        return unread or builds()
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _of_zoo(source: Source, batch: int | None) -> Standalone:
    name = source.name.removesuffix(TINY)
    known = entry(name)
    module, constant = next(
        (module, constant)
        for path, module in sorted(sys.modules.items())
        if path.startswith(ZOO)
        for constant, value in vars(module).items()
        if value is known
    )
    files: dict[str, str] = {}
    _add_module(module.__name__, files)
    parts = "tiny" if source.name.endswith(TINY) else "sizes"
    sizes = f"{constant}.{parts}"
    if source.options:
        values = ", ".join(f"{key}={_number(value)}" for key, value in source.options)
        sizes = f"replace({sizes}, {values})"
    body = ZOO_BODY.format(
        module=_file_name(module.__name__),
        constant=constant,
        sizes=sizes,
        batch=batch or known.batch,
    )
    if not source.options:
        body = body.replace("from dataclasses import replace\n\n", "")
    return Standalone(body.strip(), files, empty=_builds_empty(source, batch))


def _number(text: str) -> str:
    """A size as Python writes it."""
    if "," in text:
        return f"({', '.join(map(_number, text.split(',')))},)"
    return {"true": "True", "false": "False"}.get(text, text)


def _file_name(module: str) -> str:
    return PREFIX + module.removeprefix(ZOO)


def _add_module(name: str, files: dict[str, str]) -> None:
    """The source of a module of the zoo and of those that it imports."""
    file = f"{_file_name(name)}.py"
    if file in files:
        return
    if name == tokens.__module__:
        functions = (
            inspect.getsource(function).rstrip() for function in (tokens, class_loss, token_loss)
        )
        files[file] = ENTRY_FILE.format(functions="\n\n\n".join(functions) + "\n")
        return
    text = inspect.getsource(sys.modules[name])
    files[file] = ""
    for used in _imported(text):
        _add_module(ZOO + used, files)
    files[file] = _without_meshwright(text)


def _imported(text: str) -> list[str]:
    """The modules of the zoo that a text imports."""
    named = re.findall(r"^from meshwright\.capture\.zoo\.(\w+) import", text, re.MULTILINE)
    whole = re.findall(r"^from meshwright\.capture\.zoo import (\w+)$", text, re.MULTILINE)
    return [*named, *whole, "entry"]


CHANGES = (
    (r"^from meshwright\.capture\.zoo\.(\w+) import", rf"from {PREFIX}\1 import"),
    (r"^from meshwright\.capture\.zoo import (\w+)$", rf"import {PREFIX}\1 as \1"),
    (r"^from meshwright\.base\.errors import", f"from {PREFIX}entry import"),
    (r"^import msgspec$", "import dataclasses\nfrom dataclasses import dataclass"),
    (
        r"^class (\w+)\(msgspec\.Struct, frozen=True(, kw_only=True)?\):$",
        r"@dataclass(frozen=True\2)\nclass \1:",
    ),
    (
        r"^class (\w+)\((\w+\.\w+), frozen=True(, kw_only=True)?\):$",
        r"@dataclass(frozen=True\3)\nclass \1(\2):",
    ),
    (r"msgspec\.structs\.", "dataclasses."),
    (r"meshwright::", "zoo::"),
    (r"Entry\[\w+\]", "Entry"),
)
"""Records of the zoo are msgspec's; a script has the standard library's."""


def _without_meshwright(text: str) -> str:
    for pattern, other in CHANGES:
        text = re.sub(pattern, other, text, flags=re.MULTILINE)
    return text


def _of_class(source: Source, batch: int | None) -> Standalone:
    choice, config, sizes = settings_of_class(source, batch)
    kind: Any = type(config)
    settings = _settings(kind, config)
    with torch.device("meta"):
        model = choice.model(config)
    with torch.device("cpu"):
        named = example_inputs(model, sizes)
    written = f"{kind.__name__}(**{pprint.pformat(settings, width=WIDTH)})"
    lines = [f'    "{name}": {_like(value)},' for name, value in named.items()]
    body = CLASS_BODY.format(
        imports=", ".join(sorted({kind.__name__, choice.model.__name__})),
        config=written,
        model=choice.model.__name__,
        named="\n".join(lines),
    )
    return Standalone(body.strip(), {}, empty=_builds_empty(source, batch))


def _settings(kind: Any, config: Any) -> dict[str, object]:
    """Settings that give the same configuration again."""
    whole = _told(config.to_dict())
    for settings in (config.to_diff_dict(), config.to_dict()):
        kept = {key: value for key, value in settings.items() if key not in NOT_TOLD}
        try:
            again = kind(**kept)
        except Exception:
            continue
        if _told(again.to_dict()) == whole and "meshwright" not in repr(kept):
            return kept
    raise InputError(
        f"the configuration of {kind.__name__} does not become the same from its settings",
        "give the model as file.py:function",
    )


NOT_TOLD = frozenset({"transformers_version", "model_type"})


def _told(settings: dict[str, object]) -> str:
    return repr(
        sorted((key, repr(value)) for key, value in settings.items() if key not in NOT_TOLD)
    )


def _like(value: object) -> str:
    """An expression for a tensor as an example has it; data of the user's own comes there."""
    if not isinstance(value, Tensor):
        return repr(value)
    shape, dtype = tuple(value.shape), f"torch.{str(value.dtype).removeprefix('torch.')}"
    if value.is_floating_point():
        return f"torch.randn({shape}, dtype={dtype})"
    low, high = int(value.min()), int(value.max())
    if low == high:
        return f"torch.full({shape}, {low}, dtype={dtype})"
    if value.dtype == torch.bool:
        return f"torch.randint(0, 2, {shape}).bool()"
    return f"torch.randint({min(0, low)}, {high + 1}, {shape}, dtype={dtype})"


def _of_function(source: Source, batch: int | None) -> Standalone:
    arguments = [f"{key}={_number(value)}" for key, value in source.options]
    if batch is not None:
        arguments.append(f"batch={batch}")
    file = Path(source.name) if source.name.endswith(".py") else None
    path = ""
    if file is not None:
        path = textwrap.dedent(f"""\
            import sys

            sys.path.insert(0, {str(file.resolve().parent)!r})
            """)
    body = FUNCTION_BODY.format(
        path=path,
        module=source.name if file is None else file.stem,
        function=source.function,
        arguments=", ".join(arguments),
    )
    return Standalone(body.strip(), {}, empty=_builds_empty(source, batch))
