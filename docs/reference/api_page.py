"""The page of the Python interface. Enters: the public names. Leaves: Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module

import meshwright
from docs.reference.markdown import cell, code, docstring, table
from docs.reference.source import constant_text, fields, signature

INTRODUCTION = """`from meshwright import NAME`. These names are stable: they change only with a
note in the [changelog](../../CHANGELOG.md); everything else may move. `import meshwright` loads
nothing heavy; names marked *torch* need `pip install "meshwright[torch]"`. Results print well:
`print(noun)` in a terminal, and as tables in a notebook.

A mistake in what is given raises `InputError`, a `ValueError` whose text says what to change. No
name is that of a package of Meshwright, as `plan` or `simulate` would be: whoever imports
`meshwright.plan.plan` would find the package `meshwright.plan` where the function was."""

NEEDS_TORCH = {"capture_model", "parallelize", "Parallelized", "all_reduce", "use_reduction_plan"}


def api_page() -> str:
    """All public names."""
    parts = ["# Python interface", INTRODUCTION]
    for title, names in (
        ("Main path", meshwright.MAIN_PATH),
        ("Placements and reductions alone", meshwright.REDUCTIONS),
    ):
        parts += [f"## {title}", _list(names), *(_name(name, names[name]) for name in names)]
    return "\n\n".join(parts)


def _list(names: Mapping[str, str]) -> str:
    rows = (
        (f"[`{name}`](#{name.lower()})", cell(_first_line(name, names[name]))) for name in names
    )
    return table(("name", "what it is"), rows)


def _first_line(name: str, where: str) -> str:
    text = _text(name, where).partition("\n\n")[0]
    return f"{text} *torch*" if name in NEEDS_TORCH else text


def _text(name: str, where: str) -> str:
    member = getattr(meshwright, name)
    if inspect.isclass(member) or inspect.isfunction(member):
        return inspect.getdoc(member) or ""
    return constant_text(import_module(f"meshwright.{where}"), name)


def _name(name: str, where: str) -> str:
    member = getattr(meshwright, name)
    parts = [f"### {name}"]
    if inspect.isfunction(member):
        parts.append(f"```py\n{name}{signature(member)}\n```")
    parts.append(docstring(_text(name, where)))
    if inspect.isclass(member):
        held = [it for it in fields(member) if not it.name.startswith("_")]
        if held:
            described = ((code(it.name), code(it.kind), cell(it.text)) for it in held)
            parts.append(table(("field", "type", "meaning"), described))
        methods = [(code(text), cell(line)) for text, line in _methods(member)]
        if methods:
            parts.append(table(("method", "what it gives"), methods))
    return "\n\n".join(parts)


def _methods(record: type) -> list[tuple[str, str]]:
    """What a class itself offers, with the first line about each."""
    methods = []
    for name, held in vars(record).items():
        if name.startswith("_") or name in {"sheet", "at"}:
            continue
        bound = held.__func__ if isinstance(held, staticmethod | classmethod) else held
        line = (inspect.getdoc(bound) or "").partition("\n\n")[0]
        if inspect.isfunction(bound):
            methods.append((f"{name}{signature(bound)}", line))
        elif isinstance(held, property) or type(held).__name__ == "cached_property":
            methods.append((name, line))
    return methods
