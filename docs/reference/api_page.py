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
`meshwright.plan.model` would find the package `meshwright.plan` where the function was."""

NEEDS_TORCH = {"capture_model", "parallelize", "Parallelized", "all_reduce", "use_reduction_plan"}


def api_page() -> str:
    """All public names."""
    parts = ["# Python interface", INTRODUCTION]
    for title, names in (
        ("Main path", meshwright.MAIN_PATH),
        ("Placements and reductions alone", meshwright.REDUCTIONS),
    ):
        parts += [f"## {title}", _list(names), *(_name(own, names[own]) for own in names)]
    return "\n\n".join(parts)


def _list(names: Mapping[str, str]) -> str:
    rows = ((f"[`{own}`](#{own.lower()})", cell(_first_line(own, names[own]))) for own in names)
    return table(("name", "what it is"), rows)


def _first_line(name: str, where: str) -> str:
    text = _text(name, where).partition("\n\n")[0]
    return f"{text} *torch*" if name in NEEDS_TORCH else text


def _text(name: str, where: str) -> str:
    own = getattr(meshwright, name)
    if inspect.isclass(own) or inspect.isfunction(own):
        return inspect.getdoc(own) or ""
    return constant_text(import_module(f"meshwright.{where}"), name)


def _name(name: str, where: str) -> str:
    own = getattr(meshwright, name)
    parts = [f"### {name}"]
    if inspect.isfunction(own):
        parts.append(f"```py\n{name}{signature(own)}\n```")
    parts.append(docstring(_text(name, where)))
    if inspect.isclass(own):
        held = [it for it in fields(own) if not it.name.startswith("_")]
        if held:
            described = ((code(it.name), code(it.kind), cell(it.text)) for it in held)
            parts.append(table(("field", "type", "meaning"), described))
        methods = [(code(text), cell(line)) for text, line in _methods(own)]
        if methods:
            parts.append(table(("method", "what it gives"), methods))
    return "\n\n".join(parts)


def _methods(own: type) -> list[tuple[str, str]]:
    """What a class itself offers, with the first line about each."""
    found = []
    for name, held in vars(own).items():
        if name.startswith("_") or name in {"sheet", "at"}:
            continue
        bound = held.__func__ if isinstance(held, staticmethod | classmethod) else held
        line = (inspect.getdoc(bound) or "").partition("\n\n")[0]
        if inspect.isfunction(bound):
            found.append((f"{name}{signature(bound)}", line))
        elif isinstance(held, property) or type(held).__name__ == "cached_property":
            found.append((name, line))
    return found
