"""Random operators: whether an operator or call draws random numbers. Enters: an operator or a
call. Leaves: yes or no.

It does not know how they are drawn; a run may make them independent of who draws.
"""

from __future__ import annotations

from meshwright.graph.families import random_tensors
from meshwright.graph.operator_graph import Call, Operator

DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"})
"""Kinds that drop each element, or each channel, with a probability."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Kinds that drop between their layers."""

UNTOLD = frozenset({
    "_sample_dirichlet", "_standard_gamma", "binomial", "native_dropout", "poisson", "random",
    "rrelu_with_noise",
})  # fmt: skip
"""Kinds that draw and that no family tells about."""


def draws(operator: Call | Operator) -> bool:
    """Whether two runs of an operator may differ.

    >>> from meshwright.graph.operator_graph import Spec
    >>> spec = (Spec("float32", (4,)),)
    >>> kept = (("p", 0.0), ("train", True))
    >>> draws(Call(kind="dropout", inputs=spec, outputs=spec, attributes=kept))
    False
    >>> draws(Call(kind="dropout", inputs=spec, outputs=spec))
    True
    """
    attributes, kind = dict(operator.attributes), operator.kind.removeprefix("aten.")
    if kind in DROPOUTS:
        return bool(attributes.get("train", True) and attributes.get("p", 0.5))
    if kind in RECURRENT:
        deep = attributes.get("num_layers", 1) != 1
        return bool(deep and attributes.get("train", True) and attributes.get("dropout", 0.0))
    match kind:
        case "scaled_dot_product_attention":
            return bool(attributes.get("dropout_p", 0.0))
        case "rrelu":
            return bool(attributes.get("training", False))
        case _:
            return kind in random_tensors.KINDS or kind in UNTOLD
