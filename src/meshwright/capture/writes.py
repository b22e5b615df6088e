"""Writing through a view: which new value the viewed tensor has. Knows no node and no program.

Enters: how a view was taken, and its new value. Leaves: the operator that gives the viewed tensor
anew. A graph has no memory that is written twice, so every write in place becomes such a chain.
"""

from __future__ import annotations

from meshwright.capture.aten import Described
from meshwright.graph.model import Spec

_RESHAPES = {
    *("alias", "detach", "flatten", "reshape", "squeeze", "unflatten", "unsqueeze"),
    *("_unsafe_view", "view"),
}
_SCATTERS = {"diagonal", "select", "slice"}
_ORDERS = {"permute", "t", "transpose"}

REVERSIBLE = frozenset(_RESHAPES | _SCATTERS | _ORDERS)
"""Kinds of views through which a write is understood."""


def written_through(view: Described[str], source: str, spec: Spec, value: str) -> Described[str]:
    """The viewed tensor with the view's part replaced.

    >>> view = Described("select", ("x",), (("dim", 1), ("index", 0)))
    >>> written_through(view, "x", Spec("float32", (2, 3)), "new").kind
    'select_scatter'
    """
    if view.kind in _SCATTERS:
        return Described(f"{view.kind}_scatter", (source, value), view.attributes)
    if view.kind in _RESHAPES:
        return Described("reshape", (value,), (("shape", spec.shape),))
    if view.kind == "permute":
        order = dict(view.attributes)["dims"]
        assert isinstance(order, tuple)
        places = [dim % len(order) for dim in order]
        back = tuple(places.index(dim) for dim in range(len(places)))
        return Described("permute", (value,), (("dims", back),))
    assert view.kind in _ORDERS, f"{view.kind} is not reversible"
    return Described(view.kind, (value,), view.attributes)
