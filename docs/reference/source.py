"""What only the source says. Enters: classes, modules. Leaves: fields with the texts below them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from textwrap import dedent
from types import ModuleType
from typing import Literal, NamedTuple, get_args, get_origin


class Field(NamedTuple):
    """A field of a record as it is written."""

    name: str
    kind: str
    default: str | None
    """None if it must be given."""
    text: str


def fields(record: type) -> tuple[Field, ...]:
    """The fields of a record, with the docstrings below them."""
    (tree,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    found = []
    for own, text in _described(tree.body):
        if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name):
            default = None if own.value is None else ast.unparse(own.value)
            kind = _spelled_out(ast.unparse(own.annotation), inspect.getmodule(record))
            found.append(Field(own.target.id, kind, default, text))
    return tuple(found)


def _spelled_out(kind: str, module: ModuleType | None) -> str:
    """A type; the values of one that has a few and a name."""
    own = getattr(module, kind, None)
    return " | ".join(map(repr, get_args(own))) if get_origin(own) is Literal else kind


def signature(function: Callable[..., object], width: int = 80) -> str:
    """Arguments and result as they are written, without `self`; a line each where it is long."""
    (tree,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    own = tree.args
    missing: list[ast.expr | None] = [None] * (len(own.args) - len(own.defaults))
    found = [_argument(*it) for it in zip(own.args, [*missing, *own.defaults], strict=True)]
    if own.vararg or own.kwonlyargs:
        found.append(f"*{_argument(own.vararg, None)}" if own.vararg else "*")
    found += [_argument(*it) for it in zip(own.kwonlyargs, own.kw_defaults, strict=True)]
    if own.kwarg:
        found.append(f"**{_argument(own.kwarg, None)}")
    found = [text for text in found if text not in {"self", "cls"}]
    result = ast.unparse(tree.returns) if tree.returns else "None"
    short = f"({', '.join(found)}) -> {result}"
    if len(short) < width:
        return short
    return "(\n" + "".join(f"    {text},\n" for text in found) + f") -> {result}"


def _argument(own: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(own.annotation)}" if own.annotation else ""
    return f"{own.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


def constant_text(module: ModuleType, name: str) -> str:
    """The docstring below a constant of a module."""
    for own, text in _described(ast.parse(inspect.getsource(module)).body):
        targets = own.targets if isinstance(own, ast.Assign) else [getattr(own, "target", None)]
        if any(isinstance(it, ast.Name) and it.id == name for it in targets):
            return text
    raise LookupError(f"{module.__name__} has no {name}")


def _described(body: list[ast.stmt]) -> list[tuple[ast.stmt, str]]:
    """Statements, each with the docstring that follows it."""
    found = []
    for own, after in zip(body, [*body[1:], None], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        found.append((own, text))
    return found
