"""What software does to prices: grouped products, sums of gradients, what is hidden."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster, Device
from meshwright.cluster.rates import Rates, Software
from meshwright.cost.collective import Collective, Movement
from meshwright.cost.extents import extents_of
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.overlap import exposed_share
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from meshwright.graph.operator_graph import Call, Spec

H100, USUAL = Cluster.named("dgx-h100").device, Rates()

TWO_NODES: Pattern = ((Digit(2, PatternUse.MEMBER),), (Digit(8, PatternUse.MEMBER),))
INSIDE: Pattern = ((Digit(2, PatternUse.EVERY),), (Digit(8, PatternUse.MEMBER),))


def running(rates: Rates = USUAL, **fields: object) -> Device:
    return replace(H100, rates=rates, software=Software(**fields))  # type: ignore[arg-type]


def grouped(experts: int) -> Call:
    rows, ends = Spec("bfloat16", (4096, 2048)), Spec("int32", (experts,))
    matrices = Spec("bfloat16", (experts, 2048, 768))
    out = Spec("bfloat16", (4096, 768))
    return Call(kind="_grouped_mm", inputs=(rows, matrices, ends), outputs=(out,))


LINEAR = Call(
    kind="linear",
    inputs=(Spec("bfloat16", (64, 1024)), Spec("bfloat16", (4096, 1024))),
    outputs=(Spec("bfloat16", (64, 4096)),),
)


def test_a_grouped_product_is_as_efficient_as_one_of_its_groups() -> None:
    assert extents_of(grouped(16)) == {"rows": 256, "parameter": 768, "reduction": 2048}
    pricer = OperatorPricer(running())
    few, many = (pricer.price(grouped(n)).forward.seconds for n in (2, 64))
    assert many > 2 * few


def test_several_groups_reach_less_than_one() -> None:
    """Of what a plain product reaches, which one group is."""
    rates = Rates(grouped=0.5, launch=1e-9, streaming=100.0)  # type: ignore[arg-type]
    lost, whole = (OperatorPricer(running(it)) for it in (rates, replace(rates, grouped=1.0)))
    for groups in (1, 2, 16):
        one, other = (pricer.price(grouped(groups)).forward.seconds for pricer in (lost, whole))
        slower = one / other
        assert slower == pytest.approx(1 if groups == 1 else 2, rel=0.01)


def test_products_in_four_bits_have_a_share_of_their_own() -> None:
    peak = (*H100.peak, ("fp4", dict(H100.peak)["fp8"]))
    device = replace(running(Rates(narrow=0.8, narrowest=0.4), products="fp8"), peak=peak)
    large = Spec("bfloat16", (8192, 8192))
    call = Call(kind="linear", inputs=(large, large), outputs=(large,))
    eight, four = (
        OperatorPricer(replace(device, software=Software(products=bits))).price(call).forward
        for bits in ("fp8", "fp4")
    )
    assert four.seconds / eight.seconds == pytest.approx(2, rel=0.01)


def test_grouped_products_in_one_kernel_are_faster() -> None:
    rates = Rates(joined=2.0, launch=1e-9, streaming=100.0)  # type: ignore[arg-type]
    apart, joined = (
        OperatorPricer(running(rates, joins=flag)).price(grouped(2)).forward.seconds
        for flag in (False, True)
    )
    assert apart / joined == pytest.approx(2, rel=0.01)


def test_sums_of_gradients_move_each_weight() -> None:
    plain, adding = (
        OperatorPricer(running(adds=flag, wide=True)).price(LINEAR).backward.seconds
        for flag in (False, True)
    )
    moved = 4096 * 1024 * (2 + 4 + 4) / (H100.memory_bandwidth * USUAL.streaming)
    assert adding - plain == pytest.approx(moved)


def test_a_token_is_sent_once_to_a_machine() -> None:
    everything = Software()
    once = Software(dispatched=8, hidden_exchange=0.5)
    assert exposed_share(everything, Movement.ALL_TO_ALL, TWO_NODES) == 1
    # Of 8 copies to 2 machines, 1 - 1/2^8 and not 4 cross to the other one; half is hidden.
    assert exposed_share(once, Movement.ALL_TO_ALL, TWO_NODES) == (1 - 2**-8) / 4 / 2
    # Inside a machine to each of 8 devices once, where some of 8 experts are.
    assert exposed_share(once, Movement.ALL_TO_ALL, INSIDE) == (1 - (7 / 8) ** 8) / 2


def test_products_hide_gathers_inside_a_machine_only() -> None:
    software = Software(hidden_tensor=0.6)
    assert math.isclose(exposed_share(software, Collective.ALL_GATHER, INSIDE), 0.4)
    assert exposed_share(software, Collective.ALL_GATHER, TWO_NODES) == 1
    assert exposed_share(software, Collective.ALL_REDUCE, INSIDE) == 1


def test_shares_are_below_one() -> None:
    with pytest.raises(InputError, match="the share 'hidden_tensor' is 1; give one from 0"):
        Software(hidden_tensor=1.0)
