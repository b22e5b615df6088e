"""Mixtures of experts are recognised, and what replaces them computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meshwright.capture.export import capture
from meshwright.capture.load import zoo_example
from meshwright.capture.recognised.mixtures import with_routed_experts
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example
from meshwright.capture.source.model_source import parse_source
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.pieces import splits_of
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from support.mixtures import Added, Spied, example

TOLERANCE = 1e-12


def results(graph: OperatorGraph, values: dict[str, Tensor]) -> list[Tensor]:
    """The loss and the gradients of all parameters."""
    copies = {name: value.detach().clone() for name, value in values.items()}
    learnt = [p.tensor.name for p in graph.parameters if p.trainable]
    for name in learnt:
        copies[name].requires_grad_()
    assert graph.loss is not None
    loss = execute(graph, copies)[graph.loss]
    gradients = torch.autograd.grad(
        loss, [copies[name] for name in learnt], allow_unused=True, materialize_grads=True
    )
    return [loss.detach(), *gradients]


def recognised(example: Example) -> OperatorGraph:
    """The graph with its mixtures as operators, which was seen to compute the same."""
    example.model.double()
    plain = capture(example)
    graph = with_routed_experts(plain)
    assert check(graph) == ()
    values = values_of(example, plain)
    for one, other in zip(results(plain, values), results(graph, values), strict=True):
        assert torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
    return graph


def mixtures(graph: OperatorGraph) -> int:
    kinds = [operator.kind for operator in graph.operators]
    routed = kinds.count("routed_experts")
    assert not routed or "_grouped_mm" not in kinds
    return routed


def test_mixtral_of_the_zoo() -> None:
    graph = recognised(zoo_example(parse_source("zoo:mixtral-8x7b/tiny"), 4, torch.device("cpu")))
    assert mixtures(graph) == 2
    assert parse_graph(str(graph)).operators == graph.operators
    (operator, _) = (
        candidate for candidate in graph.operators if candidate.kind == "routed_experts"
    )
    splits = splits_of(graph.call(operator))
    assert [(split.name, split.role) for split in splits] == [
        ("sample", "sample"),
        ("expert", "parameter"),
        ("inner", "reduction"),
    ]


def test_results_that_are_added_at_their_tokens() -> None:
    assert mixtures(recognised(example(Added()))) == 1


def test_one_expert_for_each_token() -> None:
    assert mixtures(recognised(example(Added(chosen=1)))) == 1


def test_what_is_read_elsewhere_stays() -> None:
    assert mixtures(recognised(example(Spied()))) == 0


def test_what_draws_random_numbers_stays() -> None:
    graph = with_routed_experts(capture(example(Added(noise=0.1))))
    assert mixtures(graph) == 0


COMMON: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64, "num_experts_per_tok": 2, "use_cache": False,
}  # fmt: skip

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_key_value_heads": 2, "intermediate_size": 24, "num_local_experts": 4},
    "Qwen2Moe": {
        "num_key_value_heads": 2, "intermediate_size": 24, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12, "num_experts": 4,
    },
    "Qwen3Moe": {
        "num_key_value_heads": 2, "intermediate_size": 24, "moe_intermediate_size": 12,
        "num_experts": 4, "head_dim": 8,
    },
    "DeepseekV3": {
        "num_key_value_heads": 4, "intermediate_size": 24, "moe_intermediate_size": 12,
        "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 4,
    },
    "GptOss": {
        "num_key_value_heads": 2, "intermediate_size": 12, "num_local_experts": 4,
        "head_dim": 8, "sliding_window": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_experts_of_transformers(name: str) -> None:
    library = pytest.importorskip("transformers")
    config = getattr(library, f"{name}Config")(**COMMON, **TRANSFORMERS[name])
    torch.manual_seed(0)
    model = getattr(library, f"{name}ForCausalLM")(config).train()
    words = torch.randint(0, 32, (4, 8))
    example = Example(model=model, named={"input_ids": words, "labels": words.clone()})
    assert mixtures(recognised(example)) == 1
