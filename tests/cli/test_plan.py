"""The verb `plan`, with a search that answers at once: what goes in, what comes out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.base.quantities import Seconds
from meshwright.cli.main import main
from meshwright.configs import find_plan
from meshwright.explain import decisions as explain
from meshwright.explain.decisions import Decision
from meshwright.plan.file import load_plan, save_plan
from meshwright.report.page.page import looks_like_report
from meshwright.search.joint.request.question import PlanRequest, PlanResult, Stopped
from support.planned import answer

PLAN = ("plan", "zoo:lenet", "--cluster", "laptop")


class Doing(NamedTuple):
    used: float
    step: float | None
    simulated: int
    doing: str


class Search:
    """Stands for the search, and remembers what it was asked."""

    def __init__(self) -> None:
        self.question: PlanRequest | None = None
        self.asked: dict[str, Any] = {}
        self.stopped: Stopped = "budget"
        self.explained = 0
        self.explains: Callable[[], tuple[Decision, ...]] = lambda: (
            Decision("layout of conv", "sample 4", "channel 4", Seconds(1.0), "does not fit"),
            Decision("micro-batches", "1", None, None, "no other divides the batch"),
        )

    def best_plan(self, question: PlanRequest, budget: object, **asked: Any) -> PlanResult:
        self.question, self.asked = question, asked | {"budget": budget}
        asked["progress"](Doing(0.0, None, 0, "baselines"))
        asked["progress"](Doing(0.5, 0.1, 3, "refining"))
        return answer(question, self.stopped)

    def best_of_devices(
        self, question: PlanRequest, devices: int, budget: object, **asked: Any
    ) -> tuple[PlanResult, ...]:
        best = self.best_plan(question, budget, **asked | {"devices": devices})
        smaller = question.cluster.resized({"process": 2})
        other = PlanRequest(graph=question.graph, cluster=smaller, memory=question.memory)
        return best, answer(other)

    def explain(self, plan: object, **asked: Any) -> tuple[Decision, ...]:
        self.explained += 1
        assert set(asked) == {"prices", "operators", "memory", "deadline"}
        return self.explains()


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Search:
    """A folder to work in, and the search that works there."""
    searcher = Search()
    machines = SimpleNamespace(best_of_devices=searcher.best_of_devices)
    monkeypatch.setattr(find_plan, "best_plan", searcher.best_plan)
    monkeypatch.setitem(sys.modules, "meshwright.search.joint.cluster_sizes", machines)
    monkeypatch.setattr(explain, "explain", searcher.explain)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return searcher


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line: exit code, output, errors."""

    def ran(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["meshwright", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return ran


Run = Callable[..., tuple[int, str, str]]


def test_a_report_has_all_parts_in_order(search: Search, run: Run, tmp_path: Path) -> None:
    code, out, err = run(*PLAN, "--explain")
    assert (code, err) == (0, "")
    parts = [
        "lenet on laptop (4 process): batch 64, fp32, adam; least time with at most 4 GiB a device",
        "strategy ",
        "DDP ",
        "FSDP (ZeRO 3) ",
        "plan  ",
        "plan: ",
        "throughput: ",
        "step: ",
        "cost: ",
        "peak memory: ",
        "lower bound: ",
        "search: ",
        "decision ",
        "layout of conv",
        "unit ",
        "features.0.conv2d ",
        "The plan is in plan.json. Next:",
        "meshwright explain plan.json ",
    ]
    places = [out.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert search.question is not None
    assert search.question.minimize == "time"
    assert search.question.memory == 4 << 30
    assert load_plan(tmp_path / "plan.json").graph == search.question.graph


def test_a_report_and_a_trace_are_written_beside_the_plan(search: Search, run: Run) -> None:
    code, out, _ = run(*PLAN, "--report", "report.html", "--trace", "trace.json")
    assert code == 0
    assert "The plan is in plan.json. The report is in report.html. The trace is in trace" in out
    text = Path("report.html").read_text()
    assert looks_like_report("report.html")
    assert 'id="progress-chart"' in text
    assert "layout of conv" in text
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_json(search: Search, run: Run) -> None:
    code, out, err = run(*PLAN, "--json", "--explain", "--out", "mine.json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert {
        "step_s", "bound_s", "gap", "memory_bytes", "search_s", "baselines", "plan", "fits",
        "saved", "decisions", "refused", "stopped", "simulated",
    } <= report.keys()  # fmt: skip
    assert report["saved"] == "mine.json"
    assert report["plan"]["degrees"] == {"sample": 4}
    assert report["decisions"][0] == {
        "subject": "layout of conv",
        "chosen": "sample 4",
        "runner_up": "channel 4",
        "step_s": 1.0,
        "searched_s": None,
        "fix": "",
        "fits": True,
        "note": "does not fit",
    }
    assert "front" not in report
    assert "machines" not in report
    assert Path("mine.json").exists()
    assert not Path("plan.json").exists()


def test_options_reach_the_search(search: Search, run: Run) -> None:
    assert run(*PLAN, "--save", "first.json")[0] == 0
    assert search.explained == 0
    code, _, err = run(
        *PLAN, "--memory", "2 GiB", "--minimize", "memory", "--optimizer", "sgd", "--mixed",
        "--budget", "300", "--seed", "7", "--cores", "1", "--backend", "gloo", "--no-programs",
        "--start", "first.json", "--batch", "32",
    )  # fmt: skip
    assert (code, err) == (0, "")
    question, asked = search.question, search.asked
    assert question is not None
    assert (question.memory, question.minimize) == (2 << 30, "memory")
    assert (question.training.optimizer, question.training.mixed) == ("sgd", True)
    assert (asked["seed"], asked["cores"], asked["programs"]) == (7, 1, False)
    assert asked["budget"].proposals == 300
    assert asked["backend"].name == "gloo"
    assert asked["start"] == load_plan("first.json")


def test_constraints_reach_the_search(search: Search, run: Run) -> None:
    code, _, err = run(
        *PLAN, "--pin", "features.0*=sample channel", "--forbid", "channel@process",
        "--fix", "zero=1", "--tp", "2", "--data", "4", "--exclude-rule", "fuse-*",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert search.question is not None
    constraints = search.question.constraints
    assert constraints.pinned == (("features.0*", "sample channel"),)
    assert constraints.forbidden == (("channel", "process"),)
    assert constraints.fixed == (("zero", "1"), ("dp", "4"), ("tp", "2"))
    assert constraints.rules == ("fuse-*",)


def test_pareto_and_devices_show_more(search: Search, run: Run) -> None:
    code, out, _ = run(*PLAN, "--pareto", "--devices", "3")
    assert code == 0
    assert search.asked["devices"] == 3
    assert "device time a step" in out
    assert "laptop (2 process)" in out
    report = json.loads(run(*PLAN, "--pareto", "--devices", "3", "--json")[1])
    assert [machine["devices"] for machine in report["machines"]] == [4, 2]
    assert all(
        machine["device_s"] == machine["step_s"] * machine["devices"]
        for machine in report["machines"]
    )
    steps = [point["step_s"] for point in report["front"]]
    held = [point["memory_bytes"] for point in report["front"]]
    assert steps == sorted(steps)
    assert held == sorted(held, reverse=True)


def test_nothing_fits_is_said_with_what_is_missing(search: Search, run: Run) -> None:
    code, out, _ = run(*PLAN, "--memory", "1 MiB")
    assert code == 0
    assert "NOTHING fits into 1 MiB a device" in out
    assert "it does not fit: plan anew with what helps" in out
    assert "torchrun" not in out
    report = json.loads(run(*PLAN, "--memory", "1 MiB", "--json")[1])
    assert not report["fits"]
    assert report["missing_bytes"] == report["memory_bytes"] - (1 << 20)
    assert report["speedup"] is None


def test_an_interrupted_search_shows_its_best_without_explanation(search: Search, run: Run) -> None:
    search.stopped = "interrupted"
    code, out, _ = run(*PLAN, "--explain")
    assert code == 0
    assert "interrupted: this is the best so far." in out
    assert search.explained == 0
    assert "decision" not in out
    assert Path("plan.json").exists()


def test_an_interrupted_explanation_still_shows_the_plan(search: Search, run: Run) -> None:
    def interrupted() -> tuple[Decision, ...]:
        raise KeyboardInterrupt

    search.explains = interrupted
    code, out, _ = run(*PLAN, "--explain")
    assert (code, search.explained) == (0, 1)
    assert "The plan is in plan.json." in out


def test_a_step_of_the_decisions_is_compared_with_that_of_the_plan(
    search: Search, run: Run
) -> None:
    run(*PLAN, "--json")
    assert search.question is not None
    step = answer(search.question).best.prediction.step
    search.explains = lambda: (Decision("zero", "1", "0", Seconds(step * 1.5), ""),)
    assert "+50.0%" in run(*PLAN, "--explain")[1]


def test_a_file_that_is_no_plan_is_not_replaced_unasked(search: Search, run: Run) -> None:
    Path("plan.json").write_text("{}")
    code, out, err = run(*PLAN)
    assert (code, out) == (2, "")
    assert "'plan.json' is there already and is no plan; name a file with --out." in err
    assert search.question is None
    assert run(*PLAN, "--save", "plan.json")[0] == 0
    assert "What plan.json was before is in plan.before2.json." in run(*PLAN)[1]
    assert load_plan("plan.before2.json") == load_plan("plan.json")
    assert Path("plan.before.json").read_text() == "{}"


def test_what_is_printed_is_told_from_a_plan(search: Search, run: Run) -> None:
    Path("printed.json").write_text(run(*PLAN, "--json")[1])
    code, _, err = run("simulate", "printed.json")
    assert code == 2
    assert "it is what 'plan --json' prints" in err


def test_top_says_how_to_see_all(search: Search, run: Run) -> None:
    out = run(*PLAN, "--explain", "--top", "1")[1]
    assert "1 more decision: --top 2." in out
    assert re.search(r"features.0.conv2d \.\.\. \S+ \(\d+ units\) ", out), "those alike are one"
    match = re.search(r"(\d+) more lines?: --top (\d+) shows all\.", out)
    assert match is not None
    assert int(match[2]) == int(match[1]) + 1
    assert "shows all" not in run(*PLAN, "--explain", "--top", match[2])[1]


MISTAKES = [
    (["--budget", "0"], "--budget: a budget of 0"),
    (["--save", "nowhere/plan.json"], "--out: cannot write 'nowhere/plan.json'"),
    (["--report", "nowhere/report.html"], "--report: cannot write 'nowhere/report.html'"),
    (["--trace", "nowhere/trace.json"], "--trace: cannot write 'nowhere/trace.json'"),
    (["--report", "one", "--trace", "one"], "--report and --trace are both 'one'"),
    (["--memory", "3 chairs"], "--memory: '3 chairs' has the unit 'chairs'"),
    (["--memory", "8 GiB"], "--memory is 8 GiB and a device of 'laptop' has 4 GiB"),
    (["--memory", "0 B"], "--memory is 0 B"),
    (["--minimize", "money"], "--minimize is 'money'"),
    (["--dtype", "bf17"], "--dtype: there is no dtype 'bf17' here; did you mean 'bf16'"),
    (["--dtype", "fp8"], "runs products in 'fp8', for which it has no peak"),
    (["--optimizer", "adom"], "did you mean 'adam'"),
    (["--backend", "mpi"], "there is no backend 'mpi'"),
    (["--devices", "5"], "--devices is 5 and 'laptop' has 4"),
    (["--devices", "2", "--start", "x.json"], "--start is a plan for one machine"),
    (["--start", "missing.json"], "--start: cannot read plan 'missing.json'"),
    (["--top", "0"], "--top is 0"),
    (["--cores", "0"], "--cores"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_before_the_search(
    search: Search, run: Run, options: list[str], words: str
) -> None:
    code, out, err = run(*PLAN, *options)
    assert (code, out) == (2, "")
    assert err.startswith("meshwright: ")
    assert err.count("\n") == 1
    assert words in err
    assert search.question is None
    assert list(Path().iterdir()) == []


def test_a_start_that_was_interrupted_before_anything_was_found(
    search: Search, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> PlanResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(find_plan, "best_plan", interrupted)
    code, out, err = run(*PLAN)
    assert (code, out) == (130, "")
    assert err == "meshwright: interrupted before there was anything to show\n"
    assert not Path("plan.json").exists()


def test_help_has_an_example() -> None:
    command = [sys.executable, "-m", "meshwright", "plan", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "Example:" in result.stdout
    for option in ("--budget", "--pin", "--forbid", "--fix", "--exclude-rule", "--no-programs"):
        assert option in result.stdout


def test_a_plan_that_was_saved_looks_like_one(search: Search, run: Run) -> None:
    run(*PLAN)
    loaded = load_plan("plan.json")
    before = Path("plan.json").read_bytes()
    save_plan(loaded, "plan.json")
    assert Path("plan.json").read_bytes() == before
