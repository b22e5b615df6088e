"""Generated rules said for more than matrices cut in two, and operators of a user's own."""

from __future__ import annotations

import pytest

from meshwright.graph.notation import parse_definitions
from meshwright.graph.operator_graph import Call, Spec
from meshwright.rewrite.generate.general import most_general_rule
from meshwright.rewrite.graphs.kinds import read, write
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.syntax import parse_rule
from meshwright.rewrite.verify.proof_verdict import has_proof

RANK = "rank(a) = 2"


@pytest.mark.parametrize(
    ("found", "general"),
    [
        (
            f"r: relu(partition[1, 2](a)) => partition[1, 2](relu(a)) if {RANK}",
            "r: relu(partition[1, d](a)) => partition[1, d](relu(a))",
        ),
        (
            "r: add(linear(a, u), linear(b, u)) => linear(add(a, b), u) "
            f"if {RANK} and plain(a) and plain(b) and plain(u)",
            "r: add(linear(a, u), linear(b, u)) => linear(add(a, b), u) "
            "if plain(a) and plain(b) and plain(u)",
        ),
        (
            f"r: transpose[0, 1](a) => a if {RANK}",
            f"r: transpose[0, 1](a) => a if {RANK}",
        ),
    ],
)
def test_the_boldest_reading_that_is_proved(found: str, general: str) -> None:
    assert str(most_general_rule(parse_rule(found), has_proof)) == general


def test_an_operator_of_ones_own_is_written_and_read_by_its_definition() -> None:
    definitions = parse_definitions("mix[a](x, w)[i.., o] = a * (sum(k) x[i.., k] * w[o, k])")
    known = {**DEFINITIONS, **definitions}
    operands = [Spec("float32", (3, 4, 8)), Spec("float32", (6, 8))]
    written = write("mix", (5,), operands, known)
    assert written.outputs == (Spec("float32", (3, 4, 6)),)
    call = Call(kind=written.kind, inputs=tuple(operands), outputs=written.outputs,
                attributes=written.attributes)  # fmt: skip
    reading = read(call, known)
    assert reading is not None
    assert (reading.operator, reading.settings, reading.order) == ("mix", (5,), (0, 1))
    assert read(call) is None
