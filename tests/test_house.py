"""The house itself: packaging and versions say the same everywhere."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import meshwright

ROOT = Path(__file__).parent.parent


def project() -> dict[str, object]:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    metadata: dict[str, object] = content["project"]
    return metadata


def test_one_version() -> None:
    assert project()["version"] == meshwright.__version__
    assert f"## {meshwright.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_public_names_are_there() -> None:
    for name in meshwright.__all__:
        assert getattr(meshwright, name).__doc__


def test_public_names_are_listed() -> None:
    assert {"Axis", "BACKENDS", "Cluster", "__version__", "rank"} <= set(dir(meshwright))


def test_every_dependency_is_pinned() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    required = [*extras["dev"], *extras["torch"], "hatchling>="]
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    assert {text.partition(">=")[0] for text in [*required, *dependencies]} <= pinned


SOURCE = ROOT / "src" / "meshwright"


def test_internals_names_what_is_there() -> None:
    page = (ROOT / "docs" / "internals.md").read_text()
    named = re.findall(r"`([\w/]+\.py):(\w+)`", page)
    assert len(named) > 50
    missing = [f"{path}:{name}" for path, name in named if name not in top_level(SOURCE / path)]
    assert missing == []


def test_internals_lists_the_rooms() -> None:
    page = (ROOT / "docs" / "internals.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page.partition("## The walk")[0], re.MULTILINE)
    assert sorted(listed) == sorted(room.name for room in SOURCE.iterdir() if room.is_dir())


def top_level(path: Path) -> set[str]:
    """What a module defines; nothing if it is not there."""
    if not path.exists():
        return set()
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def classes() -> list[tuple[str, str]]:
    """Public classes of the source by name, each with its file; models of the zoo have the names of
    their papers' parts, and a script that is exported is a text.
    """
    return [
        (node.name, str(path.relative_to(SOURCE)))
        for path in sorted(SOURCE.rglob("*.py"))
        if "zoo" not in path.parts and path.stem != "pytorch_template"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_no_two_classes_have_the_same_name() -> None:
    files: dict[str, list[str]] = {}
    for name, file in classes():
        files.setdefault(name, []).append(file)
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


def test_no_two_modules_have_the_same_name() -> None:
    """But for verbs of the command line, which are called for what they do."""
    files: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if not path.stem.startswith("__") and "verbs" not in path.parts:
            files.setdefault(path.stem, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


DIALECT = {
    "Alone", "Bench", "Board", "Bundle", "Desk", "Field", "Found", "Frame", "Game", "Joined",
    "Joint", "Kept", "Lane", "Leg", "Lookout", "Lying", "Outlook", "Planned", "Port", "Problem",
    "Question", "Rest", "Seats", "Settler", "Shelf", "Skeleton", "Sketch", "Toll", "Unit",
    "Waist", "Walk", "Ways", "Wire", "Wiring",
}  # fmt: skip
"""Words of ours for what the field has a name for (docs/internals.md, glossary)."""


def test_classes_have_the_names_of_the_field() -> None:
    assert [(name, file) for name, file in classes() if name in DIALECT] == []


FURNITURE = {"back", "found", "given", "here", "lot", "made", "own", "there", "told"}
"""Names that do not say what they hold."""


def test_locals_say_what_they_hold() -> None:
    furniture = {
        f"{path.relative_to(SOURCE)}:{function.lineno} {word}"
        for path in SOURCE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name in ast.walk(function)
        for word in bound(name)
        if word in FURNITURE
    }
    assert furniture == set()


def bound(node: ast.AST) -> tuple[str, ...]:
    """The local that a node binds, if it binds one."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return (name,)
        case _:
            return ()


SOURCE_LINES = 102_400
"""Of all modules, at most: it goes up with a feature, and a line in docs/decisions."""


def test_the_source_keeps_to_its_budget() -> None:
    lines = [len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")]
    assert sum(lines) <= SOURCE_LINES


LINES = 400
"""Of a module, at most."""

LONGER_MODULES = {"run/exec/executor.py": 455, "search/joint/planner.py": 402}
"""Those that are longer, and how long: these numbers only go down."""


def test_modules_are_short() -> None:
    lines = {
        str(path.relative_to(SOURCE)): len(path.read_text().splitlines())
        for path in SOURCE.rglob("*.py")
    }
    longest = dict.fromkeys(lines, LINES) | LONGER_MODULES
    assert {file: count for file, count in lines.items() if count > longest[file]} == {}


BODY = 60
"""Lines of a function below its signature and docstring, at most."""

LONGER_FUNCTIONS = {
    "cli/verbs/plan.py:plan": 96,
    "rewrite/language/compute.py:compute": 61,
    "rewrite/verify/symbolic_operators.py:_element": 66,
    "simulate/assign.py:_lay_way": 61,
}
"""Those that are longer, and how long: these numbers only go down."""


def test_functions_are_short() -> None:
    longer = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[min(ast.get_docstring(node) is not None, len(node.body) - 1)]
            name = f"{path.relative_to(SOURCE)}:{node.name}"
            length = (node.end_lineno or 0) - first.lineno + 1
            if length > LONGER_FUNCTIONS.get(name, BODY):
                longer[name] = length
    assert longer == {}


def test_the_map_of_test_support_is_whole() -> None:
    folder = ROOT / "tests" / "support"
    named = re.findall(r"`(\w+)`", (folder / "README.md").read_text())
    assert sorted(named) == sorted(module.stem for module in folder.glob("[!_]*.py"))
