"""The command line as a script and as a person sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from meshwright.cli.console import new_console, print_parts
from meshwright.cli.main import main
from meshwright.cluster.cluster import Cluster
from meshwright.report.terminal_tables import new_table, table_of_clusters
from support.typed import typed

PLACE = ["place", "--cluster", "gcp-a100", "--nodes", "4", "--axes", "data=4,tensor=16"]


def document(*arguments: str) -> dict[str, object]:
    result = typed(*arguments, "--json")
    assert result.stderr == ""
    parsed: dict[str, object] = json.loads(result.stdout)
    return parsed


@pytest.mark.parametrize("verb", [[], ["clusters"], ["place"], ["reduce"], ["validate", "p2"]])
def test_every_verb_has_help_with_an_example(verb: list[str]) -> None:
    result = typed(*verb, "--help")
    assert result.returncode == 0
    assert not verb or "Example:" in result.stdout


def test_help_and_import_do_without_torch_and_numpy() -> None:
    code = "import sys, meshwright.cli.main; print({'torch', 'numpy'} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_place_json() -> None:
    report = document(*PLACE, "--reduce", "data", "--bytes", "8GiB")
    placements = report["placements"]
    assert isinstance(placements, list)
    assert [p["matrix"] for p in placements] == [
        [[1, 4], [4, 4]],
        [[2, 2], [2, 8]],
        [[4, 1], [1, 16]],
    ]
    assert [p["programs"] for p in placements] == [3, 93, 3]
    for p in placements:
        assert p["speedup"] == pytest.approx(p["allreduce_s"] / p["best_s"])
    assert placements[1]["program"] == (
        "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; node.InsideGroup.AllGather"
    )


def test_place_prints_table_drawing_and_reason() -> None:
    text = typed(*PLACE, "--reduce", "data", "--bytes", "8GiB").stdout
    assert "[[1 4] [4 4]]" in text
    assert "node 3 0/12" in text
    words = " ".join(text.split())
    assert "wins: the reduction over data never leaves a node and takes" in words
    assert ", paced by nvswitch." in words


def test_place_sweep_and_all_programs() -> None:
    swept = document(*PLACE, "--reduce", "tensor", "--sweep")["sweep"]
    assert isinstance(swept, list)
    assert [entry["bytes"] for entry in swept][::7] == [1 << 10, 10 << 30]
    pairs = document(*PLACE, "--reduce", "tensor", "--all-programs")["pairs"]
    assert isinstance(pairs, list)
    assert len(pairs) == 189
    times = [pair["predicted_s"] for pair in pairs]
    assert times == sorted(times)


def test_reduce_lists_programs_of_a_placement() -> None:
    report = document(
        "reduce", "--axes", "data=4,tensor=16", "--matrix", "[[2 2] [2 8]]", "--reduce", "tensor"
    )
    programs = report["programs"]
    assert isinstance(programs, list)
    assert len(programs) == 93
    again = document(
        "reduce",
        "--axes",
        "data=4,tensor=16",
        "--matrix",
        "[[2 2] [2 8]]",
        "--reduce",
        "tensor",
        "--program",
        programs[50]["program"],
    )
    assert again["programs"] == [programs[50]]


def test_validate_p2_json() -> None:
    report = document("validate", "p2")
    rows, summary = report["rows"], report["summary"]
    assert isinstance(rows, list)
    assert isinstance(summary, dict)
    assert len(rows) == 248
    fields = {"matrix", "reduce_axes", "algorithm", "kind", "measured_s", "predicted_s", "program"}
    assert all(fields <= row.keys() for row in rows)
    assert {row["kind"] for row in rows} == {"allreduce", "optimal"}
    assert {"errors", "measured", "predicted", "fits"} <= summary.keys()


def test_clusters_are_listed_drawn_and_written(tmp_path: Path) -> None:
    assert "gcp-v100" in typed("clusters").stdout
    assert "2 x cpu of 4 gpu" in typed("clusters", "gcp-v100").stdout
    file = tmp_path / "mine.toml"
    file.write_text(typed("clusters", "summit", "--resize", "node=2", "--toml").stdout)
    report = document("place", "--cluster", str(file), "--axes", "data=12", "--reduce", "data")
    assert report["hierarchy"] == [2, 2, 3]


MISTAKES = [
    (
        [*PLACE[:-1], "data=3,tensor=16", "--reduce", "data"],
        "the axes data=3, tensor=16 multiply to 48, but cluster 'gcp-a100' has 64 devices "
        "(node 4 x gpu 16); choose sizes that multiply to 64.",
    ),
    (
        [*PLACE[:-1], "data=3,tensor=16", "--reduce", "data", "--idle"],
        "the axes data=3, tensor=16 multiply to 48, but cluster 'gcp-a100' has 64 devices "
        "(node 4 x gpu 16); choose sizes whose product divides 64.",
    ),
    ([*PLACE, "--reduce", "data", "--top", "0"], "--top is 0; give 1 or more."),
    (
        [*PLACE, "--reduce", "data", "--limit", "99999999999"],
        "programs of at most 99999999999 steps; allow 1 to 20 steps.",
    ),
    (
        [*PLACE, "--reduce", f"data=1GiB*{'9' * 400}"],
        "'99999999999999999999999999 ... 99999999999999999999999999' is too large a number; give "
        "at most 1000000000000.",
    ),
    (
        [*PLACE, "--reduce", "data", "--resize", f"node={'9' * 5000}"],
        "--resize node: '99999999999999999999999999 ... 99999999999999999999999999' is too large "
        "a number; give at most 1000000000000.",
    ),
    (
        [*PLACE, "--reduce", "data", "--bytes", "1e400B"],
        "'1e400B' is out of range; give a size such as '8 GiB'.",
    ),
    (
        [*PLACE, "--reduce", "data", "--sweep", "--all-programs"],
        "--sweep and --all-programs are two different tables; give one of them.",
    ),
    (
        [*PLACE, "--reduce", "data", "--backend", "gloo", "--algorithm", "tree"],
        "gloo has no tree algorithm; take --algorithm ring or best.",
    ),
    (
        ["clusters", "--nodes", "2"],
        "--nodes, --gpus, --resize, --without, --slow and --toml are about one cluster; name it, "
        "as 'meshwright clusters gcp-a100 --nodes 2'.",
    ),
    (
        ["reduce", "--axes", "data=64", "--reduce", "data", "--reduce", "data"],
        "--reduce was given 2 times; give it once, with axes that are summed together as A+B.",
    ),
    (
        ["reduce", "--axes", "data=64", "--reduce", "data", "--torch", "--json"],
        "--torch and --json are two different outputs; give one of them.",
    ),
    (["place"], "Missing option '--axes'; see 'meshwright place --help'."),
    (
        ["plac"],
        "No such command 'plac'. Did you mean 'place', 'plan', 'replan'? See 'meshwright --help'.",
    ),
    (
        ["compare", "zoo:lenet/tiny", "--cluster", "laptop", "--tp", "2"],
        "No such option: --tp (Possible options: --dtype, --help, --out): 'compare' chooses "
        "degrees; 'meshwright check MODEL --tp N' judges those that you give, and 'meshwright plan "
        "MODEL --tp N' searches with them held; see 'meshwright compare --help'.",
    ),
    (
        [*PLACE, "--reduce", "dat"],
        "there is no axis 'dat' to reduce over; did you mean 'data'? Known: 'data', 'tensor'.",
    ),
    ([*PLACE, "--reduce", ""], "'' names no axis to reduce over; name one, as 'data'."),
    (
        [*PLACE, "--reduce", "data", "--bytes", "0 B"],
        "a reduction over data of 0 bytes; give 1 byte or more.",
    ),
    (
        [*PLACE, "--reduce", "data", "--bytes", "8Gib/s"],
        "'8Gib/s' has the unit 'Gib/s'; give a size with a unit, as '8 GiB'.",
    ),
    (
        [*PLACE, "--reduce", "data", "--algorithm", "rings"],
        "--algorithm is 'rings'; did you mean 'ring'? Known: 'best', 'ring', 'tree'.",
    ),
    (
        [*PLACE, "--reduce", "data", "--backend", "mpi"],
        "there is no backend 'mpi'; did you mean 'pairs'? Known: 'gloo', 'nccl', 'pairs', 'rings'.",
    ),
    (
        [*PLACE, "--reduce", "data", "--resize", "node"],
        "--resize 'node' is no LEVEL=N; write it as 'rack=2'.",
    ),
    (
        [*PLACE, "--reduce", "data", "--nodes", "0"],
        "level 'node' has cardinality 0; give 1 or more.",
    ),
    (
        [*PLACE, "--reduce", "data", "--reduce", "tensor", "--sweep"],
        "--sweep and --all-programs show one reduction; give --reduce once.",
    ),
    (
        ["place", "--cluster", "gcp-a10", "--axes", "data=4", "--reduce", "data"],
        "there is no cluster 'gcp-a10' in the catalogue; give a name or a .toml file: did you "
        "mean 'gcp-a100' or 'gcp-v100' or 'hgx-a100'? Known: 'alps-gh200', 'aws-p4d', "
        "'aws-p4de', 'aws-p5', 'aws-p5e', 'azure-nd-a100', 'azure-nd-h100', 'azure-nd-h200', "
        "'azure-ndm-a100', 'dgx-a100', 'dgx-b200', 'dgx-b300', 'dgx-h100', 'dgx-h200', 'epyc', "
        "'flexflow-k80', 'flexflow-p100', 'gb200-nvl72', 'gb300-nvl72', 'gcp-a100', "
        "'gcp-a2-high', 'gcp-a2-ultra', 'gcp-a3-mega', 'gcp-a3-ultra', 'gcp-v100', "
        "'grand-teton-h100', 'h200', 'hgx-a100', 'hgx-h100', 'jean-zay-a100', 'jean-zay-v100', "
        "'laptop', 'machine', 'mi300x', 'pods-h100', 'rtx4090', 'summit', 'tpu-v5p', "
        "'tpu-v6e', 'tpu7x', 'vela-a100', "
        "'vela-h100', 'vtrain-a100'.",
    ),
    (
        ["place", "--cluster", "none.toml", "--axes", "data=4", "--reduce", "data"],
        "cannot read cluster file 'none.toml' (No such file or directory); give the path of a "
        "readable TOML file or a name that 'meshwright clusters' lists.",
    ),
    (
        ["reduce", "--axes", "data=64", "--reduce", "data", "--matrix", "[[2 32]]"],
        "the columns of [[2 32]] multiply to [2, 32]; make them multiply to [4, 16], as on cluster "
        "'gcp-a100'.",
    ),
    (
        [
            "reduce",
            "--axes",
            "data=64",
            "--reduce",
            "data",
            "--program",
            "root.InsideGroup.ReduceScatter",
        ],
        "'root.InsideGroup.ReduceScatter' does not finish the reduction; add the missing "
        "steps, or give a program that 'meshwright reduce' lists.",
    ),
    (
        [
            "reduce",
            "--axes",
            "data=64",
            "--reduce",
            "data",
            "--program",
            "node.InsideGroup.ReduceScatter; root.InsideGroup.AllReduce",
        ],
        "step 2 of 'node.InsideGroup.ReduceScatter; root.InsideGroup.AllReduce', "
        "root.InsideGroup.AllReduce, mixes different chunks, adds a contribution twice, or brings "
        "nothing new; give a program that 'meshwright reduce' lists.",
    ),
    (
        ["reduce", "--axes", "data=64", "--reduce", "data", "--program", "nod.InsideGroup.Reduce"],
        "the hierarchy has no level 'nod'; did you mean 'node'? Known: 'gpu', 'node', 'root'.",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = typed(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == f"meshwright: {sentence}\n"


def test_no_words_get_the_help() -> None:
    result = typed()
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: meshwright [OPTIONS] COMMAND [ARGS]...\n")


@pytest.mark.parametrize("verb", [["validate", "p2"], ["clusters"], ["clusters", "laptop"]])
def test_a_reader_that_goes_away_is_no_mistake(verb: list[str]) -> None:
    command = [sys.executable, "-m", "meshwright", *verb]
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("verb", [["clusters"], ["clusters", "laptop"]])
def test_nowhere_to_write(verb: list[str]) -> None:
    command = [sys.executable, "-m", "meshwright", *verb]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 2
    assert result.stderr == (
        "meshwright: cannot write the output (No space left on device); "
        "send it where there is room.\n"
    )


def test_a_terminal_that_knows_ascii_only() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "meshwright", "clusters", "laptop"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert result.stdout.splitlines()[:2] == [b"laptop: 4 devices", b"?? process x 4"]


def test_an_interrupt_is_a_sentence_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.search.rank.rank", interrupted)
    monkeypatch.setattr(sys, "argv", ["meshwright", *PLACE, "--reduce", "data"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 130
    assert capsys.readouterr() == (
        "",
        "meshwright: interrupted before there was anything to show\n",
    )


def test_a_thousand_million_nodes_are_drawn() -> None:
    axes = ["--nodes", "1000000000", "--axes", "data=1000000000,tensor=16"]
    text = typed("place", *axes, "--reduce", "tensor").stdout
    assert "  ... 999999984 more rows\n" in text


def test_what_was_left_out_is_counted() -> None:
    text = typed(*PLACE, "--reduce", "tensor", "--all-programs", "--top", "188").stdout
    assert text.endswith("\n... 1 more program (--top)\n")


def test_one_program() -> None:
    program = "root.InsideGroup.AllReduce"
    text = typed("reduce", "--axes", "data=64", "--reduce", "data", "--program", program)
    assert text.stdout.startswith("[[4 16]] on gcp-a100, data 1 GiB: 1 program\n\n")


def test_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    text = typed("clusters", "laptop", "--toml").stdout
    text = text.replace('name = "laptop"', 'name = "[/bold]:smile:[red]"')
    lines = [line for line in text.splitlines() if not line.startswith(("source", "description"))]
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(lines))
    shown = typed("reduce", "--cluster", str(file), "--axes", "data=4", "--reduce", "data")
    assert shown.stdout.startswith("[[4]] on [/bold]:smile:[red], data 1 GiB: 3 programs\n")
    drawn = typed("clusters", str(file)).stdout.splitlines()
    assert drawn[0] == "[/bold]:smile:[red]: 4 devices"
    assert "Source" not in drawn[-1]
    assert drawn[-1].lstrip().startswith("└─ one CPU core")


def test_brackets_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    laptop = Cluster.named("laptop")
    odd = msgspec.structs.replace(laptop, name="[/bold]", description="[[1 2]]")
    new_console().print(table_of_clusters([odd]))
    last = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    assert last == "[/bold] process 4 4 one CPU core [[1 2]]"


@pytest.mark.parametrize(("columns", "lines"), [(29, 1), (28, 2)])
def test_names_of_columns_leave_figures_their_room(
    columns: int,
    lines: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = new_table("strategy", "micro-batches>", "step>")
    table.add_row("DDP", "1", "3 ms")
    print_parts(table)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == lines + 2
    assert shown[-1].split() == ["DDP", "1", "3", "ms"]
    assert "…" not in "".join(shown)
