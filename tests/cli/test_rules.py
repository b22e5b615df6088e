"""The verb `rules`, as a person and as a script see it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from meshwright.rewrite.library import CERTIFICATES, shipped_certificates, shipped_rules
from support.typed import typed

MINE = """\
# two that hold, two that do not
back: neg(neg(x)) => x
again: reduce[copies, d](replicate[d](x)) => x
turned: transpose[-2, -1](x) => x
moved: relu(partition[k, d](x)) => partition[k, d](relu(x))
"""
PATIENCE = 120
"""Seconds to wait for another process."""


def meshwright(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return typed("rules", *arguments, folder=folder)


def printed(folder: Path, *arguments: str) -> str:
    result = meshwright(folder, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(printed(folder, *arguments, "--json"))
    return report


def refusal(folder: Path, *arguments: str) -> str:
    result = meshwright(folder, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("meshwright: ").strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.rules").write_text(MINE)
    (tmp_path / "own.txt").write_text("swish(x, y)[i..] = x[i..] * sigmoid(x[i..]) * y[i..]\n")
    return tmp_path


def test_list_has_every_rule_of_the_library(folder: Path) -> None:
    report = document(folder, "list")
    assert [entry["name"] for entry in report["rules"]] == [rule.name for rule in shipped_rules()]
    assert [entry["text"] for entry in report["rules"]] == [str(rule) for rule in shipped_rules()]
    assert [entry["digest"] for entry in report["rules"]] == [
        certificate.digest for certificate in shipped_certificates()
    ]
    assert report["count"] == len(shipped_rules())
    text = printed(folder, "list")
    assert text.endswith(f"\nProved: {len(shipped_rules())} rules.\n")
    assert "algebra: fusion and un-fusion (4)\n" in text


def test_list_takes_a_part_or_a_pattern(folder: Path) -> None:
    names = [entry["name"] for entry in document(folder, "list", "linear-cut-?:")["rules"]]
    assert names == ["linear-cut-i", "linear-cut-o", "linear-cut-k"]
    assert document(folder, "list", "add(x, add")["rules"][0]["name"] == "add-left"
    assert document(folder, "list", "nothing")["rules"] == []


def test_show_draws_and_tells(folder: Path) -> None:
    text = printed(folder, "show", "linear-cut-k")
    assert "    ├── partition[-1, d]\n    │   └── x\n" in text
    assert "d is chosen where the rule is applied" in text
    assert "linear(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]" in text
    assert "45 cases" in text
    report = document(folder, "show", "linear-cut-k")
    assert report["source"] == ["linear(x, w)"]
    assert report["certificate"]["cases"] == 45
    assert list(report["operators"]) == ["linear", "partition", "reduce"]
    mine = printed(folder, "show", "turned", "--file", "mine.rules")
    assert "not certified" in mine
    assert refusal(folder, "show", "linear-cut-q").startswith(
        "there is no rule 'linear-cut-q'; did you mean 'linear-cut-"
    )


def test_verify_judges_in_order_whatever_the_number_of_processes(folder: Path) -> None:
    one, two = (document(folder, "verify", "mine.rules", "--jobs", jobs) for jobs in ("1", "2"))
    assert one == two
    assert one["tally"] == {"proved": 2, "refuted": 2, "unproved": 0}
    assert [(judgement["name"], judgement["verdict"]) for judgement in one["rules"]] == [
        ("back", "proved"), ("again", "refuted"), ("turned", "refuted"), ("moved", "proved"),
    ]  # fmt: skip
    again = one["rules"][1]["counterexample"]
    assert again.keys() == {"tensors", "attributes", "seed", "difference"}
    assert again["tensors"]["x"].keys() == {"sizes", "degrees", "steps", "copies", "sums"}
    assert again["attributes"]["d"] > 1
    assert one["rules"][0]["counterexample"] is None
    text = printed(folder, "verify", "mine.rules")
    assert text.endswith("\n4 rules: 2 proved, 2 refuted, 0 unproved.\n")


def test_shapes_that_differ_are_quoted(folder: Path) -> None:
    (folder / "shape.rules").write_text("r: flatten[0](x) => x\n")
    [judgement] = document(folder, "verify", "shape.rules")["rules"]
    assert judgement["verdict"] == "refuted"
    assert judgement["reason"].startswith("output 0 is [")
    assert " on the left, [" in judgement["reason"]


def test_a_proof_that_takes_too_long_is_none(folder: Path) -> None:
    report = document(folder, "verify", "mine.rules", "--seconds", "1e-9")
    assert report["tally"] == {"proved": 0, "refuted": 2, "unproved": 2}
    assert report["rules"][0]["reason"] == "no proof within 1e-09 s"


def test_numbers_that_nobody_can_count_to_are_left_open(folder: Path) -> None:
    (folder / "large.rules").write_text("r: neg(replicate[0, 1000000000](x)) => "
                                        "replicate[0, 1000000000](neg(x))\n")  # fmt: skip
    [judgement] = document(folder, "verify", "large.rules")["rules"]
    assert judgement["verdict"] == "unproved"
    assert judgement["reason"].startswith("it has the number 1000000000 in it")


def test_certificates_are_those_of_the_library(folder: Path) -> None:
    rules = "".join(f"{rule}\n" for rule in shipped_rules() if rule.name in ("neg-neg", "sub-add"))
    (folder / "some.rules").write_text(rules)
    printed(folder, "verify", "some.rules", "--certify", "some.json")
    shipped = files("meshwright.rewrite.library").joinpath(CERTIFICATES).read_text().splitlines()
    lines = (folder / "some.json").read_text().splitlines()
    assert [line.rstrip(",") for line in lines[1:-1]] == [
        line.rstrip(",") for line in shipped if '"neg-neg"' in line or '"sub-add"' in line
    ]


def test_only_proved_rules_are_certified(folder: Path) -> None:
    printed(folder, "verify", "mine.rules", "--certify", "mine.json")
    content = json.loads((folder / "mine.json").read_text())
    assert [certificate["rule"] for certificate in content] == ["back", "moved"]


def test_the_published_form_and_its_condition(folder: Path) -> None:
    partition = {"type": "OP_PARTITION", "input": [{"opId": -1, "tsId": 0}],
                 "para": [{"key": "PM_PARALLEL_DIM", "value": 1},
                          {"key": "PM_PARALLEL_DEGREE", "value": 2}]}  # fmt: skip
    reduce = {"type": "OP_REDUCE", "para": partition["para"], "input": [{"opId": 0, "tsId": 0}]}
    alone = {**reduce, "input": [{"opId": -1, "tsId": 0}]}
    rule = {"name": "one", "srcOp": [partition, reduce], "dstOp": [alone],
            "mappedOutput": [{"srcOpId": 1, "srcTsId": 0, "dstOpId": 0, "dstTsId": 0}]}  # fmt: skip
    (folder / "unity.json").write_text(json.dumps({"rule": [rule]}))
    [judgement] = document(folder, "verify", "unity.json")["rules"]
    assert judgement["verdict"] == "proved"
    assert judgement["condition"] == "plain(a)"
    text = printed(folder, "verify", "unity.json")
    assert "1 rule: 1 proved (1 of them for inputs in one piece), 0 refuted" in text


def test_operators_of_ones_own(folder: Path) -> None:
    (folder / "own.rules").write_text("r: mul(silu(x), y) => mul(y, silu(x))\n"
                                      "s: swish(x, neg(y)) => neg(swish(x, y))\n")  # fmt: skip
    report = document(folder, "verify", "own.rules", "--operators", "own.txt", "--jobs", "2")
    assert report["tally"]["proved"] == 2
    assert "there is no operator 'swish'" in refusal(folder, "verify", "own.rules")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("r: relu(x => x", "f: line 1: 'r: relu(x => x' has '=>' at column 11; expected ',' or ')"),
        ("r: relu(x) => relu(y)", "f: line 1: the target of rule 'r' reads y, which its source does"
         " not bind; use x, or end the rule with 'for any y'."),
        ("r: (relu(x), x) => x", "f: line 1: rule 'r' replaces 2 tensors by 1; give both sides "
         "equally many."),
        ("r: rely(x) => x", "f: line 1: there is no operator 'rely'; did you mean 'relu'"),
        ("r: add(x) => x", "f: line 1: add has 1 inputs; give it 2."),
        ("r: partition[d](x) => x", "f: rule 'r': partition[d](x) has 1 attribute; give it 2."),
        ("r: partition[0, 0](x) => x", "f: rule 'r': partition[0, 0](x) counts 0; give 1 or more."),
        ('{"rule": [{"name": "r", "srcOp": [], "dstOp": [], "mappedOutput": []}]}',
         "f: rule 'r' replaces no tensor; give it an output."),
        ('{"rule": [', "f: the collection of rules cannot be read ("),
        ('{"rule": 3}', "f: the collection of rules cannot be read ("),
        ("r: " + "relu(" * 3000 + "x" + ")" * 3000 + " => x", "f: a rule is nested too deep;"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(folder: Path, text: str, sentence: str) -> None:
    (folder / "f").write_text(text)
    assert refusal(folder, "verify", "f").startswith(sentence)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("f(x)[i] = x[i", "o: line 1: 'f(x)[i] = x[i' has the end of the line at column 14;"),
        (
            "f(x)[i, j] = x[i]",
            "o: line 1: operator 'f': no operand is read at j, so its size is not known;",
        ),
        ("f(x)[i] = x[i] * q", "o: line 1: operator 'f': 'q' is not known there; use i."),
        ("relu(x)[i..] = x[i..]", "o: line 1: operator 'relu': there is one of this name already;"),
        ("f(x)[i] = relu(x[i], 2)", "o: line 1: operator 'f': relu is given 2 numbers; give it 1."),
        ("f(x)[i] = sum(k, k) x[i, k]", "o: line 1: operator 'f': label k occurs twice;"),
    ],
)
def test_operators_that_cannot_be_read_are_told(folder: Path, line: str, sentence: str) -> None:
    (folder / "o").write_text(line)
    assert refusal(folder, "verify", "mine.rules", "--operators", "o").startswith(sentence)


def test_files_that_are_none(folder: Path) -> None:
    assert refusal(folder, "verify", "none.rules").startswith("cannot read 'none.rules' (")
    (folder / "binary").write_bytes(bytes(range(128, 256)))
    assert refusal(folder, "verify", "binary") == (
        "'binary' is not a text file; give one in UTF-8."
    )
    assert refusal(folder, "verify", ".").startswith("cannot read '.' (")
    assert refusal(folder, "verify", "mine.rules", "--certify", "no/where").startswith(
        "cannot write 'no/where' ("
    )
    for seconds in ("0", "-1", "nan", "inf"):
        assert refusal(folder, "verify", "mine.rules", "--seconds", seconds).startswith("--seconds")


def test_an_interrupt_shows_what_was_judged(folder: Path) -> None:
    """The first rule is judged at once; those after it take much longer."""
    slow = "".join(
        f"slow{n}: layer_norm[z](x, g, b) => "
        f"combine[k, d](layer_norm[z](partition[k, d](x), replicate[d](g), replicate[d](b)))"
        " if k < rank(x)-1\n"
        for n in range(40)
    )
    (folder / "slow.rules").write_text(f"quick: neg(neg(x)) => x\n{slow}")
    command = [sys.executable, "-m", "meshwright", "rules", "verify", "slow.rules", "--json"]
    terminal, writer = os.openpty()
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=writer,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    ) as process:
        seen = b""
        while b"1 of 41" not in seen:
            assert select.select([terminal], [], [], PATIENCE)[0], "no progress is shown"
            seen += os.read(terminal, 4096)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    os.close(writer)
    os.close(terminal)
    assert process.returncode == 0
    report = json.loads(output)
    assert report["stopped"] == "interrupted"
    assert 1 <= len(report["rules"]) < 41
    assert report["rules"][0]["verdict"] == "proved"


def test_forms_of_an_operator_of_ones_own(folder: Path) -> None:
    text = printed(folder, "generate", "--forms", "--operators", "own.txt", "-o", "forms.rules")
    assert text == "Proved: 2 forms of parallelism.\n"
    assert (folder / "forms.rules").read_text().splitlines()[0] == (
        "swish-cut-i: swish(x, y) => combine[k, d](swish(partition[k, d](x), partition[k, d](y)))"
    )
    report = document(folder, "generate", "--forms", "--operators", "own.txt")
    assert [entry["name"] for entry in report["rules"]] == ["swish-cut-i", "swish-steps"]


def test_generated_rules_go_through_verify_and_apply(folder: Path) -> None:
    (folder / "gate.txt").write_text("gate(x, y)[i..] = silu(x[i..]) * y[i..]\n")
    options = ("--operators", "gate.txt")
    report = document(
        folder, "generate", *options, "--general", "-o", "found.rules", "--resume", "kept"
    )
    texts = {entry["text"].partition(": ")[2]: entry["name"] for entry in report["rules"]}
    fuse = texts["mul(b, silu(a)) => gate(a, b)"]
    assert [row["operators"] for row in report["sizes"]] == [1, 2]
    first = (folder / "found.rules").read_bytes()
    again = document(folder, "generate", *options, "--general", "-o", "found.rules", "--resume",
                     "kept", "--jobs", "1")  # fmt: skip
    assert again["rules"] == report["rules"]
    assert (folder / "found.rules").read_bytes() == first
    judged = document(folder, "verify", "found.rules", *options, "--certify", "found.json")
    assert judged["tally"]["proved"] == len(report["rules"])
    pytest.importorskip("torch", reason="models are captured with torch")
    ours = (*options, "--rules", "found.rules", "--certificates", "found.json")
    applied = document(folder, "apply", "zoo:llama3-8b/tiny", *ours, "--rule", fuse)
    assert applied["applied"][0]["tensors"] == {
        "a": "layers.0.feed_forward.gate.linear",
        "b": "layers.0.feed_forward.up.linear",
    }
    assert len(applied["applied"][0]["gone"]) == 2
    (folder / "gate.txt").write_text("gate(x, y)[i..] = tanh(x[i..]) * y[i..]\n")
    assert "has no certificate" in refusal(folder, "apply", "zoo:lenet", *ours, "--rule", fuse)


def test_generate_refuses(folder: Path) -> None:
    assert refusal(folder, "generate").startswith("no operators are given; give --set: algebra,")
    assert refusal(folder, "generate", "--set", "unty") == (
        "there is no set 'unty' of operators; did you mean 'unity'? "
        "Known: 'algebra', 'elements', 'parallel', 'unity'."
    )
    (folder / "own.txt").write_text("f[a](x)[i..] = a * x[i..]\n")
    assert "has parameters" in refusal(folder, "generate", "--operators", "own.txt")
    assert "cannot be a folder" in refusal(
        folder, "generate", "--set", "algebra", "--resume", "mine.rules"
    )


def test_apply_rewrites_a_model_and_goes_on_from_its_graph(folder: Path) -> None:
    pytest.importorskip("torch", reason="models are captured with torch")
    cut = ("--rule", "linear-bias-cut-o", "--set", "d=2")
    listed = document(folder, "apply", "zoo:lenet", *cut, "--list")
    assert [match["outputs"] for match in listed["matches"]] == [
        ["classifier.0.linear"], ["classifier.2.linear"], ["classifier.4.linear"],
    ]  # fmt: skip
    first = document(folder, "apply", "zoo:lenet", *cut, "--at", "2", "-o", "graph.json")
    assert first["applied"][0]["outputs"] == ["classifier.2.linear"]
    assert first["operators"] == listed["operators"] + 4
    chain = document(folder, "apply", "zoo:lenet", *cut, "--rule", "linear-bias-cut-o", "--at", "2",
                     "--at", "1")  # fmt: skip
    second = document(folder, "apply", "graph.json", *cut)
    assert chain["applied"][1] == second["applied"][0]
    text = printed(folder, "apply", "graph.json", *cut, "--text")
    assert text.count(" = partition(") == 4
    words = printed(folder, "apply", "zoo:lenet", *cut)
    assert words.startswith("linear-bias-cut-o at classifier.0.linear: x = flatten, ")
    assert words.count("\n  + ") == 5
    table = printed(folder, "apply", "zoo:lenet", *cut, "--list", "--top", "1")
    assert table.startswith("lenet: 13 operators, rules fit at 3 places\n")
    assert table.endswith("... 2 more places (--top)\n")


def test_apply_refuses(folder: Path) -> None:
    pytest.importorskip("torch", reason="models are captured with torch")

    def told(*arguments: str) -> str:
        return refusal(folder, "apply", "zoo:lenet", *arguments)

    assert told() == "no rule is given; give --rule NAME, or --list to see what fits."
    assert told("--rule", "linear-merge") == (
        "rule 'linear-merge' fits nowhere; apply another rule."
    )
    assert told("--rule", "linear-bias-cut-o") == (
        "rule 'linear-bias-cut-o' fits nowhere; set d, as d=2."
    )
    far = ("--rule", "linear-bias-cut-o", "--set", "d=2", "--at", "9")
    assert told(*far) == ("rule 'linear-bias-cut-o' fits at 3 places, not at place 9; give 1 to 3.")
    assert told(*far, "--at", "1") == "--at is given 2 times; give it 1 times."
    assert told("--rule", "neg-neg", "--set", "d=x").startswith("--set 'd=x' is no NAME=N;")
    assert (
        told("--certificates", "mine.json") == "--certificates is given without --rules; give both."
    )
    printed(folder, "verify", "mine.rules", "--certify", "mine.json")
    assert "'again' has no certificate" in told(
        "--rules", "mine.rules", "--certificates", "mine.json", "--rule", "back"
    )
    assert "no certificates can be read" in told(
        "--rules", "mine.rules", "--certificates", "mine.rules", "--rule", "back"
    )
