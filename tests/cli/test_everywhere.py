"""What all verbs have in common: a configuration, completion, colours, exit codes, --verbose."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.capture.source.zoo_names import ZOO
from meshwright.capture.zoo import ENTRIES
from meshwright.cli.exits import Exit
from meshwright.cli.main import main
from meshwright.search.jobs import parse_jobs
from support.typed import typed

PLACE = ["place", "--nodes", "2", "--axes", "data=2,tensor=16", "--reduce", "data"]
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)(?:;\d+)*m")


def on_a_terminal(*words: str, **environment: str) -> str:
    """What a verb writes to a terminal."""
    reader, writer = os.openpty()
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *words],
        stdin=writer,
        stdout=writer,
        stderr=subprocess.DEVNULL,
        env=inherited | {"TERM": "xterm-256color"} | environment,
    )
    os.close(writer)
    written = b""
    # A terminal whose last writer is gone ends in an error on Linux, and in nothing elsewhere.
    try:
        while piece := os.read(reader, 65536):
            written += piece
    except OSError:
        pass
    os.close(reader)
    assert process.wait() == 0
    return written.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "meshwright.toml").write_text(
        '[place]\nnodes = 2\naxes = "data=2,tensor=16"\nreduce = ["data"]\nbytes = "8 GiB"\n'
    )
    return tmp_path


def hierarchy(*words: str, folder: Path, **environment: str) -> object:
    done = typed("place", "--json", *words, folder=folder, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["hierarchy"]


def test_options_come_from_the_working_folder(folder: Path) -> None:
    assert hierarchy(folder=folder) == [2, 16]


def test_what_is_typed_wins(folder: Path) -> None:
    assert hierarchy("--nodes", "4", "--axes", "data=64", folder=folder) == [4, 16]


def test_a_file_can_be_named(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[place]\nnodes = 1\naxes = "data=16"\nreduce = "data"\n')
    assert hierarchy(folder=folder, MESHWRIGHT_CONFIG=str(other)) == [1, 16]
    done = typed("--config", str(other), "place", "--json", folder=folder)
    assert json.loads(done.stdout)["hierarchy"] == [1, 16]


MISTAKES = [
    ("[plac]", "there is no verb 'plac'; did you mean 'place' or 'plan' or 'replan'? Known: "),
    ("[place]\nnode = 2", "[place]: there is no option 'node'; did you mean 'nodes'"),
    ("place = 2", "'place' is 2; begin a section with [place], options below it."),
    ("[place]\nnodes = [2]", "[place]: 'nodes' is [2]; give one value."),
    ("[rules.verif]", "[rules]: there is no verb 'verif'; did you mean 'verify'? Known: "),
    ("[place", "this is no TOML ("),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES)
def test_a_mistake_in_the_file(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "meshwright.toml").write_text(text)
    done = typed("clusters", folder=tmp_path)
    assert (done.returncode, done.stdout) == (Exit.MISTAKE, "")
    assert done.stderr.startswith(f"meshwright: meshwright.toml: {sentence}")


def test_a_value_that_does_not_fit_says_where_it_is_from(folder: Path) -> None:
    (folder / "meshwright.toml").write_text('[place]\nnodes = "two"\n')
    done = typed(*PLACE[:1], *PLACE[3:], folder=folder)
    assert done.returncode == Exit.MISTAKE
    assert "(from the configuration file); see 'meshwright place --help'." in done.stderr


def test_no_file_of_that_name(tmp_path: Path) -> None:
    done = typed("--config", "none.toml", "clusters", folder=tmp_path)
    assert done.stderr == (
        "meshwright: none.toml: cannot read it (No such file or directory); "
        "give --config the path of a readable file.\n"
    )


def test_names_of_the_zoo_are_those_of_its_models() -> None:
    assert sorted(ZOO) == list(ZOO) == sorted(entry.name for entry in ENTRIES)


COMPLETED = [
    (["plan", "zoo", ":", "be"], ["bert-large"]),
    (["plan", "zoo", ":"], list(ZOO)),
    (["plan", "zo"], [f"zoo:{name}" for name in ZOO]),
    (["plan", "zoo:be"], ["zoo:bert-large"]),
    (
        ["plan", "zoo", ":", "mlp", "--cluster", "dg"],
        ["dgx-a100", "dgx-b200", "dgx-b300", "dgx-h100", "dgx-h200"],
    ),
    (["clusters", "gcp-v"], ["gcp-v100"]),
    (["models", "resnet-1"], ["resnet-101"]),
    (["validate", "p"], ["p2", "published"]),
]


@pytest.mark.parametrize(("words", "found"), COMPLETED)
def test_bash_completes(words: list[str], found: list[str]) -> None:
    done = typed(
        _MESHWRIGHT_COMPLETE="complete_bash",
        COMP_WORDS="\n".join(["meshwright", *words]),
        COMP_CWORD=str(len(words)),
    )
    assert done.stdout.split() == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_for_bash_completes_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "meshwright"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m meshwright "$@"\n')
    program.chmod(0o755)
    session = (
        'eval "$(meshwright --show-completion bash)"; COMP_WORDS=(meshwright plan zoo : vi); '
        'COMP_CWORD=4; _meshwright_completion meshwright; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", session],
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("vit-large\n", "")


def test_completion_loads_nothing_heavy() -> None:
    code = (
        "import sys; from meshwright.cli.completion import clusters, models; "
        "assert models('zoo:') and clusters('d'); "
        "print({'torch', 'numpy', 'numba'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_colours_on_a_terminal_only() -> None:
    assert COLOURS.search(on_a_terminal(*PLACE))
    assert not COLOURS.search(on_a_terminal(*PLACE, NO_COLOR="1"))
    assert "\x1b" not in typed(*PLACE).stdout


@pytest.mark.parametrize("width", [60, 100])
def test_tables_are_as_wide_as_the_terminal(width: int) -> None:
    for text in (on_a_terminal("clusters", COLUMNS=str(width)),
                 typed("clusters", COLUMNS=str(width)).stdout):  # fmt: skip
        bare = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", text)
        assert max(map(len, bare.splitlines())) <= width


def test_verbose_tells_on_standard_error_what_happens() -> None:
    quiet = typed("capture", "zoo:lenet/tiny")
    verbose = typed("--verbose", "capture", "zoo:lenet/tiny")
    assert quiet.stderr == ""
    assert verbose.stdout == quiet.stdout
    assert re.fullmatch(
        r" +\d+\.\d\d s  capture\.load: captured zoo:lenet/tiny in \d+\.\d\d s: "
        r"\d+ operators, 288 parameters\n",
        verbose.stderr,
    )


def test_version() -> None:
    assert re.fullmatch(r"meshwright \d+\.\d+\.\d+\n", typed("--version").stdout)


def test_exit_codes_are_in_the_help() -> None:
    shown = " ".join(typed("--help").stdout.split())
    assert "Exit codes: 0 done, 1 no, 2 mistake, 3 rank failed, 130 interrupted." in shown


def ending(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["meshwright", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert ending(monkeypatch, "clusters") == Exit.DONE
    assert ending(monkeypatch, "clusters", "none") == Exit.MISTAKE

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.search.rank.rank", interrupted)
    assert ending(monkeypatch, *PLACE) == Exit.INTERRUPTED


def test_exit_code_of_a_failed_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from meshwright import Cluster, save_plan
    from meshwright.baselines.data import data_parallel
    from meshwright.graph.text import parse_graph
    from meshwright.run.launch.ranks import RankError

    graph = parse_graph(
        "graph tiny\ninput x: float32[n=8, k=8]\nparameter w: float32[o=8, k=8]\n"
        "operator y: y: float32[n=8, o=8] = linear(x, w)\noutput y"
    )
    save_plan(data_parallel(graph, Cluster.named("laptop")), tmp_path / "plan.json")

    def failed(*_: object, **__: object) -> None:
        raise RankError(3, "it is gone")

    monkeypatch.setattr("meshwright.run.launch.ranks.run_ranks", failed)
    path = str(tmp_path / "plan.json")
    assert ending(monkeypatch, "run", path, "--model", "zoo:lenet") == Exit.RANK_FAILED


def test_calibrate_json(tmp_path: Path) -> None:
    words = ["calibrate", "zoo:lenet/tiny", "--largest", "1", "--budget", "1", "--json"]
    done = typed(*words, "--out", "prices.jsonl", folder=tmp_path)
    assert done.returncode == Exit.DONE, done.stderr
    report = json.loads(done.stdout)
    assert report.keys() == {"calls", "measured", "known", "failures", "stopped", "saved"}
    lines = (tmp_path / "prices.jsonl").read_text().splitlines()
    assert report["measured"] == len(lines) - 1 > 0


def test_the_sweep_to_start_from_is_a_sweep() -> None:
    shown = typed("sweep", "--example").stdout
    assert [str(job) for job in parse_jobs(shown)] == [
        "zoo:lenet/tiny on laptop, batch 16",
        "zoo:lenet/tiny on laptop process=2, batch 16",
        "zoo:mlp/tiny on laptop, batch 16",
        "zoo:mlp/tiny on laptop process=2, batch 16",
    ]
    assert typed("sweep").stderr == (
        "meshwright: no file says what to sweep; name one; 'meshwright sweep --example' prints "
        "one.\n"
    )


def test_a_model_whose_steps_were_not_measured() -> None:
    done = typed("validate", "device", "bert")
    assert done.stderr == (
        "meshwright: no step of 'bert' was measured; did you mean 'bert-large'? "
        "Known: 'bert-large', 'gpt2-xl'.\n"
    )
