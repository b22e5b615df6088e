"""Commands of the program as one types them. Enters: words, a folder, an environment. Leaves: what
`subprocess` would tell of `python -m meshwright`, from a process that is forked and not started.

Tests of terminals, signals, encodings and start-up start the program itself. As a script, this is
the program: it is typed with the socket of the server before its words.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def _server() -> str:
    """The socket of a server that ends with this process."""
    folder = tempfile.mkdtemp()
    path = str(Path(folder, "door"))
    process = subprocess.Popen(
        [sys.executable, "-m", "support.command_server", path],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def end() -> None:
        process.communicate()
        shutil.rmtree(folder)

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return path


def _asked(path: str, command: Mapping[str, object], files: list[int]) -> int:
    """The exit code of a command whose standard files are these."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        door.connect(path)
        socket.send_fds(door, [json.dumps(command).encode()], files)
        return int(door.recv(64))


def typed(
    *words: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What comes of `meshwright WORDS`, typed in a folder, with more in the environment; `-c CODE`
    is code for Python.
    """
    command = {
        "words": words,
        "folder": str(folder or Path.cwd()),
        "environment": {**os.environ, **environment},
    }
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        code = _asked(_server(), command, [nothing.fileno(), out.fileno(), err.fileno()])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def program_in(folder: Path) -> None:
    """Write the program `meshwright`, for shells whose path has the folder."""
    script = folder / "meshwright"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S {__file__} {_server()} "$@"\n')
    script.chmod(0o755)


if __name__ == "__main__":
    own = {"words": sys.argv[2:], "folder": str(Path.cwd()), "environment": dict(os.environ)}
    raise SystemExit(_asked(sys.argv[1], own, [0, 1, 2]))
