"""The printed torch scripts, performed by real ranks over gloo."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.typed import typed

pytestmark = pytest.mark.ranks

pytest.importorskip("torch", reason="the printed scripts need torch")

FORKED = """
import os, runpy, sys, traceback
import torch, torch.distributed
world, script = int(sys.argv[1]), sys.argv[2]
children = []
for rank in range(world):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        torch.set_num_threads(1)
        code = 1
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
sys.exit(max(codes))
"""
"""Ranks forked from one parent that has imported torch: a second instead of ten."""


def script(path: Path, *arguments: str) -> Path:
    printed = typed("reduce", "--torch", *arguments)
    assert printed.returncode == 0, printed.stderr
    path.write_text(printed.stdout)
    return path


def environment() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
    }


def performed(world: int, file: Path) -> str:
    """What a script prints when so many forked ranks run it; it must end well."""
    result = subprocess.run(
        [sys.executable, "-c", FORKED, str(world), str(file)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


SHAPES = [
    ("2x4", 8, ["--cluster", "gcp-a100", "--nodes", "2", "--gpus", "4"]),
    ("2x2x2", 8, ["--cluster", "summit", "--nodes", "2", "--gpus", "2"]),
    ("2x3", 6, ["--cluster", "gcp-a100", "--nodes", "2", "--gpus", "3"]),
]
PROGRAMS = {
    "2x4": [
        "",
        "node.InsideGroup.Reduce; node.Master(root).AllReduce; node.InsideGroup.Broadcast",
        "root.InsideGroup.ReduceScatter; node.InsideGroup.AllGather; node.Parallel(root).AllGather",
        "node.InsideGroup.Reduce; node.Master(root).ReduceScatter; node.InsideGroup.Broadcast; "
        "node.Parallel(root).AllGather",
    ],
    "2x2x2": [
        "socket.InsideGroup.ReduceScatter; socket.Parallel(node).ReduceScatter; "
        "node.Parallel(root).AllReduce; node.InsideGroup.AllGather",
    ],
    "2x3": [
        "node.Parallel(root).ReduceScatter; node.InsideGroup.ReduceScatter; "
        "root.InsideGroup.AllGather"
    ],
}
CASES = [
    (world, [*machine, *(["--program", program] if program else [])])
    for shape, world, machine in SHAPES
    for program in PROGRAMS[shape]
]


@pytest.mark.parametrize(("world", "arguments"), CASES)
def test_a_printed_script_equals_all_reduce(
    tmp_path: Path, world: int, arguments: list[str]
) -> None:
    file = script(
        tmp_path / "program.py", "--axes", f"data={world}", "--reduce", "data", *arguments
    )
    assert performed(world, file) == "equal to AllReduce"


def test_a_reduction_over_some_axes_only(tmp_path: Path) -> None:
    file = script(
        tmp_path / "program.py",
        "--nodes",
        "2",
        "--gpus",
        "4",
        "--axes",
        "a=2,b=2,c=2",
        "--matrix",
        "[[1 2] [1 2] [2 1]]",
        "--reduce",
        "a+c",
    )
    assert performed(8, file) == "equal to AllReduce"


def test_under_torchrun_as_the_script_says(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torchrun is not beside this Python")
    file = script(
        tmp_path / "program.py",
        "--nodes",
        "2",
        "--gpus",
        "2",
        "--axes",
        "data=4",
        "--reduce",
        "data",
    )
    variables = environment()
    port = variables["MASTER_PORT"]
    command = [torchrun, "--nproc-per-node", "4", "--master-port", port, str(file)]
    result = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=180, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "equal to AllReduce" in result.stdout
