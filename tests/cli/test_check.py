"""The verb `check`: configurations that do not divide, do not fit and fit badly, of two kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.cli.main import main
from meshwright.configs.better import ConfigTrials
from meshwright.search.joint import planner
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from support.planned import answer

DATA = Path(__file__).parent / "data"
SHARED = ("--cluster", "gcp-a100", "--nodes", "4", "--gpus", "4")
"""Four GPUs a node behind one NIC."""

Run = tuple[int, str, str]


class Verb:
    """The command line, called from here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> Run:
        self._patch.setattr("sys.argv", ["meshwright", "check", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, out, err

    def document(self, file: str, *words: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self(str(DATA / file), *words, "--json")
        assert not err
        return code, json.loads(out)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    return Verb(monkeypatch, capsys)


def test_megatron_does_not_divide(verb: Verb) -> None:
    code, out, _ = verb(
        str(DATA / "megatron_not_dividing.sh"), "--cluster", "dgx-a100", "--no-plan"
    )
    assert code == 1
    assert "It does NOT run:" in out
    assert (
        "--global-batch-size 512 is no multiple of 3: micro-batch 3 x data 1; give 510 or 513."
        in out
    )
    assert "pipeline 8 does not divide 12 layers; give pipeline 4." in out
    assert out.count("does not divide") + out.count("do not divide") == 1
    assert "A step takes" not in out
    assert "Change to:" in out


def test_megatron_does_not_fit(verb: Verb) -> None:
    words = ("--cluster", "gcp-a100", "--nodes", "1", "--gpus", "4", "--no-plan")
    code, report = verb.document("megatron_not_fitting.sh", *words)
    assert (code, report["runs"], report["fits"]) == (1, True, False)
    assert report["missing_bytes"] == report["memory_bytes"] - report["device_bytes"] > 0
    # Gradients and a copy of the scores are in float32: sharding Adam's state is not enough.
    assert ["--micro-batch-size 4"] in [fix["changes"] for fix in report["fixes"]]
    assert all(fix["fits"] for fix in report["fixes"])
    assert report["best"]["fits"]


def test_megatron_fits_badly(verb: Verb) -> None:
    code, report = verb.document("megatron_fitting_badly.sh", *SHARED, "--no-plan")
    assert (code, report["fits"]) == (0, True)
    assert report["matrix"]["tensor"] == [2, 4]
    assert report["loads"][0]["what"] == "node/nic"
    assert report["best"]["config"]["tensor"] <= 4
    assert report["best"]["step_s"] < report["step_s"] / 3


def test_torchtitan_does_not_divide(verb: Verb) -> None:
    words = ("--cluster", "dgx-a100", "--nodes", "8", "--no-better")
    code, report = verb.document("torchtitan_not_dividing.toml", *words)
    assert (code, report["runs"], report["best"]) == (1, False, None)
    assert [problem["problem"] for problem in report["problems"]] == [
        "pipeline 1 x data 2 x context 3 x tensor 16 is 96, and cluster 'dgx-a100' has 64 devices",
        "tensor 16 does not divide 8 heads of keys and values",
        "8192 positions cannot be cut into 6 equal pieces, two for each of context 3",
    ]
    assert [problem["remedy"] for problem in report["problems"]][1:] == [
        "give tensor 8", "give context 2 or 4"
    ]  # fmt: skip


def test_torchtitan_does_not_fit(verb: Verb) -> None:
    words = ("--cluster", "dgx-a100", "--nodes", "1", "--no-better")
    code, report = verb.document("torchtitan_not_fitting.toml", *words)
    assert (code, report["runs"], report["fits"]) == (1, True, False)
    parts = report["memory"]
    assert max(parts, key=parts.get) == "activations"
    fixes = [fix["changes"] for fix in report["fixes"]]
    assert ['activation_checkpoint.mode = "full"'] in fixes
    # A smaller micro-batch must not make the step smaller.
    assert ["training.local_batch_size = 1", "training.global_batch_size = 32"] in fixes


def test_torchtitan_fits_badly(verb: Verb) -> None:
    code, report = verb.document("torchtitan_fitting_badly.toml", *SHARED, "--no-plan")
    assert (code, report["fits"]) == (0, True)
    assert report["loads"][0]["what"] == "node/nic"
    assert report["best"]["changes"][:2] == [
        "parallelism.data_parallel_replicate_degree = 4",
        "parallelism.data_parallel_shard_degree = 4",
    ]
    assert report["best"]["step_s"] < report["step_s"] / 3


SMALL = "zoo:llama3-8b/tiny?layers=4&heads=8&key_value_heads=4&hidden=32&sequence=16"


def test_an_interrupt_keeps_the_judgement(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ConfigTrials, "best", interrupted)
    code, out, _ = verb(SMALL, "--tensor", "4", "--batch", "8", "--cluster", "laptop")
    assert code == 0
    assert "It fits: " in out
    assert out.endswith("Interrupted: no better configuration or plan was found until then.\n")


def test_degrees_and_the_plan_of_the_search(verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def search(question: PlanRequest, budget: object, **options: Any) -> PlanResult:
        asked.update(options, memory=question.memory)
        return answer(question)

    monkeypatch.setattr(planner, "best_plan", search)
    words = ("--data", "1", "--tensor", "4", "--batch", "8", "--cluster", "laptop")
    code, out, _ = verb(SMALL, *words, "--budget", "20")
    assert code == 0
    assert "placement: tensor [4], context [1], data [1], pipeline [1] (levels: process)" in out
    assert "\nplan: " in out
    assert asked["start"].origin.startswith("configuration: ")
    assert asked["memory"] == 4 << 30
    assert "Change to:\n  --data 4\n  --tensor 1" in out


def test_replicas_of_shards_are_shards_of_neighbours(verb: Verb, tmp_path: Path) -> None:
    text = (
        '[activation_checkpoint]\nmode = "none"\n[training]\nlocal_batch_size = 1\n[parallelism]\n'
    )
    file = tmp_path / "hsdp.toml"
    file.write_text(f"{text}data_parallel_replicate_degree = 2\n")
    sizes = "zoo:llama3-8b?layers=2&sequence=512"
    machine = ("--cluster", "dgx-a100", "--nodes", "1", "--gpus", "4", "--no-better")
    code, out, _ = verb(str(file), sizes, *machine, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["config"]["shard_within"] == 2
    file.write_text(f"{text}data_parallel_replicate_degree = 1\n")
    _, out, _ = verb(str(file), sizes, *machine, "--json")
    whole = json.loads(out)["memory"]
    assert report["memory"]["optimizer"] == pytest.approx(2 * whole["optimizer"], rel=0.01)
    limit = str(report["memory_bytes"] - (1 << 20)) + "B"
    file.write_text(f"{text}data_parallel_replicate_degree = 2\n")
    code, out, _ = verb(str(file), sizes, *machine, "--memory", limit)
    assert code == 1
    assert "parallelism.data_parallel_replicate_degree = 1" in out


def test_degrees_with_shards_of_neighbours(verb: Verb) -> None:
    words = (SMALL, "--cluster", "dgx-a100", "--nodes", "2", "--batch", "16", "--no-better")
    code, out, _ = verb(*words, "--zero", "3", "--shard-within", "8")
    assert code == 0
    assert "ZeRO 3 within 8 devices (HSDP)" in out
    code, out, _ = verb(*words, "--zero", "3", "--tp", "8", "--shard-within", "8")
    assert code == 1
    assert "ZeRO shards within 8 devices, which are no whole share of the 16" in out
    code, _, said = verb(*words, "--shard-within", "8")
    assert code == 2
    assert "ZeRO 0 shards nothing within 8 devices; give a ZeRO stage too" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is nothing to check"),
        (("zoo:llama3-8b",), "'zoo:llama3-8b' is a model, and no configuration is given"),
        (("none.sh", "zoo:llama3-8b"), "there is no file 'none.sh'"),
        (("--flags", "--bf16", "--tensor", "2"), "--flags and degrees are both given"),
        (("--flags", "--tensor-model-parallel-size 2"), "does not say which model"),
        (("--tensor", "2", "a", "b"), "'a' and 'b' are given besides degrees"),
        (
            ("--flags", "--num-layers 8", SMALL),
            "the configuration says 8 layers, and the model has 4",
        ),
        (
            ("--flags", "--global-batch-size 8", SMALL, "--batch", "4"),
            "--batch is 4, and the configuration says 8 samples a step",
        ),
        (("--data", "4", "zoo:lenet"), "no repeated attention layers"),
    ],
)
def test_mistakes(verb: Verb, words: tuple[str, ...], said: str) -> None:
    code, out, err = verb(*words, "--cluster", "laptop")
    assert (code, out) == (2, "")
    assert said in err


def test_what_does_not_count_is_told_on_request(verb: Verb) -> None:
    flags = "--tensor-model-parallel-size 4 --lr 1e-4 --tensor-parallel-thing 3"
    code, out, _ = verb("--flags", flags, SMALL, "--cluster", "laptop", "--no-better", "--verbose")
    assert code == 0
    assert "not about parallelism: --lr." in out
    assert "note: --tensor-parallel-thing is not known here and not counted" in out
