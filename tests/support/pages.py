"""Pages of the documentation, as a reader would follow them: their files and their commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.typed import typed

DOCS = Path(__file__).parents[2] / "docs"


def scripts(page: str, folder: Path) -> None:
    """The page's Python and TOML files."""
    text = (DOCS / page).read_text()
    for name, content in re.findall(r"```(?:py|toml)\n# ([\w.-]+)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)


def commands(page: str) -> list[str]:
    """What the page says to type, in the order in which it stands there."""
    text = (DOCS / page).read_text()
    lines = re.findall(r"^(?:\$ )?((?:meshwright|torchrun) .*)$", text, re.MULTILINE)
    return [re.split(r" [|#]|  +#", line)[0] for line in lines]


def printed_by(command: str, folder: Path) -> str:
    """What a command prints on standard output; it must end well."""
    words = command.split()
    environment = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    if words[0] == "meshwright":
        result = typed(*words[1:], folder=folder, **environment)
    else:
        words[0] = str(Path(sys.executable).parent / "torchrun")
        result = subprocess.run(
            words,
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout
