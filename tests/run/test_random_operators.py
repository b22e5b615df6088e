"""Random operators: parts draw what the whole draws, in the distribution that PyTorch's has."""

from __future__ import annotations

import pytest
import torch

from meshwright.graph.families import random_tensors as told
from meshwright.graph.operator_graph import Call
from meshwright.graph.pieces import pieces, splits_of
from meshwright.graph.randomness import DROPOUTS, RECURRENT, UNTOLD, draws
from meshwright.lower.shard_tasks import MemberPiece
from meshwright.run.exec.random_operators import INVERSES, drawing
from support.aten_operators import tagged
from support.operator_cases import Case, case, chance, positive, real
from support.torch_pieces import cut, run

CPU = torch.device("cpu")
KEY = 1234

CASES = (
    case("rand", size=(40, 50)),
    case("randn", size=(40, 50), dtype="float64"),
    case("randint", size=(40, 50), high=9),
    case("rand_like", real(40, 50)),
    case("randn_like", real(40, 50)),
    case("randint_like", real(40, 50), low=-3, high=9),
    case("bernoulli", chance(40, 50)),
    case("bernoulli", real(40, 50), p=0.25),
    case("bernoulli", real(40, 50), chance(50)),
    case("uniform", real(40, 50), **{"from": -1.0, "to": 3.0}),
    case("normal", real(40, 50), positive(50)),
    case("normal", positive(40, 50), mean=2.0),
    case("normal", real(40, 50), std=0.5),
    case("normal_functional", real(40, 50), mean=2.0, std=0.5),
    case("log_normal", real(40, 50), mean=0.0, std=0.5),
    case("exponential", real(40, 50), lambd=2.0),
    case("cauchy", real(40, 50)),
    case("geometric", real(40, 50), p=0.3),
    case("rrelu", real(40, 50), training=True),
    case("randperm", n=300),
    case("multinomial", positive(40, 6), num_samples=3),
    case("multinomial", positive(40, 6), num_samples=50, replacement=True),
    case("multinomial", positive(6), num_samples=2),
)


def piece_of(case: Case) -> MemberPiece:
    """A whole operator as a piece of itself."""
    call = case.call
    full = [tuple((0, size) for size in spec.shape) for spec in call.outputs]
    return MemberPiece(case.kind, call, tuple(None for _ in call.inputs), tuple(full))


def drawn(of_case: Case, key: int = KEY) -> torch.Tensor:
    return drawing(piece_of(of_case), of_case.call, CPU)(tuple(of_case.tensors()), key)[0]


def test_every_kind_that_a_family_tells_about_is_drawn_by_place() -> None:
    assert {*INVERSES, "multinomial"} == {*told.KINDS} == {case.kind for case in CASES}


@pytest.mark.parametrize("own", CASES, ids=str)
def test_parts_draw_what_the_whole_draws(own: Case) -> None:
    call, tensors, whole = own.call, own.tensors(), drawn(own)
    for split in splits_of(call):
        draws: list[torch.Tensor] = []
        for part in pieces(call, split, 2):
            piece = MemberPiece(own.kind, part.call, part.inputs, part.outputs)
            operands = tuple(
                None if t is None or box is None else cut(t, box)
                for t, box in zip(tensors, part.inputs, strict=True)
            )
            draws += drawing(piece, call, CPU)(operands, KEY)
        assert torch.equal(torch.cat(draws, split.outputs[0] or 0), whole), split.name


@pytest.mark.parametrize("own", CASES, ids=str)
def test_draws_are_distributed_as_those_of_pytorch(own: Case) -> None:
    """Quantiles of some thousand draws, a dozen standard errors apart at most."""
    torch.manual_seed(1)
    mine = torch.stack([drawn(own, key).double() for key in range(20)]).flatten()
    theirs = torch.stack([run(own.call, own.tensors())[0].double() for _ in range(20)]).flatten()
    shares = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    limits = theirs.quantile(shares)
    for limit in limits:
        one, other = ((x <= limit + 1e-9).double().mean() for x in (mine, theirs))
        assert abs(one - other) < 12 * (0.25 / mine.numel()) ** 0.5 + 0.02


def test_another_step_draws_other_numbers() -> None:
    noise = case("randn", size=(40, 50))
    assert not torch.equal(drawn(noise, 1), drawn(noise, 2))


def test_permutations_and_classes_are_drawn_once() -> None:
    assert sorted(drawn(case("randperm", n=300)).tolist()) == list(range(300))
    rows = drawn(case("multinomial", positive(40, 6), num_samples=6)).sort().values
    assert torch.equal(rows, torch.arange(6).expand(40, 6))


def test_what_no_family_tells_about_is_seeded_by_its_place() -> None:
    spec = positive(5, 6).spec
    call = Call(kind="poisson", inputs=(spec,), outputs=(spec,))
    piece = MemberPiece("poisson", call, (None,), (((0, 5), (0, 6)),))
    elsewhere = piece._replace(outputs=(((5, 10), (0, 6)),))
    tensors = (torch.full((5, 6), 100.0),)
    first, again, other = (drawing(p, call, CPU)(tensors, 3)[0] for p in (piece, piece, elsewhere))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_operator_that_pytorch_says_draws_is_known_to_draw() -> None:
    """All that gives new tensors, but kernels for one device and halves of the backward pass."""
    kernels = (
        "_scaled_dot", "_efficient", "_flash", "_triton", "_lstm", "_fused", "_cudnn", "miopen",
        "_nested",
    )  # fmt: skip
    seeded = {
        kind
        for kind in tagged(torch.Tag.nondeterministic_seeded)
        if not kind.startswith(kernels) and kind != "rrelu_with_noise_functional"
    }
    known = {*told.KINDS, *DROPOUTS, *RECURRENT, *UNTOLD, "scaled_dot_product_attention"}
    assert seeded <= known


def test_noise_draws_and_quiet_layers_do_not() -> None:
    assert draws(case("randn", size=(4,)).call)
    assert not draws(case("rrelu", real(4), training=False).call)
