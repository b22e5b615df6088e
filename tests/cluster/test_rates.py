"""What kernels reach of a device, as files say it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.catalogue import catalogued
from meshwright.cluster.rates import Rates, Software
from meshwright.cluster.toml import dump_cluster, parse_cluster

H100 = catalogued("hgx-h100")


def test_software_that_fuses_has_its_own_rates() -> None:
    device = H100.device
    fusing = replace(device, software=Software(fuses=True))
    assert device.reached == device.rates
    assert fusing.reached == device.fusing
    assert replace(fusing, fusing=msgspec.UNSET).reached == device.rates
    assert catalogued("flexflow-p100").device.reached == Rates()


def test_rates_and_software_read_back() -> None:
    software = Software(
        fuses=True, flash=False, wide=True, products="fp8", joins=True, adds=True, dispatched=8,
        hidden_exchange=0.75, hidden_tensor=0.6, scatters=True,
    )  # fmt: skip
    rates = replace(Rates(), launch=5e-6, dispatch=4e-5, best=0.5)
    said = replace(H100, device=replace(H100.device, software=software, rates=rates))
    assert parse_cluster(dump_cluster(said)) == said
    assert "rates" not in msgspec.to_builtins(catalogued("flexflow-p100").device)


@pytest.mark.parametrize(
    ("name", "like"),
    [("dgx-a100", "hgx-a100"), ("dgx-h100", "hgx-h100"), ("aws-p5", "hgx-h100"),
     ("dgx-h200", "hgx-h100"), ("machine", "hgx-h100"), ("azure-nd-a100", "hgx-a100")],
)  # fmt: skip
def test_machines_of_one_chip_have_the_rates_that_were_validated(name: str, like: str) -> None:
    device, judged = catalogued(name).device, catalogued(like).device
    assert (device.rates, device.fusing) == (judged.rates, judged.fusing)


def test_products_need_a_peak_and_rates_are_above_zero() -> None:
    with pytest.raises(InputError, match="runs products in 'fp4', for which it has no peak"):
        replace(H100.device, software=Software(products="fp4"))
    with pytest.raises(InputError, match="the rate 'best' is 0"):
        Rates(best=0.0)
    assert Rates(dispatch=Seconds(0.0)).dispatch == Seconds(0.0)
    with pytest.raises(InputError, match="the rate 'dispatch' is -1"):
        Rates(dispatch=Seconds(-1.0))
