"""Functionalization of in-place writes through a view: the new value of the viewed tensor. Knows no
node and no program.

Enters: how a view was taken, and its new value. Leaves: the operator that gives the viewed tensor
anew. A graph has no memory that is written twice, so every write in place becomes such a chain.
"""

from __future__ import annotations

from meshwright.capture.operators.aten import Described
from meshwright.graph.operator_graph import Attributes, Spec

_RESHAPES = {
    *("alias", "contiguous", "detach", "flatten", "reshape", "squeeze", "to", "type_as"),
    *("unflatten", "unsqueeze", "_unsafe_view", "view"),
}
_SCATTERS = {"diagonal", "select", "slice"}
_ORDERS = {"permute", "t", "transpose"}

REVERSIBLE = frozenset(_RESHAPES | _SCATTERS | _ORDERS)
"""Kinds of views that one operator undoes."""


def functionalized_write(
    view: str, attributes: Attributes, source: str, spec: Spec, value: str
) -> Described[str]:
    """The viewed tensor with the view's part replaced.

    >>> attributes = (("dim", 1), ("index", 0))
    >>> functionalized_write("select", attributes, "x", Spec("float32", (2, 3)), "new")
    Described(kind='select_scatter', inputs=('x', 'new'), attributes=(('dim', 1), ('index', 0)))
    """
    if view in _SCATTERS:
        return Described(f"{view}_scatter", (source, value), attributes)
    if view in _RESHAPES:
        return Described("reshape", (value,), (("shape", spec.shape),))
    if view == "permute":
        order = dict(attributes)["dims"]
        assert isinstance(order, tuple)
        places = [dim % len(order) for dim in order]
        inverse = tuple(places.index(dim) for dim in range(len(places)))
        return Described("permute", (value,), (("dims", inverse),))
    assert view in _ORDERS, f"{view} is not reversible"
    return Described(view, (value,), attributes)
