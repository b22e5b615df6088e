"""Every example in the README and the docs is run, and prints what stands there.

`UPDATE_EXAMPLES=1 make test` writes what the commands print into the pages instead.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from support.typed import typed

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(console|python|py|sh|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = "110"


def blocks(kind: str) -> list[tuple[str, int, str]]:
    examples = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match.group(1) == kind:
                line = text.count("\n", 0, match.start()) + 1
                examples.append((str(page.relative_to(ROOT)), line, match.group(2)))
    return examples


def session(text: str, folder: Path) -> str:
    """A console session with what its commands really print."""
    printed = []
    for line in text.splitlines():
        if not line.startswith("$ "):
            continue
        words = shlex.split(line[2:])
        assert words[0] == "meshwright", "only meshwright commands are run by the tests"
        pipe = words.index("|") if "|" in words else len(words)
        result = typed(*words[1:pipe], folder=folder, COLUMNS=WIDTH)
        output = result.stdout + result.stderr
        if pipe < len(words):
            command, count = words[pipe + 1 :]
            assert command in ("head", "tail")
            lines, number = output.splitlines(), int(count.lstrip("-"))
            output = "\n".join(lines[:number] if command == "head" else lines[-number:])
        stripped = "\n".join(row.rstrip() for row in output.splitlines())
        printed.append(f"{line}\n{stripped.strip(chr(10))}\n")
    return "\n".join(printed)


@pytest.fixture
def folder(tmp_path: Path, page: str) -> Path:
    """A folder with the files that pages name in the first line of a block; those of Python are
    the page's own, and so are settings.
    """
    for source, _, text in (*blocks("toml"), *blocks("text"), *blocks("py")):
        first = text.splitlines()[0]
        endings = (
            (".toml", ".txt", ".rules", ".py") if source == page else (".toml", ".txt", ".rules")
        )
        if first.startswith("# ") and first.endswith(endings) and first != "# meshwright.toml":
            (tmp_path / first[2:]).write_text(text)
    return tmp_path


def confirm(page: str, text: str, real: str) -> None:
    """The block says what really happens; or, on request, is made to."""
    if os.environ.get("UPDATE_EXAMPLES"):
        path = ROOT / page
        path.write_text(path.read_text().replace(text, real))
    else:
        assert text == real


@pytest.mark.parametrize(("page", "line", "text"), blocks("console"))
def test_console(page: str, line: int, text: str, folder: Path) -> None:
    confirm(page, text, session(text, folder))


@pytest.mark.parametrize(("page", "line", "text"), blocks("python"))
def test_python(page: str, line: int, text: str, folder: Path) -> None:
    """A Python block ends with what it prints, each line behind `# `."""
    code, mark, _ = text.partition("# prints:\n")
    result = typed("-c", code, folder=folder)
    assert result.returncode == 0, result.stderr
    printed = "".join(f"# {line}".rstrip() + "\n" for line in result.stdout.splitlines())
    confirm(page, text, code + mark + printed)


@pytest.mark.parametrize(("page", "line", "text"), blocks("sh"))
def test_shell(page: str, line: int, text: str) -> None:
    """What is typed or handed to Slurm can be read by a shell; the tutorial's is run besides."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_link_to_pages_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", CODE.sub("", page.read_text())):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
