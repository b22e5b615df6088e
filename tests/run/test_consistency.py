"""Ranks that are about to do different things."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.run.health.consistency import WIDTH, WORDS, Statement, differences, packed, unpacked
from meshwright.run.health.watchdog import EXIT_CODE
from support.watch_bodies import disagrees
from support.watched import outcome

PLAIN = Statement(ranks=4, backend="gloo", plan="a" * 16, graph="b" * 16, dtype="float32")
words = st.text(st.characters(codec="utf-8", min_codepoint=1), max_size=60)

statements = st.builds(
    Statement,
    ranks=st.integers(1, 10**6),
    **dict.fromkeys(WORDS.keys() - {"ranks"}, words),
)


def test_every_value_has_words() -> None:
    assert WORDS.keys() == set(Statement.__struct_fields__)


@given(statements)
def test_a_statement_travels_at_a_fixed_size(statement: Statement) -> None:
    content = packed(statement)
    assert len(content) == WIDTH * len(WORDS)
    arrived = unpacked(content)
    for name in WORDS:
        value = str(getattr(statement, name))
        assert arrived[name] == value or len(value.encode()) > WIDTH


@given(st.integers(1, 6), words, words)
def test_equal_statements_and_only_those_agree(count: int, one: str, other: str) -> None:
    def arrived(extra: str) -> dict[str, str]:
        return unpacked(packed(msgspec.structs.replace(PLAIN, extra=extra)))

    assert differences([arrived(one)] * count) is None
    difference = differences([*[arrived(one)] * count, arrived(other)])
    assert (difference is None) == (one == other)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            ["2.13.0", "2.12.0", "2.13.0"],
            "rank 1 runs torch 2.12.0, rank 0 2.13.0; "
            "install the same version of torch everywhere.",
        ),
        (
            ["2.12.0", "2.13.0", "2.13.0", "2.11.0"],
            "rank 0 runs torch 2.12.0 and rank 3 runs torch 2.11.0, rank 1 2.13.0; "
            "install the same version of torch everywhere.",
        ),
        (
            ["2.13.0"] * 8 + ["2.12.0"] * 7,
            "ranks 8, 9, 10, 11 and 3 more run torch 2.12.0, rank 0 2.13.0; "
            "install the same version of torch everywhere.",
        ),
    ],
)
def test_the_fewer_are_named(values: list[str], said: str) -> None:
    assert str(differences([{"torch": value} for value in values])) == said


def test_several_differences_are_one_sentence() -> None:
    said = differences([{"plan": "a", "graph": "c"}, {"plan": "b", "graph": "d"}])
    assert str(said) == (
        "rank 1 runs the graph d, rank 0 c, and rank 1 runs the plan b, rank 0 a; "
        "build the same model with the same sizes on every rank, and "
        "give every rank the same plan file."
    )


@pytest.mark.waits
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("plan", "q" * 16, "the plan qqqqqqqqqqqqqqqq, rank 0 pppppppppppppppp; give every rank "
         "the same plan file."),
        ("torch", "2.12.0", None),
    ],
)  # fmt: skip
def test_ranks_that_differ_end_with_one_sentence(
    tmp_path: Path, field: str, value: str, said: str | None
) -> None:
    installed = Statement(ranks=3, backend="", plan="", graph="", dtype="").torch
    said = (
        said or f"torch 2.12.0, rank 0 {installed}; install the same version of torch everywhere."
    )
    outcomes = outcome(disagrees, tmp_path, 2, field, value, ranks=3)
    assert outcomes == {(EXIT_CODE, f"rank 2 runs {said}"): [0, 1, 2]}
