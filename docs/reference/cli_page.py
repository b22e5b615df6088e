"""The page of the command line. Enters: the parser's commands. Leaves: Markdown."""

from __future__ import annotations

from typing import Any

import typer

from docs.reference.markdown import cell, code, table
from meshwright.cli.examples import AS_WRITTEN, MARK, example_of, verbs
from meshwright.cli.exits import Exit
from meshwright.cli.main import command

INTRODUCTION = """`meshwright --help` lists the verbs; `meshwright VERB --help` says the same as
below. Tables are as wide as the terminal (or `COLUMNS`) and coloured on a terminal only;
`NO_COLOR=1` takes the colours away. What a verb prints with `--json` is told in
[json.md](../json.md)."""

COMPLETION = """`meshwright --install-completion` teaches the shell that runs it (bash, zsh,
fish, PowerShell) the verbs, their options, the models of the zoo and the clusters of the
catalogue; `--show-completion` only prints the script. `_MESHWRIGHT_COMPLETE=source_zsh
meshwright` prints that of another shell."""

CONFIGURATION = """A TOML file can hold what is given again and again. It is the one that
`--config FILE` names, else that of the environment variable `MESHWRIGHT_CONFIG`, else
`meshwright.toml` in the working folder; `--config /dev/null` reads none."""

EXAMPLE = """[plan]
cluster = "dgx-h100"
nodes = 2
memory = "38 GB"
forbid = ["channel@node"]

[rules.verify]
seconds = 120
"""

RULES = """A section is a verb, a key one of its long options without the dashes. A list stands for
an option that is given repeatedly, `true` for a switch. What is said on the command line wins. A
key or a section that is not known is refused, with the nearest name."""


def cli_page() -> str:
    """All verbs with their options and examples."""
    root = command()
    entries = list(verbs(root, "meshwright"))
    listed = [f"[`{path}`](#{_anchor(path)})" for path, _ in entries]
    rows = ((name, cell(_summary(verb))) for name, (_, verb) in zip(listed, entries, strict=True))
    return "\n\n".join(
        [
            "# Command line",
            INTRODUCTION,
            table(("verb", "what it does"), rows),
            "## For all verbs",
            "These stand before the verb, as in `meshwright --verbose plan ...`.",
            _options(root),
            "## Exit codes",
            table(("code", "meaning"), ((str(int(it)), cell(it.meaning)) for it in Exit)),
            "## Configuration file",
            CONFIGURATION,
            f"```toml\n{EXAMPLE}```",
            RULES,
            "## Completion",
            COMPLETION,
            *(_verb(path, verb) for path, verb in entries),
        ]
    )


def _verb(path: str, verb: Any) -> str:
    text = verb.help.partition(MARK)[0].replace(AS_WRITTEN, "").strip()
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    usage = " ".join(verb.collect_usage_pieces(_context(verb)))
    return "\n\n".join(
        [
            f"## {path}",
            *paragraphs,
            f"```sh\n{path} {usage}\n\n# for example\n{example_of(verb)}\n```",
            _options(verb),
        ]
    )


def _options(verb: Any) -> str:
    shown = [option for option in verb.params if "--help" not in option.opts]
    return table(("option", "default", "meaning"), (_option(option, verb) for option in shown))


def _option(option: Any, verb: Any) -> tuple[str, str, str]:
    written = option.get_help_record(_context(verb))[0]
    shown = getattr(option, "show_default", None)
    default = _default(shown if isinstance(shown, str) else option.default)
    return code(written), "required" if option.required else default, cell(option.help or "")


def _default(value: object) -> str:
    if value is True:
        return "yes"
    return "" if value in (None, False, (), []) else code(str(value))


def _context(verb: Any) -> Any:
    return typer.Context(verb)


def _summary(verb: Any) -> str:
    first: str = verb.help.partition("\n\n")[0]
    return first


def _anchor(path: str) -> str:
    return path.replace(" ", "-")
