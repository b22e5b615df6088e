"""What kernels reach of a device, as files say it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
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
    assert catalogued("dgx-h100").device.reached == Rates()


def test_rates_and_software_read_back() -> None:
    software = Software(fuses=True, flash=False, wide=True, products="fp8")
    rates = replace(Rates(), launch=5e-6, best=0.5)
    said = replace(H100, device=replace(H100.device, software=software, rates=rates))
    assert parse_cluster(dump_cluster(said)) == said
    assert "rates" not in msgspec.to_builtins(catalogued("dgx-h100").device)


def test_products_need_a_peak_and_rates_are_above_zero() -> None:
    with pytest.raises(InputError, match="runs products in 'fp4', for which it has no peak"):
        replace(H100.device, software=Software(products="fp4"))
    with pytest.raises(InputError, match="the rate 'best' is 0"):
        Rates(best=0.0)
