"""Module fingerprint: classes, attributes and code that decide what a model computes. Enters: a
module. Leaves: of each of its modules class, plain attributes and code, as text.

Plain are numbers, texts, functions and containers of them, and configurations (dataclasses,
namespaces, those of Transformers), of which each is told once. Of code that is not a library's the
methods count, without comments. Left out is what changes without changing what is computed.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import torch
from torch import nn

from meshwright.capture.operators.source_lines import is_user_file
from meshwright.graph.traced import CHANGING, EVALUATION, MODE, Alike, Settings

OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes that every module has."""

LEFT_OUT = frozenset(
    {"device", "dtype", "torch_dtype", "gradient_checkpointing", "architectures"}
    | {"_is_hf_initialized", "transformers_version"}
)
"""Attributes and configured values that a plan decides, or that say where a model came from."""

LONGEST = 200
"""Characters of a value; of longer ones the digest counts."""


Changing = Collection[tuple[str, str]]
"""Settings, by path and name, that do not count since forward writes them."""


def modules_of(model: nn.Module, changing: Changing = ()) -> tuple[Alike, ...]:
    """The modules of a model, those that are alike together.

    >>> [(group.kind, group.paths) for group in modules_of(nn.Sequential(nn.ReLU(), nn.ReLU()))]
    [('Sequential', ('',)), ('ReLU', ('0', '1'))]
    """
    alike: dict[tuple[str, Settings], list[str]] = {}
    for path, description in settings_of(model, changing).items():
        alike.setdefault(description, []).append(path)
    return tuple(
        Alike(kind=kind, settings=settings, paths=tuple(paths))
        for (kind, settings), paths in alike.items()
    )


def settings_of(model: nn.Module, changing: Changing = ()) -> dict[str, tuple[str, Settings]]:
    """Class and settings of every module, by its path."""
    described_ids: set[int] = set()

    def settings(path: str, module: nn.Module) -> Iterator[tuple[str, str]]:
        if model.training and not module.training:
            yield MODE, EVALUATION
        yield from _settings(module, {name for at, name in changing if at == path}, described_ids)

    return {
        path: (type(module).__qualname__, tuple(sorted(settings(path, module))))
        for path, module in model.named_modules()
    }


def evaluating(model: nn.Module) -> list[str]:
    """Paths of the outermost modules that evaluate in a model that is trained.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))
    >>> _ = model[1].eval()
    >>> evaluating(model), evaluating(model.eval())
    (['1'], [])
    """
    if not model.training:
        return []
    paths = [path for path, module in model.named_modules() if not module.training]
    return [p for p in paths if p.rpartition(".")[0] not in paths]


def changed_settings(
    before: Mapping[str, tuple[str, Settings]], model: nn.Module
) -> Iterator[tuple[str, str]]:
    """Settings that are no longer what they were, by path and name.

    Models of Transformers note in their configuration what they have found out from labels.
    """
    for path, (_, settings) in settings_of(model).items():
        known = dict(before[path][1]) if path in before else {}
        yield from ((path, name) for name, text in settings if known.get(name, text) != text)


def constant_text(value: object) -> str:
    """An argument that is no tensor, as text that is the same in every process.

    >>> constant_text(0.5), constant_text(object())
    ('0.5', 'object')
    """
    return _plain(value) or type(value).__qualname__


def _settings(
    module: nn.Module, changing: Collection[str], described_ids: set[int]
) -> Iterator[tuple[str, str]]:
    yield from ((name, CHANGING) for name in changing)
    of_library = _is_of_library(type(module))
    for name, value in vars(module).items():
        if name in OF_TORCH or name in LEFT_OUT or name in changing:
            continue
        if of_library and name.startswith("_"):
            continue
        text = _plain(value)
        if text is not None:
            yield name, text
        elif id(value) not in described_ids and (items := configured(value)) is not None:
            described_ids.add(id(value))
            yield from (setting for setting in _told(name, items) if setting[0] not in changing)
    written: type = type(module)
    code = "" if of_library else _code(written)
    if code:
        yield "the code", code


def _is_of_library(cls: type) -> bool:
    """Whether a class is installed; such classes note things of their own in hidden attributes."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return "site-packages" in Path(file).parts


def _told(name: str, items: Mapping[Any, object]) -> Iterator[tuple[str, str]]:
    for key, value in ((str(key), value) for key, value in items.items()):
        text = _plain(value)
        if text is not None and not key.startswith("_") and key not in LEFT_OUT:
            yield f"{name}.{key}", text


def configured(value: object) -> dict[Any, Any] | None:
    """What a configuration says; None if it is something else."""
    if isinstance(value, nn.Module | torch.Tensor | type) or callable(value):
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return getattr(value, "__dict__", None)


def _plain(value: object) -> str | None:
    """A value as text, if it is plain."""
    match value:
        case None | bool() | int() | float() | str() | torch.dtype():
            text = repr(value)
        case FunctionType():
            text = value.__qualname__
        case list() | tuple():
            parts = [_plain(element) for element in value]
            if any(part is None for part in parts):
                return None
            text = f"[{', '.join(filter(None, parts))}]"
        case _:
            return None
    return text if len(text) <= LONGEST else f"digest {_digest(text)}"


@lru_cache(maxsize=1024)
def _code(cls: type) -> str:
    """A digest of the methods of a class, and of those it inherits, that users have written.

    What a library hangs into PyTorch's own classes, some of it only when a model gets its weights,
    is none of them.
    """
    dumped = [
        _dumped(method)
        for base in cls.__mro__
        if base.__module__.partition(".")[0] != "torch"
        for name, method in sorted(vars(base).items())
        if isinstance(method, FunctionType) and not name.startswith("__")
    ]
    written = [text for text in dumped if text]
    return f"digest {_digest(' '.join(written))}" if written else ""


def _dumped(method: FunctionType) -> str:
    file = Path(method.__code__.co_filename)
    if "site-packages" in file.parts or not is_user_file(file):
        return ""
    try:
        return _written(ast.parse(textwrap.dedent(inspect.getsource(method))))
    except (OSError, SyntaxError, ValueError):
        return ""


def _written(node: object) -> str:
    """A syntax tree as text, the same in every version of Python: fields that later ones have
    besides are empty, and empty ones are left out.
    """
    match node:
        case ast.AST():
            fields = [(name, _written(value)) for name, value in ast.iter_fields(node)]
            body = ", ".join(f"{name}={text}" for name, text in fields if text)
            return f"{type(node).__name__}({body})"
        case list():
            return f"[{', '.join(map(_written, node))}]" if node else ""
        case None:
            return ""
        case _:
            return repr(node)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
