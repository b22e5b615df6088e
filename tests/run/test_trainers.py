"""Trainers of other libraries by plans: losses as on one device; skipped where one is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.plan.file import save_plan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.loop_plans import role_of

pytestmark = pytest.mark.ranks

EXAMPLES = Path(__file__).parents[2] / "examples" / "trainers"
NEEDS = {
    "transformers_trainer": ("transformers", "accelerate"),
    "lightning_trainer": ("lightning",),
}
PLANS = {"one": ("", 0), "dp": ("sample", 3), "tp": ("channel", 0)}


def plan_of(role: str, zero: int) -> Plan:
    graph = load_model(f"{EXAMPLES}/model.py:build", 8).graph
    cluster = Cluster.named("laptop").resized({"process": 2 if role else 1})
    layouts = [Layout((role_of(unit, role),) if role else ()) for unit in units(graph)]
    return Plan.of("by hand", graph, cluster, layouts, Options(zero=zero))


def losses(script: str, plan: Path, ranks: int) -> list[float]:
    torchrun = str(Path(sys.executable).parent / "torchrun")
    words = [torchrun, "--standalone", "--nproc-per-node", str(ranks)]
    result = subprocess.run(
        [*words, str(EXAMPLES / f"{script}.py"), str(plan)],
        env=os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    return [
        float(word) for row in rows if row and row[0] in ("losses", "norms") for word in row[1:]
    ]


@pytest.mark.parametrize("script", NEEDS)
def test_trainers_train_as_on_one_device(script: str, tmp_path: Path) -> None:
    for name in NEEDS[script]:
        pytest.importorskip(name)
    curves = {}
    for name, (role, zero) in PLANS.items():
        save_plan(plan_of(role, zero), tmp_path / f"{name}.json")
        curves[name] = losses(script, tmp_path / f"{name}.json", 2 if role else 1)
    assert curves["one"]
    assert curves["dp"] == pytest.approx(curves["one"], abs=2e-4)
    assert curves["tp"] == pytest.approx(curves["one"], abs=2e-4)
