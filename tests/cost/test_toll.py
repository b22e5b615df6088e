"""What talking takes of computing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster, CommOverhead
from meshwright.cost.alpha_beta import LostBandwidth, Pricer
from meshwright.cost.backend import BACKENDS, RINGS, Backend
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from support.machines import machine

EVERYBODY: Pattern = ((Digit(2, PatternUse.MEMBER),), (Digit(2, PatternUse.MEMBER),))
FOUR = 4
OPERATIONS: tuple[Operation, ...] = (*Collective, *Movement)


def tolled(cluster: Cluster, message: float, bandwidth: float) -> Cluster:
    toll = CommOverhead(message=Seconds(message), bandwidth=BytesPerSecond(bandwidth))
    return msgspec.structs.replace(
        cluster, device=msgspec.structs.replace(cluster.device, toll=toll)
    )


@pytest.mark.parametrize(
    ("operation", "messages", "sent"),
    [
        (Collective.ALL_REDUCE, 6, 1.5),
        (Collective.REDUCE_SCATTER, 3, 0.75),
        # Of what a member holds, which is a fourth of the whole.
        (Collective.ALL_GATHER, 3, 3.0),
        (Collective.BROADCAST, 1, 1.0),
        (Movement.ALL_TO_ALL, 3, 0.75),
        (Movement.SEND, 1, 1.0),
        (Movement.GATHER, 3, 3.0),
    ],
)
def test_four_members_pay_for_the_messages_and_bytes_of_the_busiest(
    operation: Operation, messages: int, sent: float
) -> None:
    pricer = Pricer(tolled(machine(2, 2), 1e-3, 1e6), RINGS)
    for line in pricer.lines(operation, EVERYBODY):
        assert line.lost == pytest.approx(LostBandwidth(messages * 1e-3, sent * 1e-6))


@given(
    backend=st.sampled_from(list(BACKENDS.values())),
    operation=st.sampled_from(OPERATIONS),
    message=st.floats(0.0, 1e-2),
    bandwidth=st.floats(1e5, 1e12),
    held=st.floats(1.0, 1e9),
)
def test_a_collective_takes_no_less_than_its_toll_and_no_less_than_without(
    backend: Backend, operation: Operation, message: float, bandwidth: float, held: float
) -> None:
    plain, cluster = machine(2, 2), tolled(machine(2, 2), message, bandwidth)
    pairs = zip(
        Pricer(plain, backend).lines(operation, EVERYBODY),
        Pricer(cluster, backend).lines(operation, EVERYBODY),
        strict=True,
    )
    for without, line in pairs:
        assert without.lost == LostBandwidth()
        assert line.at(held) >= without.at(held)
        lost = line.lost.fixed + line.lost.per_byte * held
        assert line.at(held) >= lost * (1 - 1e-12)
