"""Laws of the parallel operators, on arrays of shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.graph.notation import MisfitError
from meshwright.rewrite.language.shards import Shards, cut, evaluate, run, unsharded_array
from meshwright.rewrite.language.syntax import parse_term
from meshwright.rewrite.language.terms import AXES, Attribute
from meshwright.rewrite.language.types import (
    DUALS,
    FRONT,
    PARALLEL,
    STEP,
    Type,
    TypedAxis,
    axis_number,
    infer,
    over,
    plain,
    rank,
)
from support.shard_strategies import moves, shards
from support.shards import Pieces, moved

Move = tuple[tuple[Attribute, ...], Shards]


def one(operator: str, attributes: tuple[Attribute, ...], sharded: Shards) -> Shards:
    """The only output."""
    (output,) = run(operator, attributes, (sharded,))
    return output


def same(left: Shards, right: Shards) -> bool:
    """Equal piece by piece."""
    return left.type == right.type and np.array_equal(left.values, right.values)


def name_of(number: int) -> Attribute:
    """An axis as attributes name it."""
    return AXES[number] if number < FRONT else number - FRONT


def test_every_parallel_operator_but_halo_has_a_dual() -> None:
    assert {*DUALS, "halo"} == set(PARALLEL)
    assert all(DUALS[dual] == operator for operator, dual in DUALS.items())


@given(shards())
def test_cutting_and_putting_together_are_inverse(sharded: Shards) -> None:
    assert [axis.size for axis in sharded.type] == list(sharded.whole.shape)
    assert same(cut(sharded.type, sharded.whole), sharded)
    np.testing.assert_array_equal(cut(sharded.type, sharded.whole).whole, sharded.whole)


@given(moves("partition"))
def test_partition_then_combine_is_nothing(move: Move) -> None:
    attributes, sharded = move
    number, degree = over("partition", attributes, rank(sharded.type))
    parted = one("partition", attributes, sharded)
    size, pieces, *_ = sharded.type[number]
    assert parted.type[number] == TypedAxis(size, pieces * degree)
    np.testing.assert_array_equal(parted.whole, sharded.whole)
    assert same(one("combine", attributes, parted), sharded)


@given(moves("combine"))
def test_combine_then_partition_is_nothing(move: Move) -> None:
    attributes, sharded = move
    joined = one("combine", attributes, sharded)
    np.testing.assert_array_equal(joined.whole, sharded.whole)
    assert same(one("partition", attributes, joined), sharded)


@given(moves("replicate"))
def test_reduce_of_replicate_is_a_multiple(move: Move) -> None:
    attributes, sharded = move
    number, degree = over("replicate", attributes, rank(sharded.type))
    copied = one("replicate", attributes, sharded)
    tiled = np.concatenate([sharded.whole] * degree, axis=number)
    np.testing.assert_array_equal(copied.whole, tiled)
    summed = one("reduce", attributes, copied)
    assert summed.type == sharded.type
    np.testing.assert_array_equal(summed.values, degree * sharded.values)
    if degree > 1 and sharded.values.any():
        assert not same(summed, sharded)


@given(moves("reduce"))
def test_reduce_adds_the_outer_parts(move: Move) -> None:
    attributes, sharded = move
    number, degree = over("reduce", attributes, rank(sharded.type))
    reduced = one("reduce", attributes, sharded)
    np.testing.assert_array_equal(reduced.whole, sum(np.split(sharded.whole, degree, axis=number)))


def test_replicate_of_reduce_is_not_the_identity() -> None:
    pending = cut(
        (TypedAxis(1), TypedAxis(1), TypedAxis(2, 2), TypedAxis(1)),
        np.array([1.0, 2.0]).reshape(1, 1, 2, 1),
    )
    copied = one("replicate", ("sums", 2), one("reduce", (2,), pending))
    assert copied.type == pending.type
    assert copied.whole.ravel().tolist() == [3.0, 3.0]


@given(moves("pipeline"))
def test_pipeline_then_batch_is_nothing(move: Move) -> None:
    attributes, sharded = move
    number, count = over("pipeline", attributes, rank(sharded.type))
    steps = one("pipeline", attributes, sharded)
    assert steps.type[STEP] == TypedAxis(sharded.type[STEP].size * count)
    one_by_one = [
        part
        for step in np.split(sharded.whole, sharded.type[STEP].size)
        for part in np.split(step, count, axis=number)
    ]
    np.testing.assert_array_equal(steps.whole, np.concatenate(one_by_one))
    assert same(one("batch", attributes, steps), sharded)


@given(moves("batch"))
def test_batch_then_pipeline_is_nothing(move: Move) -> None:
    attributes, sharded = move
    assert same(one("pipeline", attributes, one("batch", attributes, sharded)), sharded)


@given(moves("partition"), st.data())
def test_partition_and_replicate_on_different_axes_commute(move: Move, data: st.DataObject) -> None:
    cut_, sharded = move
    number, _ = over("partition", cut_, rank(sharded.type))
    other = data.draw(st.integers(0, len(sharded.type) - 1).filter(lambda n: n != number))
    copy = (name_of(other), data.draw(st.integers(2, 3)))
    assert same(
        one("replicate", copy, one("partition", cut_, sharded)),
        one("partition", cut_, one("replicate", copy, sharded)),
    )


@given(moves("halo"))
def test_halo_without_its_overlap_is_nothing(move: Move) -> None:
    attributes, sharded = move
    name, before, after = attributes
    number = axis_number(name, rank(sharded.type))
    length = sharded.type[number].size // sharded.type[number].degree
    held = one("halo", attributes, sharded)
    assert held.type[number] == (*sharded.type[number][:2], before, after)
    np.testing.assert_array_equal(held.whole, sharded.whole)
    assert isinstance(before, int)
    kept = np.take(held.values, range(before, before + length), axis=len(sharded.type) + number)
    np.testing.assert_array_equal(kept, sharded.values)


def test_a_halo_holds_the_rows_of_its_neighbours() -> None:
    held = one("halo", (0, 1, 2), one("partition", (0, 2), unsharded_array(np.arange(1.0, 7.0))))
    assert held.values.reshape(2, -1).tolist() == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 0, 0]]


@pytest.mark.parametrize("operator", DUALS)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_the_dual_of_a_parallel_operator_is_its_gradient(
    operator: str, data: st.DataObject, seed: int
) -> None:
    """Real autograd through the shards, of a random linear functional of all that comes out."""
    attributes, sharded = data.draw(moves(operator))
    entering = torch.from_numpy(sharded.values.copy()).requires_grad_()
    leaving = shards_of(moved(operator, attributes, whole_of(sharded.type, entering)))
    weights = np.random.default_rng(seed).integers(-3, 4, leaving.shape).astype(float)
    (gradient,) = torch.autograd.grad((leaving * torch.from_numpy(weights)).sum(), entering)
    (type_,) = infer(operator, attributes, (sharded.type,))
    (dual,) = run(DUALS[operator], attributes, (Shards(type_, weights),))
    np.testing.assert_array_equal(dual.whole, Shards(sharded.type, gradient.numpy()).whole)
    number, _ = over(operator, attributes, rank(sharded.type))
    # A sum over parts of one piece is the exception: replicate gives its gradient a piece a part.
    if operator != "reduce" or sharded.type[number].degree > 1:
        assert dual.type == sharded.type


def whole_of(type_: Type, values: torch.Tensor) -> Pieces:
    """Pieces put together, so that gradients flow."""
    n = len(type_)
    order = [place for number in range(n) for place in (number, n + number)]
    return Pieces(type_, values.permute(order).reshape([axis.size for axis in type_]))


def shards_of(pieces: Pieces) -> torch.Tensor:
    """A tensor cut into its pieces, so that gradients flow."""
    n = len(pieces.type)
    shape = [part for axis in pieces.type for part in (axis.degree, axis.size // axis.degree)]
    return pieces.whole.reshape(shape).permute(*range(0, 2 * n, 2), *range(1, 2 * n, 2))


REFUSED = {
    ("partition", ("steps", 2)): "steps follow each other and cannot be cut",
    ("partition", (0, 3)): "an axis of size 4 is cut into 3",
    ("partition", (2, 2)): "there is no dim 2 among 2",
    ("partition", (0, 0)): "degree 0 is less than two",
    ("partition", ("k", 2)): "k is not bound",
    ("partition", (0, "d")): "degree d is not bound",
    ("partition", (0,)): "partition has 1 attributes, not an axis and a degree",
    ("combine", (1, 3)): "combine by 3 of an axis of degree 2",
    ("reduce", (2,)): "reduce by 2 of an axis of size 1",
    ("pipeline", (1, 2)): "pipeline of an axis that is cut",
    ("pipeline", (0, 3)): "pipeline by 3 of a dim of size 4",
    ("batch", (0, 2)): "batch by 2 of 1 steps",
    ("halo", (1, 4, 0)): "pieces of 3 rows lend 4",
    ("halo", ("copies", 1, 0)): "halo of an axis that overlaps already, or is no dim",
}


@pytest.mark.parametrize("asked", REFUSED, ids=str)
def test_refusals(asked: tuple[str, tuple[Attribute, ...]]) -> None:
    sharded = cut((*plain(())[:FRONT], TypedAxis(4), TypedAxis(6, 2)), np.zeros((1, 1, 1, 4, 6)))
    with pytest.raises(MisfitError) as error:
        run(*asked, (sharded,))
    assert str(error.value) == REFUSED[asked]


@given(shards())
def test_structure_moves_pieces_as_it_moves_the_whole(sharded: Shards) -> None:
    last = rank(sharded.type) - 1
    turned = one("transpose", (0, last), sharded)
    np.testing.assert_array_equal(turned.whole, sharded.whole.swapaxes(FRONT, FRONT + last))
    size = sharded.type[FRONT].degree
    parted = one("unflatten", (0, size), sharded)
    shape = sharded.whole.shape
    np.testing.assert_array_equal(
        parted.whole, sharded.whole.reshape(*shape[:FRONT], size, -1, *shape[FRONT + 1 :])
    )
    assert same(one("flatten", (0,), parted), sharded)


@given(shards(), st.data())
def test_concat_of_split_is_nothing(sharded: Shards, data: st.DataObject) -> None:
    whole = [n for n, axis in enumerate(sharded.type) if axis.degree == 1 and axis.size > 1]
    assume(whole)
    number = data.draw(st.sampled_from(whole))
    first = data.draw(st.integers(1, sharded.type[number].size - 1))
    parts = run("split", (name_of(number), first), (sharded,))
    joined = np.concatenate([part.whole for part in parts], axis=number)
    np.testing.assert_array_equal(joined, sharded.whole)
    assert same(run("concat", (name_of(number),), parts)[0], sharded)


@pytest.mark.parametrize(
    "term",
    [
        "combine[0, 2](linear(partition[0, 2](x), replicate[2](w)))",
        "combine[1, 2](linear(replicate[2](x), partition[0, 2](w)))",
        "reduce[2](linear(partition[1, 2](x), partition[1, 2](w)))",
        "batch[0, 2](linear(pipeline[0, 2](x), replicate[steps, 2](w)))",
    ],
)
def test_forms_of_parallelism_of_a_product(term: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (4, 6)).astype(float), rng.integers(-3, 4, (2, 6)).astype(float)
    inputs = {"x": unsharded_array(x), "w": unsharded_array(w)}
    (product,) = evaluate([parse_term(term)], inputs)
    assert product.type == plain((4, 2))
    np.testing.assert_array_equal(product.whole[0, 0, 0], x @ w.T)


def test_missing_copies_are_refused() -> None:
    x = one("partition", (0, 2), unsharded_array(np.ones((4, 6))))
    with pytest.raises(MisfitError, match="w has 1 copies where 2 are needed"):
        run("linear", (), (x, unsharded_array(np.ones((2, 6)))))
