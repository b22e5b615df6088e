"""One device as a judge: plain PyTorch, and what it can judge."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example
from meshwright.cluster.cluster import Cluster
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.single_device import Doubled, refuse_incomparable, train_on_one_device
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units

GRAPH = """graph small
input x: float32[n=4, c=2]
parameter w: float32[c=2]
parameter b: float32[c=2]
buffer mean: float32[c=2]
buffer variance: float32[c=2]
operator normed: y: float32[n=4, c=2] = batch_norm(x, w, b, mean, variance) {training=true}
operator dropped: z: float32[n=4, c=2] = dropout(y) {p=%s, train=true}
operator total: t: float32[] = mean(z)
output t
loss t"""


def planned(probability: float, micro_batches: int) -> Plan:
    graph = parse_graph(GRAPH % probability)
    cluster = Cluster.named("laptop", process=2)
    layouts = [Layout(("replica",)) for _ in units(graph)]
    return Plan.of("any", graph, cluster, layouts, Options(micro_batches=micro_batches))


def test_a_step_by_hand() -> None:
    """y = w x, loss (y - t)^2: the weight goes from 3 to 3 - rate 2 (3 x - t) x."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(3.0)
    example = Example(
        model=model,
        named={"input": torch.zeros(1, 1)},
        loss=nn.functional.mse_loss,
        targets=(torch.zeros(1, 1),),
    )
    batch = torch.tensor([[2.0]]), torch.tensor([[1.0]])
    training = train_on_one_device(
        example, [batch], lambda parameters: torch.optim.SGD(parameters, 0.25), torch.device("cpu")
    )
    assert training.losses == (25.0,)
    assert training.gradients["weight"].item() == 2 * 5.0 * 2.0
    assert training.parameters["weight"].item() == 3.0 - 0.25 * 2 * 5.0 * 2.0


def test_what_asks_for_float32_gets_float64() -> None:
    x = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    with Doubled():
        for cast in (
            x.float(),
            x.to(torch.float32),
            x.to(dtype=torch.float32),
            x.type(torch.float32),
        ):
            assert cast.dtype == torch.float64
            assert torch.equal(cast, x)
        assert torch.zeros(1, dtype=torch.float32).dtype == torch.float64
        assert torch.full((), torch.finfo(x.dtype).min).dtype == torch.float64
        assert torch.softmax(x, 0, dtype=torch.float32).dtype == torch.float64
        assert x.to(torch.bfloat16).dtype == torch.bfloat16, "less than float32 is meant so"
    assert x.float().dtype == torch.float32


def test_the_default_dtype_is_what_it_was() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with Doubled():
            assert torch.zeros(1).dtype == torch.float64
        assert torch.zeros(1).dtype == torch.bfloat16
    finally:
        torch.set_default_dtype(before)


def test_constants_of_float32_are_widened_where_they_meet_float64() -> None:
    scores, weights = torch.randn(3, 2, dtype=torch.float64), torch.tensor([0.5, 2.0])
    targets = torch.tensor([0, 1, 1])
    with Doubled():
        loss = functional.cross_entropy(scores, targets, weights)
    assert torch.equal(loss, functional.cross_entropy(scores, targets, weights.double()))


def test_grouped_products_are_computed_in_float64() -> None:
    rows, matrices = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 2), (2, 2, 4)))
    with Doubled():
        product = functional.grouped_mm(
            rows, matrices, offs=torch.tensor([1, 3], dtype=torch.int32)
        )
    torch.testing.assert_close(product, torch.cat([rows[:1] @ matrices[0], rows[1:] @ matrices[1]]))


def test_other_numbers_on_one_device_are_refused() -> None:
    refuse_incomparable(planned(0.0, 1))
    with pytest.raises(InputError, match="'dropped' draws random numbers"):
        refuse_incomparable(planned(0.1, 1))
    with pytest.raises(InputError, match="'normed' normalises each of 2 micro-batches"):
        refuse_incomparable(planned(0.0, 2))
    evaluating = parse_graph(str(planned(0.0, 2).graph).replace("training=true", "training=false"))
    refuse_incomparable(msgspec.structs.replace(planned(0.0, 2), graph=evaluating))


class Greedy(nn.Module):
    """Writes into its batch, and has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3, sparse=True)

    def forward(self, places: Tensor, x: Tensor) -> Tensor:
        x.mul_(2.0)
        total: Tensor = (self.words(places) * x).sum()
        return total


def test_batches_stay_as_they_are_and_sparse_gradients_are_tensors() -> None:
    batch = torch.tensor([1, 1, 4]), torch.ones(3, 3)
    example = Example(model=Greedy(), inputs=batch)
    update = partial(torch.optim.Adam, lr=0.1)
    trained = train_on_one_device(example, [batch, batch], update, torch.device("cpu"))
    assert torch.equal(batch[1], torch.ones(3, 3))
    expected = torch.zeros(5, 3).index_put((batch[0],), torch.tensor(2.0), accumulate=True)
    assert torch.equal(trained.gradients["words.weight"], expected)


class Overwriting(nn.Module):
    """Writes over what its own backward pass needs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        made = (x * self.weight).exp()
        made += 1
        return made.sum()


def test_a_model_that_one_device_cannot_train_is_a_sentence() -> None:
    example = Example(model=Overwriting(), inputs=(torch.ones(2),))
    with pytest.raises(
        InputError, match="cannot train the model on one device: RuntimeError: one of"
    ):
        train_on_one_device(
            example, [(torch.ones(2),)], partial(torch.optim.SGD, lr=0.1), torch.device("cpu")
        )
