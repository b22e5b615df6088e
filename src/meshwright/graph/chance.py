"""Which operators draw random numbers. Enters: an operator or a call. Leaves: yes or no.

It does not know how they are drawn; a run may make them independent of who draws.
"""

from __future__ import annotations

from meshwright.graph.model import Call, Operator


def draws(own: Call | Operator) -> bool:
    """Whether two runs of an operator may differ.

    >>> from meshwright.graph.model import Spec
    >>> spec = (Spec("float32", (4,)),)
    >>> kept = (("p", 0.0), ("train", True))
    >>> draws(Call(kind="dropout", inputs=spec, outputs=spec, attributes=kept))
    False
    >>> draws(Call(kind="dropout", inputs=spec, outputs=spec))
    True
    """
    attributes = dict(own.attributes)
    match own.kind:
        case "dropout":
            return bool(attributes.get("train", True) and attributes.get("p", 0.5))
        case "scaled_dot_product_attention":
            return bool(attributes.get("dropout_p", 0.0))
        case _:
            return False
