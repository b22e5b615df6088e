"""Published rows become plans; whatever a row says, it ends in a prediction or a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, product

import pytest
from msgspec.structs import replace

from meshwright.base.quantities import Bytes, Seconds
from meshwright.capture.load import load_model
from meshwright.cluster.rates import Software
from meshwright.validate.published.accuracy import summarize_published
from meshwright.validate.published.configs import published_layout
from meshwright.validate.published.folds import FOLDS, folds_of, held_out, key_of
from meshwright.validate.published.machines import machine_of
from meshwright.validate.published.models import shape_of
from meshwright.validate.published.predicted_rows import JudgedRow, Predictor
from meshwright.validate.published.rows import PublishedRow, load_published, parse_published

HEADER = (
    "source,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,gpu,gpus,tp,pp,vp,cp,ep,dp,zero,"
    "micro_batch,global_batch,dtype,recompute,compile,metric,value,step_s_if_derivable,"
    "peak_memory_gb,note\n"
)
GPT = "here,gpt,7,64,4,4,256,640,32,h100_80gb,16,2,4,1,1,1,2,1,1,16,bf16,full,no,step_s,2,,30,\n"


def row_of(line: str = GPT) -> PublishedRow:
    (row,) = parse_published(HEADER + line, "rows.csv")
    return row


def no_graph(source: str, batch: int) -> object:
    raise AssertionError("nothing is captured for a row that cannot be expressed")


def test_a_row_is_read_as_it_stands() -> None:
    row = row_of()
    assert (row.layers, row.tp, row.measured_s, row.measured_bytes) == (7, 2, 2.0, 30_000_000_000)
    failed = row_of(GPT.replace("step_s,2,,30", "step_s,OOM,,OOM"))
    assert (failed.failed, failed.measured_s, failed.measured_bytes) == (True, None, None)
    tokens = row_of(GPT.replace("step_s,2,", "tokens_per_s_per_gpu,8,"))
    assert tokens.measured_s == 16 * 32 / (8 * 16)


def test_unequal_layers_lie_on_stages() -> None:
    row = row_of()
    layout = published_layout(row, 7, 8)
    assert str(layout.config) == (
        "DP 2, TP 2, PP 4; 8 micro-batches; sequence parallel; ZeRO 1; activation checkpointing"
    )
    assert layout.config.uneven
    assert machine_of(row).hierarchy == (2, 8)
    assert machine_of(row).device.running == Software(fuses=True, wide=True)


ODD = ("", "0", "-3", "1.5", "many", "999999999")


@pytest.mark.parametrize(("place", "value"), list(product(range(2, 20), ODD)))
def test_an_odd_row_ends_in_a_sentence_or_a_question(place: int, value: str) -> None:
    cells = GPT.strip("\n").split(",")
    cells[place] = value
    row = row_of(",".join(cells) + "\n")
    judged = Predictor(no_graph).judge(row)  # type: ignore[arg-type]
    assert judged.skipped
    assert judged.predicted_s is None


@pytest.mark.parametrize(
    ("model", "words"), [("resnet-50", "convolutional"), ("nemotron-h-56b", "Mamba-2")]
)
def test_what_cannot_be_expressed_is_told(model: str, words: str) -> None:
    judged = Predictor(no_graph).judge(replace(row_of(), model=model))  # type: ignore[arg-type]
    assert words in (judged.skipped or "")


def test_experts_and_latent_attention_are_read_off_the_note() -> None:
    note = "MoE 256 experts top 8 + 1 shared, first 3 layers dense ffn 18432, MLA"
    shape = shape_of(replace(row_of(), model="deepseek-v3", note=note, ffn=2048))
    assert shape.structure == "latent experts"
    assert dict(shape.sizes)["experts"] == 256
    assert dict(shape.sizes)["shared"] == 2048


def test_folds_keep_models_of_a_source_together_and_have_rates() -> None:
    rows = load_published()
    folds = folds_of(rows)
    assert set(folds) == {key_of(row) for row in rows}
    counts = [sum(folds[key_of(row)] == fold for row in rows) for fold in range(FOLDS)]
    assert min(counts) > 40
    cluster = machine_of(row_of())
    assert held_out(cluster, 0).device.rates != held_out(cluster, 1).device.rates


def test_errors_order_and_fits_are_counted() -> None:
    row = row_of()
    slow = replace(row, tp=4, measured_s=3.0)
    judged = [
        JudgedRow(row=row, predicted_s=Seconds(2.2), predicted_bytes=Bytes(33 * 10**9), fits=True),
        JudgedRow(
            row=slow, predicted_s=Seconds(2.1), predicted_bytes=Bytes(30 * 10**9), fits=False
        ),
        JudgedRow(row=row, skipped="odd"),
    ]
    summary = summarize_published(judged)
    assert summary.overall is not None
    assert (summary.rows, summary.predicted) == (3, 2)
    assert summary.overall.median == pytest.approx(0.2)
    assert (summary.pairs, summary.pairs_right) == (1, 0)
    assert (summary.fits, summary.fits_right) == (2, 1)
    assert summary.memory is not None
    assert summary.memory.median == pytest.approx(0.05)
    assert summary.skipped == {"odd": 1}


VTRAIN = load_published("vtrain")


def test_a_row_of_vtrain_is_megatron_deepspeed_on_its_machine() -> None:
    row = VTRAIN[0]
    assert (row.origin, row.measured_s) == ("vTrain single-node", 0.219732754)
    machine = machine_of(row)
    assert (machine.name, machine.hierarchy) == ("vtrain-a100", (1, 8))
    assert machine.device.running == Software(
        fuses=True, flash=False, wide=True, adds=True, scatters=True
    )
    config = "DP 2, TP 2, PP 2; 4 micro-batches; activation checkpointing"
    assert str(published_layout(row, 24, 8).config) == config


def test_rows_of_vtrain_are_predicted_as_plans_are() -> None:
    predictor = Predictor(lambda name, batch: load_model(name, batch).graph)
    judged = predictor.judge(VTRAIN[0])
    assert judged.ratio == pytest.approx(0.98, abs=0.01)


def straight(rows: Iterable[PublishedRow]) -> Iterator[bool]:
    """Of triples of rows that differ only in micro-batches, whether they lie on a line to 1 ns."""
    alike: dict[PublishedRow, dict[int, int]] = defaultdict(dict)
    for row in rows:
        assert row.global_batch is not None
        assert row.measured_s is not None
        times = alike[replace(row, global_batch=None, measured_s=None)]
        times[row.global_batch] = round(row.measured_s * 1e9)
    for times in alike.values():
        for (a, at_a), (b, at_b), (c, at_c) in combinations(sorted(times.items()), 3):
            yield abs((at_b - at_a) * (c - a) - (at_c - at_a) * (b - a)) <= c - a


def test_rows_of_vtrain_inside_a_node_look_summed() -> None:
    """Separate runs scatter by more than a nanosecond (docs/validation.md)."""
    lines = list(straight(row for row in VTRAIN if row.origin == "vTrain single-node"))
    assert (len(lines), all(lines)) == (88, True)
    assert not list(straight(row for row in VTRAIN if row.origin == "vTrain multi-node"))
