"""What is made of measurements on a real network: the fit, the cases, the figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import Bytes, BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.collectives.dsl import ALL_REDUCE, Program
from meshwright.collectives.predict import PricedProgram, ProgramStepPrice
from meshwright.cost.alpha_beta import CostLine, Pricer, cheapest_line
from meshwright.cost.backend import RINGS
from meshwright.cost.collective import Collective
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from meshwright.validate.bed_rows import (
    BedCalibration,
    Case,
    LevelTimes,
    Record,
    Result,
    calibrated,
    cases,
    described,
    read_records,
    write_records,
)
from meshwright.validate.bed_summary import (
    Accuracy,
    Timing,
    rank_correlation,
    summarize_bed,
    timings,
)
from meshwright.validate.p2_accuracy import Errors, Gains
from support.strategies import DEVICE

PAYLOAD = Bytes(2 << 20)
SCATTERED = Program.parse("root.InsideGroup.ReduceScatter; root.InsideGroup.AllGather")
ROOTED = Program.parse("root.InsideGroup.Reduce; root.InsideGroup.Broadcast")


def three_levels() -> Cluster:
    """Two racks of two nodes of four, as the testbed has them."""

    def link(name: str, per: str, *, outward: bool = False) -> Link:
        rate = BytesPerSecond(1e6)
        return Link(name=name, per=per, out=rate, into=rate, outward=outward)

    levels = (
        Level(name="rack", cardinality=2, links=(link("spine", "rack"),)),
        Level(name="node", cardinality=2, links=(link("nic", "node", outward=True),)),
        Level(name="process", cardinality=4, links=(link("loopback", "cluster"),)),
    )
    return Cluster(name="three", levels=levels, device=DEVICE, machine="node")


def calibration(*times: tuple[float, float]) -> BedCalibration:
    """Measurements of the three levels: a few bytes, the payload."""
    names = three_levels().level_names
    return BedCalibration(
        network="three",
        payload=PAYLOAD,
        load=1.0,
        levels=tuple(
            LevelTimes(level=name, small_s=Seconds(small), large_s=Seconds(large))
            for name, (small, large) in zip(names, times, strict=True)
        ),
    )


@given(
    node=st.floats(1e-4, 1e-3),
    rack=st.floats(0.0, 1e-3),
    process=st.floats(1e-4, 1e-2),
    longer=st.tuples(st.floats(0.5, 1.0), st.floats(0.1, 0.4), st.floats(1e-3, 1e-2)),
)
def test_the_fitted_cluster_predicts_what_it_was_fitted_to(
    node: float, rack: float, process: float, longer: tuple[float, float, float]
) -> None:
    few = (node + rack, node, process)
    many = tuple(small + more for small, more in zip(few, longer, strict=True))
    fitted = calibrated(three_levels(), calibration(*zip(few, many, strict=True)))
    pricer = Pricer(fitted, RINGS)
    for level, (small, large) in enumerate(zip(few, many, strict=True)):
        rest = PatternUse.EVERY if level == 2 else PatternUse.FIRST
        pattern: Pattern = tuple(
            (Digit(size, PatternUse.MEMBER if depth == level else rest),)
            for depth, size in enumerate(fitted.hierarchy)
        )
        line = cheapest_line(pricer.lines(Collective.ALL_REDUCE, pattern), PAYLOAD)
        assert line.fixed == pytest.approx(small, rel=1e-9)
        assert line.at(PAYLOAD) == pytest.approx(large, rel=1e-9)


def test_a_latency_is_never_negative() -> None:
    fitted = calibrated(three_levels(), calibration((1e-4, 1.0), (3e-4, 0.1), (1e-3, 0.01)))
    assert [link.latency for level in fitted.levels for link in level.links] == [
        0.0,
        pytest.approx(1.5e-4),
        pytest.approx(1e-3 / 6),
    ]


def test_the_last_calibration_counts() -> None:
    first, last = (calibration((0.0, s), (0.0, 0.1), (0.0, 0.01)) for s in (0.5, 1.0))
    (spine,) = described({"three": three_levels()}, [first, last])["three"].levels[0].links
    assert spine.out == PAYLOAD / 1.0


CASES_OF_SIXTEEN = {
    # axes, reduced over: how many placements on four nodes of four
    ((16,), ("a",)): 1,
    ((2, 8), ("a",)): 2,
    ((2, 8), ("b",)): 2,
    ((4, 4), ("a",)): 3,
    ((4, 4), ("b",)): 3,
    ((8, 2), ("a",)): 2,
    ((8, 2), ("b",)): 2,
    ((2, 2, 4), ("a", "c")): 4,
    ((4, 2, 2), ("a", "c")): 4,
}


def test_all_placements_of_the_papers_configurations() -> None:
    counts: dict[object, int] = {}
    for case in cases("net", Cluster.named("gcp-a100", node=4, gpu=4)):
        _, sizes, reduce = case.configuration
        counts[sizes, reduce] = counts.get((sizes, reduce), 0) + 1
    assert counts == CASES_OF_SIXTEEN


def result(case: Case, program: Program, *seconds: float, load: float = 1.0) -> Result:
    network, axes, reduce, matrix = case.key
    return Result(
        network=network,
        axes=axes,
        reduce=reduce,
        matrix=matrix,
        program=str(program),
        payload=PAYLOAD,
        seconds=tuple(map(Seconds, seconds)),
        load=(load,) * len(seconds),
    )


def timing(program: Program, predicted: float, measured: float, spread: float = 0.0) -> Timing:
    return Timing(program, Seconds(predicted), Seconds(measured), spread)


def priced(program: Program, seconds: float) -> PricedProgram:
    line = CostLine(Seconds(seconds), 0.0, "nic", ())
    return PricedProgram(program, (ProgramStepPrice(program.instructions[0], 0.0, line),))


def test_records_are_read_as_they_were_written() -> None:
    case = next(cases("three", three_levels()))
    records: list[Record] = [
        calibration((0.1, 0.5), (0.0, 0.1), (0.0, 0.01)),
        result(case, ALL_REDUCE, 0.25, 0.5),
    ]
    assert read_records(write_records(records)) == records


def test_the_calmer_measurement_counts() -> None:
    case = next(cases("three", three_levels()))
    records = [
        result(case, ALL_REDUCE, 0.5, load=3.0),
        result(case, ALL_REDUCE, 0.25, 0.25, 0.375, load=2.0),
        result(case, ALL_REDUCE, 0.9, load=7.0),
    ]
    predicted = {case.key: [priced(ROOTED, 0.1), priced(ALL_REDUCE, 0.2)]}
    assert timings(records, predicted) == {case.key: [timing(ALL_REDUCE, 0.2, 0.25, 0.5)]}


def test_the_figures_of_two_placements() -> None:
    first, second = list(cases("three", three_levels()))[1:3]
    assert first.configuration == second.configuration
    few = [timing(ROOTED, 1.0, 2.0, 0.5), timing(ALL_REDUCE, 2.0, 1.0, 0.1)]
    # Predicted second of twelve, measured first; the first choice takes a quarter longer.
    many = [
        timing(SCATTERED, 3.0, 2.5),
        timing(ROOTED, 3.5, 2.0),
        timing(ALL_REDUCE, 4.0, 4.0),
        *(timing(SCATTERED, 5.0 + i, 5.0 + i) for i in range(9)),
    ]
    figures = summarize_bed([first, second], {first.key: few, second.key: many})
    assert figures.errors == {
        "three": Errors(times=12, median=0.0, worst=0.75),
        "three programs": Errors(times=2, median=0.75, worst=1.0),
        "all": Errors(times=14, median=0.0, worst=1.0),
    }
    assert figures.measured == Gains(
        cases=2,
        improved=0.5,
        improved_by_5_percent=0.5,
        mean_speedup_of_improved=2.0,
        mean_speedup=1.5,
        largest_speedup=2.0,
        largest_placement_ratio=4.0,
    )
    assert figures.predicted.largest_speedup == 2.0
    assert figures.spread == 0.0
    assert figures.programs_ahead == 2 / 14
    assert figures.accuracy == Accuracy(
        cases=1,
        top={1: 0.0, 2: 1.0, 3: 1.0, 5: 1.0, 10: 1.0},
        correlation=round(1 - 6 * 2 / (12 * 143), 12),
        lowest_correlation=round(1 - 6 * 2 / (12 * 143), 12),
        regret=0.25,
        mean_regret=0.25,
        largest_regret=0.25,
    )


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=20, unique=True))
def test_ranks_know_only_the_order(measured: list[float]) -> None:
    same = [timing(ALL_REDUCE, s**3, s) for s in measured]
    opposite = [timing(ALL_REDUCE, 1 / s, s) for s in measured]
    assert rank_correlation(same) == 1.0
    assert rank_correlation(opposite) == -1.0
