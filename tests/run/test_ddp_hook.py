"""Reduction programs as a hook of DistributedDataParallel, against plain DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.run.launch.ranks import run_ranks
from support.ddp_hooked import require_plain_ddp
from support.machines import machine
from support.wire_bodies import broken_program, refused_hook

pytestmark = pytest.mark.ranks


def test_training_is_that_of_plain_ddp() -> None:
    require_plain_ddp()


def test_a_plan_that_sums_over_other_ranks_is_a_sentence() -> None:
    plan = ReductionPlan.chosen(machine(2, 2), bytes=1024, axes={"data": 2}, matrix="[[2 1] [1 2]]")
    assert run_ranks(refused_hook, plan, ranks=4)[0] == (
        "the model is trained by ranks [0, 1, 2, 3] together, and the reduction plan sums over "
        "ranks [0, 1]; choose a plan for these ranks, or give the model a process group of those."
    )


def test_the_script_of_the_page_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reductions.md").read_text()
    for kind, name in (("toml", "two-nodes.toml"), ("py", "train.py")):
        (tmp_path / name).write_text(_block(page, kind, f"# {name}\n"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*command, "--nproc-per-node", "4", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == _block(page, "", "node.")


def _block(page: str, kind: str, begin: str) -> str:
    """The block of a page that begins so."""
    mark = f"```{kind}\n{begin}"
    assert page.count(mark) == 1
    return begin + page.partition(mark)[2].partition("```")[0]


def test_a_program_that_fails_fails_the_backward_pass() -> None:
    (said,) = run_ranks(broken_program, ranks=1)
    assert "out of paper" in str(said)
