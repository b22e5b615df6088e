"""A server that forks commands of the program, and Python code, from one process which has imported
all that they use. Enters: a socket; each connection brings a command and the files it reads and
writes. Leaves: the exit code of each.

A command pays neither for importing torch (3 s of a core) nor for loading compiled code (2 s); what
it prints, writes and returns is that of `python -m meshwright` (or `python -c`) in its folder.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

PATIENCE = 900
"""Seconds after which a command is killed, which may have to compile first."""

LONGEST = 1 << 20
"""Bytes of words and environment."""


def warm() -> None:
    """Import, load and call once what commands would else do each for themselves."""
    import meshwright
    from meshwright.capture.load import load_model
    from meshwright.cli.main import command
    from meshwright.search.joint.jit_warm_up import warm_up

    for module in pkgutil.walk_packages(meshwright.__path__, "meshwright."):
        if module.name != "meshwright.__main__":
            importlib.import_module(module.name)
    with redirect_stdout(io.StringIO()):
        command().main(["clusters"], "meshwright", standalone_mode=False)
    load_model("zoo:lenet/tiny", 8)
    warm_up()
    gc.freeze()


def perform(command: dict[str, Any], files: Sequence[int]) -> int:
    """Become the command; to be called in a process of its own. Its exit code."""
    signal.alarm(PATIENCE)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(command["environment"])
    os.chdir(command["folder"])
    sys.path[0] = command["folder"]
    words = command["words"]
    sys.argv = ["meshwright", *words]
    code = 0
    try:
        if words[:1] == ["-c"]:
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(words[1], vars(main))
        else:
            runpy.run_module("meshwright", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def answer(connection: socket.socket) -> None:
    """Fork what a connection asks for, and tell how it ended."""
    content, files, _, _ = socket.recv_fds(connection, LONGEST, 3)
    child = os.fork()
    if child == 0:
        connection.close()
        os._exit(perform(json.loads(content), files))
    for file in files:
        os.close(file)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def serve(path: str) -> None:
    """Answer one connection after the other for as long as standard input is open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(path)
        door.listen()
        warm()
        print("ready", flush=True)
        while sys.stdin not in select.select([door, sys.stdin], [], [])[0]:
            connection, _ = door.accept()
            with connection:
                answer(connection)


if __name__ == "__main__":
    serve(sys.argv[1])
