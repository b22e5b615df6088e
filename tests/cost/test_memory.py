"""Memory of a training step, against counts that can be done by hand."""

from __future__ import annotations

import pytest

from meshwright.cost.memory import LIBRARY, training_memory
from meshwright.graph.text import parse_graph

PARAMETERS = 4 * (64 * 32 + 64 * 64 + 64 * 64)
CHAIN = parse_graph("""graph chain
input x: float32[batch=8, in=32]
parameter w1: float32[out=64, in=32]
parameter w2: float32[out=64, in=64]
parameter w3: float32[out=64, in=64]
operator fc1: h1: float32[batch=8, out=64] = linear(x, w1)
operator relu1: r1: float32[batch=8, out=64] = relu(h1)
operator fc2: h2: float32[batch=8, out=64] = linear(r1, w2)
operator relu2: r2: float32[batch=8, out=64] = relu(h2)
operator fc3: h3: float32[batch=8, out=64] = linear(r2, w3)
operator sum: l: float32[] = sum(h3)
output l
loss l""")
LAYER = 4 * 8 * 64


def test_optimizers_hold_what_they_must() -> None:
    for optimizer, states in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        memory = training_memory(CHAIN, optimizer)  # type: ignore[arg-type]
        assert memory.parameters == PARAMETERS
        assert memory.optimizer == states * PARAMETERS


def test_adam_peaks_in_the_update_of_a_small_batch() -> None:
    memory = training_memory(CHAIN, "adam")
    assert memory.gradients == PARAMETERS
    assert memory.workspace == PARAMETERS + LIBRARY
    assert memory.total == 5 * PARAMETERS + 4 * 8 * 32 + LIBRARY


def test_sgd_peaks_in_the_backward_pass() -> None:
    memory = training_memory(CHAIN, "sgd")
    # Once all gradients of weights are there only the input of the first product is left.
    assert memory.gradients == PARAMETERS
    assert memory.workspace == LAYER + LIBRARY


def test_mixed_precision_keeps_wide_copies() -> None:
    narrow = parse_graph(str(CHAIN).replace("float32", "bfloat16"))
    memory = training_memory(narrow, "adam", mixed=True)
    assert memory.parameters == PARAMETERS // 2
    assert memory.optimizer == 3 * PARAMETERS


def test_recomputation_trades_activations() -> None:
    depth, width = 12, 64
    lines = ["graph deep", f"input h0: float32[batch=4096, width={width}]"]
    for i in range(depth):
        lines.append(f"parameter w{i}: float32[out={width}, in={width}]")
    for i in range(depth):
        shape = f"float32[batch=4096, width={width}]"
        lines.append(f"operator fc{i}: a{i}: {shape} = linear(h{i}, w{i})")
        lines.append(f"operator gelu{i}: g{i}: {shape} = gelu(a{i})")
        lines.append(f"operator tanh{i}: h{i + 1}: {shape} = tanh(g{i})")
    lines += [f"operator sum: l: float32[] = sum(h{depth})", "output l", "loss l"]
    graph = parse_graph("\n".join(lines))
    plain, again = training_memory(graph, "sgd"), training_memory(graph, "sgd", recompute=True)
    assert again.activations < 0.6 * plain.activations
    assert again.parameters == plain.parameters
    assert again.total < plain.total


@pytest.mark.parametrize("recompute", [False, True])
def test_more_samples_never_take_less(recompute: bool) -> None:
    totals = []
    for batch in (8, 80, 800, 8000):
        graph = parse_graph(str(CHAIN).replace("batch=8", f"batch={batch}"))
        totals.append(training_memory(graph, "sgd", recompute=recompute).total)
    assert totals == sorted(totals)
