"""Who keeps what: laws of stretches, boxes and shares, against elements counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.pieces import Box
from meshwright.lower.boxes import elements, shape_of
from meshwright.lower.ownership import Holdings, stretch, without
from meshwright.lower.script import Script
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.state_bodies import machine_of, random_plan, subject

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in box)


@given(SHAPES, st.data())
def test_a_stretch_is_the_elements_in_their_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    count = int(np.prod(shape, dtype=int))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    whole = np.arange(count).reshape(shape)
    boxes = list(stretch(tuple((0, size) for size in shape), start, stop))
    numbers = [number for box in boxes for number in whole[slices(box)].reshape(-1).tolist()]
    assert numbers == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape))


@given(st.integers(1, 3), st.data())
def test_what_is_left_of_a_box_is_what_no_other_has(dims: int, data: st.DataObject) -> None:
    side = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda ends: (min(ends), max(ends)))
    boxes = st.lists(side, min_size=dims, max_size=dims).map(tuple)
    box, others = data.draw(boxes), data.draw(st.lists(boxes, max_size=4))
    expected = np.zeros((4,) * dims, int)
    expected[slices(box)] = 1
    for other in others:
        expected[slices(other)] = 0
    covered = np.zeros_like(expected)
    for part in without(box, others):
        covered[slices(part)] += 1
    assert (covered == expected).all()


@pytest.mark.parametrize("name", ["bert-large", "resnext-50", "lenet", "dlrm", "rnnlm"])
def test_shares_cover_every_tensor_once_with_what_their_owners_keep(name: str) -> None:
    model = subject(name)
    for seed in range(12):
        script = Script(random_plan(model, (4, 6, 8)[seed % 3], seed, Options(zero=seed % 4)))
        holdings, kept = Holdings(script), script.parallel.made
        specs = script.plan.graph.stored
        assert {p.tensor.name for p in model.graph.parameters if p.tensor.name in kept} | {
            buffer.name for buffer in model.graph.buffers
        } == set(holdings.shares)
        for tensor, shares in holdings.shares.items():
            counted = np.zeros(specs[tensor].shape, int)
            for share in shares:
                counted[slices(share.box)] += 1
                if tensor in kept:
                    mine = np.zeros(specs[tensor].shape, bool)
                    for region in holdings.regions(tensor, share.device):
                        mine[slices(region.box)] = True
                    assert mine[slices(share.box)].all()
            assert (counted == 1).all(), (tensor, shares)


def test_regions_of_a_sharded_parameter_are_the_shard_of_its_owner() -> None:
    model = subject("mlp")
    script = Script(random_plan(model, 4, 5, Options(zero=2)))
    holdings = Holdings(script)
    sharded = [k for b in script.buckets for k in b.parameters if k.shards]
    assert sharded
    for kept in sharded:
        for device in range(4):
            regions = holdings.regions(kept.name, device)
            places = [region.first for region in regions]
            sizes = [elements(region.box) for region in regions]
            assert places == [sum(sizes[:i]) for i in range(len(sizes))]
            assert all(min(shape_of(region.box), default=1) > 0 for region in regions)


def test_copies_are_owned_in_turns() -> None:
    model = subject("mlp")
    layouts = [Layout(("replica", "replica")) for _ in units(model.graph)]
    holdings = Holdings(Script(Plan.of("copies", model.graph, machine_of(4), layouts)))
    owned = [0] * 4
    for shares in holdings.shares.values():
        for share in shares:
            owned[share.device] += elements(share.box)
    largest = max(p.tensor.spec.elements for p in model.graph.parameters)
    assert max(owned) - min(owned) <= largest
