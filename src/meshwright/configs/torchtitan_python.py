"""torchtitan's configuration since 0.3: a Python function. Enters: the text of a module, a number
of devices. Leaves: a `Written`.

Nothing is run. Of the module's functions the last that assigns to options is read:
`config.section.option = value`, where the value is a literal, and `config.activation_checkpoint =
FullAC.Config()`. What is not assigned has torchtitan's default, not that of the recipe that the
function starts from, of which only the name is known: it says the model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from meshwright.base.errors import InputError
from meshwright.configs.torchtitan_toml import MODELS, read_tables
from meshwright.configs.written import Written

POLICIES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "selective"}

_REGISTRY = re.compile(r"torchtitan\.models\.(\w+)\.config_registry")

Tables = dict[str, dict[str, object]]


def read_torchtitan_python(text: str, devices: int) -> Written:
    """A module with a function that returns a configuration.

    >>> text = "def plan(): config.parallelism.tensor_parallel_degree = 2"
    >>> read_torchtitan_python(text, 8).config.degrees
    {'tensor': 2, 'context': 1, 'data': 4, 'pipeline': 1}
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"it is not Python: {error}", "give a torchtitan configuration") from None
    functions = [statement for statement in module.body if isinstance(statement, ast.FunctionDef)]
    assignments = [tables for function in functions if (tables := _tables(function))]
    if not assignments:
        raise InputError(
            "no function in it assigns to config.parallelism or config.training",
            "give a module with a function that returns torchtitan's Trainer.Config",
        )
    return read_tables(assignments[-1] | _model(module), devices)


def _tables(function: ast.FunctionDef) -> Tables:
    """The options that a function assigns, by section."""
    tables: Tables = {}
    for path, value in _assigned(function):
        match path:
            case ["activation_checkpoint"]:
                tables.setdefault("activation_checkpoint", {})["mode"] = _policy(value)
            case [section, option]:
                try:
                    tables.setdefault(section, {})[option] = ast.literal_eval(value)
                except ValueError:
                    raise InputError(
                        f"line {value.lineno}: {section}.{option} is {ast.unparse(value)!r}",
                        "write a number or a text; nothing is run here",
                    ) from None
            case _:
                pass
    return tables


def _assigned(function: ast.FunctionDef) -> Iterator[tuple[list[str], ast.expr]]:
    """Attributes of a name, without that name, and what they are set to."""
    for statement in function.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, path = statement.targets[0], list[str]()
            while isinstance(target, ast.Attribute):
                path.insert(0, target.attr)
                target = target.value
            if path and isinstance(target, ast.Name):
                yield path, statement.value


def _policy(value: ast.expr) -> str:
    words = ast.unparse(value)
    return next((mode for name, mode in POLICIES.items() if words.startswith(name)), "none")


def _model(module: ast.Module) -> Tables:
    """The model whose recipe is imported, as llama3_8b."""
    for statement in module.body:
        if not isinstance(statement, ast.ImportFrom):
            continue
        match = _REGISTRY.fullmatch(statement.module or "")
        for alias in statement.names if match else ():
            for name, flavor in MODELS:
                if alias.name == f"{name}_{flavor}".lower():
                    return {"model": {"name": name, "flavor": flavor}}
    return {}
