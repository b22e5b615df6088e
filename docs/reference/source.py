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
    entries = []
    for statement, text in _described(tree.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = None if statement.value is None else ast.unparse(statement.value)
            kind = _spelled_out(ast.unparse(statement.annotation), inspect.getmodule(record))
            entries.append(Field(statement.target.id, kind, default, text))
    return tuple(entries)


def _spelled_out(kind: str, module: ModuleType | None) -> str:
    """A type; the values of one that has a few and a name."""
    alias = getattr(module, kind, None)
    return " | ".join(map(repr, get_args(alias))) if get_origin(alias) is Literal else kind


def signature(function: Callable[..., object], width: int = 80) -> str:
    """Arguments and result as they are written, without `self`; a line each where it is long."""
    (tree,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    arguments = tree.args
    missing: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    texts = [
        _argument(*it) for it in zip(arguments.args, [*missing, *arguments.defaults], strict=True)
    ]
    if arguments.vararg or arguments.kwonlyargs:
        texts.append(f"*{_argument(arguments.vararg, None)}" if arguments.vararg else "*")
    texts += [
        _argument(*it) for it in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        texts.append(f"**{_argument(arguments.kwarg, None)}")
    texts = [text for text in texts if text not in {"self", "cls"}]
    result = ast.unparse(tree.returns) if tree.returns else "None"
    short = f"({', '.join(texts)}) -> {result}"
    if len(short) < width:
        return short
    return "(\n" + "".join(f"    {text},\n" for text in texts) + f") -> {result}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


def constant_text(module: ModuleType, name: str) -> str:
    """The docstring below a constant of a module."""
    for statement, text in _described(ast.parse(inspect.getsource(module)).body):
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [getattr(statement, "target", None)]
        )
        if any(isinstance(it, ast.Name) and it.id == name for it in targets):
            return text
    raise LookupError(f"{module.__name__} has no {name}")


def _described(body: list[ast.stmt]) -> list[tuple[ast.stmt, str]]:
    """Statements, each with the docstring that follows it."""
    pairs = []
    for statement, after in zip(body, [*body[1:], None], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        pairs.append((statement, text))
    return pairs
