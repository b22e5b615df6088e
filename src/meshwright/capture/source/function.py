"""Models built by a user's Python function. Enters: a file or module and a function's name. Leaves:
an `Example`.

The function returns (model, inputs), (model, inputs, loss) or (model, inputs, loss, targets):
inputs are a tensor, a tuple of arguments or a mapping of named ones; the loss is called with the
model's output and then the targets. It is called under `torch.device("meta")`, so that weights
take no memory; where its code needs real numbers it is called again without.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError, nearest
from meshwright.capture.operators.source_lines import user_line
from meshwright.capture.source.example import Example
from meshwright.capture.source.model_source import Source, plain_value
from meshwright.capture.trace.fingerprint import evaluating

SEED = 0
"""Of weights and inputs that a function draws, unless a run is told another."""

_RETURNS = "return (model, inputs), (model, inputs, loss) or (model, inputs, loss, targets)"


def example_of_function(
    source: Source, batch: int | None, device: torch.device | None = None
) -> Example:
    """What the function of a source returns, in training mode; on a device, or on meta tensors if
    its code allows, drawn as a run draws it.
    """
    function = loaded_function(source)
    options: dict[str, Any] = {key: plain_value(value) for key, value in source.options}
    if batch is not None:
        options["batch"] = batch
    _check_options(function, options, source)
    return _example(_called(function, options, source, device), source)


def loaded_function(source: Source) -> Callable[..., object]:
    """The function of a source."""
    return _function(_module(source), source)


def _module(source: Source) -> ModuleType:
    if source.name.endswith(".py"):
        return _module_of_file(Path(source.name), source)
    try:
        return importlib.import_module(source.name)
    except Exception as error:
        raise InputError(
            f"module {source.name!r} of {source.text!r} cannot be imported: "
            f"{type(error).__name__}: {error}",
            "give an importable module, or a file as path/to/file.py:function",
        ) from error


def _module_of_file(path: Path, source: Source) -> ModuleType:
    if not path.is_file():
        raise InputError(
            f"there is no file {str(path)!r} for {source.text!r}", "give the path of a Python file"
        )
    file, written = path.resolve(), path.stat()
    return _imported(file) or _executed(file, written.st_mtime_ns, written.st_size)


def _imported(file: Path) -> ModuleType | None:
    """The module as which Python has imported a file already.

    The file is not run a second time: it would register its operators anew, and PyTorch frees those
    that the imported module calls.
    """
    for name, module in tuple(sys.modules.items()):
        matches = getattr(module, "__file__", None) == str(file) and name != "__main__"
        if matches and not isinstance(module.__loader__, _FileLoader):
            return module
    return None


class _FileLoader(SourceFileLoader):
    """Loads files that a source names, which may change while Python runs."""


@lru_cache(maxsize=64)
def _executed(path: Path, written: int, size: int) -> ModuleType:
    """The module of a file as it was written; run once, since it may register operators."""
    free = path.stem not in sys.modules
    name = path.stem if free else f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    loader = _FileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Files that lie beside it are its neighbours, as when Python runs it as a script, and a
    # dataclass with annotations as text looks for its module while it is made.
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(
            f"file {str(path)!r} fails when it is loaded{user_line(error)}: "
            f"{type(error).__name__}: {error}",
            "correct it so that Python can import it",
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _function(module: ModuleType, source: Source) -> Callable[..., object]:
    member = vars(module).get(source.function)
    if not callable(member):
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise InputError(
            f"there is no function {source.function!r} in {source.name!r}",
            nearest(source.function, functions) if functions else "define one that returns a model",
        )
    function: Callable[..., object] = member
    return function


def _check_options(
    function: Callable[..., object], options: Mapping[str, object], source: Source
) -> None:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        arguments = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "nothing"
        raise InputError(
            f"{source.function}{inspect.signature(function)} does not take {arguments}: {error}",
            "give its arguments as ?key=value, and a batch only if it has that argument",
        ) from error


def _called(
    function: Callable[..., object],
    options: Mapping[str, object],
    source: Source,
    device: torch.device | None,
) -> object:
    if device is None:
        with suppress(Exception), seeded(), torch.device("meta"):
            return function(**options)
    try:
        with seeded() if device is None else device:
            return function(**options)
    except Exception as error:
        raise InputError(
            f"{source.function}() fails{user_line(error)}: {type(error).__name__}: {error}",
            _RETURNS,
        ) from error


@contextmanager
def seeded() -> Iterator[None]:
    """Draw as a run does, and leave the user's generator as it was.

    What a model reads out of its inputs (`int(lengths.max())`) is a guard's: inputs that a run
    draws must be those of the capture.
    """
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(SEED)
        yield


def _example(returned: object, source: Source) -> Example:
    match returned:
        case (nn.Module() as model, inputs):
            return _training(model, inputs, None, ())
        case (nn.Module() as model, inputs, loss) if loss is None or callable(loss):
            return _training(model, inputs, loss, ())
        case (nn.Module() as model, inputs, loss, targets) if callable(loss):
            return _training(model, inputs, loss, targets)
        case _:
            kinds = type(returned).__name__
            if isinstance(returned, tuple):
                kinds = f"({', '.join(type(item).__name__ for item in returned)})"
            raise InputError(f"{source.function}() in {source.name!r} returns {kinds}", _RETURNS)


def _training(
    model: nn.Module, inputs: object, loss: Callable[..., Tensor] | None, targets: object
) -> Example:
    named: Mapping[str, object] = inputs if isinstance(inputs, Mapping) else {}
    positional = () if isinstance(inputs, Mapping) else _tuple(inputs)
    example = Example(
        model=model if model.training else model.train(),
        inputs=positional,
        named=named,
        loss=loss,
        targets=_tuple(targets),
        notes=tuple(_notes(model)),
    )
    return _on_one_device(example)


def _notes(model: nn.Module) -> Iterator[str]:
    apart = evaluating(model)
    if apart:
        yield (
            f"{', '.join(map(repr, apart))} of the model: in evaluation mode while the model is "
            "trained (no dropout, batch norms by their running statistics); if that is not meant, "
            "call train() before the model is returned"
        )


def _tuple(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _on_one_device(example: Example) -> Example:
    """Everything on meta, if anything is: constants from NumPy, say, escape the default device."""
    entering = (example.inputs, dict(example.named), example.targets)
    tensors = [t for t in pytree.tree_leaves(entering) if isinstance(t, Tensor)]
    state = [*example.model.parameters(), *example.model.buffers()]
    if not any(tensor.is_meta for tensor in (*tensors, *state)):
        return example
    inputs, named, targets = pytree.tree_map_only(Tensor, lambda t: t.to("meta"), entering)
    model = example.model.to("meta")
    return msgspec.structs.replace(
        example, model=model, inputs=inputs, named=named, targets=targets
    )
