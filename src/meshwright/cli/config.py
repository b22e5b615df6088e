"""Configuration file (TOML) with defaults for command-line options. Enters: a TOML file. Leaves:
defaults of the verbs.

    [plan]                 the verb, and below it its long options without the dashes;
    cluster = "dgx-h100"   a number stands for its text, a list for an option given repeatedly
    [rules.verify]         a verb of a verb
What is said on the command line wins. Knows the verbs only as the parser describes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import InputError, nearest, shown

if TYPE_CHECKING:
    # The parser's own types have no public name that all versions of typer share.
    Command = Any
    Option = Any

FILE = "meshwright.toml"
"""Read from the working folder if it is there and no other file is named."""


def configured(command: Command, path: str | None) -> dict[str, Any]:
    """Defaults for the verbs below a command, by the names that the parser has for options."""
    if path is None:
        if not Path(FILE).is_file():
            return {}
        path = FILE
    try:
        return _section(command, _read(path))
    except InputError as error:
        raise error.at(path) from None


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read it ({error.strerror})", "give --config the path of a readable file"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"this is no TOML ({error})", "write it as in docs/reference/cli.md"
        ) from None


def _section(command: Command, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of a group, or options of a verb."""
    below: Mapping[str, Command] | None = getattr(command, "commands", None)
    if below is None:
        return _options(command, settings)
    parsed = {}
    for name, content in settings.items():
        if name not in below:
            raise InputError(f"there is no verb {name!r}", nearest(name, below))
        if not isinstance(content, dict):
            raise InputError(
                f"{name!r} is {shown(content)}", f"begin a section with [{name}], options below it"
            )
        try:
            parsed[name] = _section(below[name], content)
        except InputError as error:
            raise error.at(f"[{name}]") from None
    return parsed


def _options(verb: Command, settings: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Option] = {}
    for parameter in verb.params:
        if parameter.param_type_name == "option" and "--help" not in parameter.opts:
            long = max((name for name in parameter.opts if name.startswith("--")), key=len)
            known[long.removeprefix("--")] = parameter
    options = {}
    for name, value in settings.items():
        if name not in known:
            raise InputError(f"there is no option {name!r}", nearest(name, known))
        options[known[name].name] = _as_given(name, value, repeated=known[name].multiple)
    return options


def _as_given(name: str, value: object, *, repeated: bool) -> object:
    """A value as the parser would have it from the command line."""
    if isinstance(value, dict) or (isinstance(value, list) and not repeated):
        raise InputError(f"{name!r} is {shown(value)}", "give one value")
    if isinstance(value, list):
        return [str(entry) for entry in value]
    if repeated:
        return [str(value)]
    return value if isinstance(value, bool) else str(value)


def config_file(path: str | None) -> str | None:
    """The file that --config or else MESHWRIGHT_CONFIG names."""
    return path or os.environ.get("MESHWRIGHT_CONFIG") or None
