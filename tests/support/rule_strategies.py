"""Hypothesis strategies for rules, over names that mean nothing: for laws of the text alone."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.rewrite.language.terms import (
    AXES,
    Attribute,
    Condition,
    Degree,
    Quantity,
    Rank,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
    variables,
)

_WORDS = {"if", "and", "for", "any", "divides", "degree", "rank"}

names = st.from_regex(r"[A-Za-z_]([A-Za-z0-9_-]{0,5}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda name: name not in _WORDS
)
attributes: st.SearchStrategy[Attribute] = st.one_of(
    st.integers(-3, 99), st.sampled_from(AXES), names
)


def terms(tensors: tuple[str, ...]) -> st.SearchStrategy[Tensor]:
    """Expressions over these variables."""
    leaves: st.SearchStrategy[Tensor] = st.sampled_from(tensors).map(Variable)
    return st.recursive(leaves, _applied, max_leaves=5)


def _applied(inner: st.SearchStrategy[Tensor]) -> st.SearchStrategy[Tensor]:
    return st.builds(
        Term,
        operator=names,
        inputs=st.lists(inner, min_size=1, max_size=3).map(tuple),
        attributes=st.lists(attributes, max_size=3).map(tuple),
        output=st.integers(0, 2),
    )


def quantities(tensors: tuple[str, ...]) -> st.SearchStrategy[Quantity]:
    """All that a condition may compare."""
    named = st.sampled_from(tensors)
    return st.one_of(
        st.integers(-3, 99),
        names,
        st.builds(Size, tensor=named, dim=attributes),
        st.builds(Degree, tensor=named, axis=attributes),
        st.builds(Rank, tensor=named),
    )


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Rules whose variables are bound, with one output or several."""
    tensors = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    count = draw(st.integers(1, 3))
    side = st.lists(terms(tensors), min_size=count, max_size=count).map(tuple)
    source, target = draw(side), draw(side)
    bound = {v.name for v in variables(source)}
    free = tuple(v.name for v in variables(target) if v.name not in bound)
    named = (*sorted(bound), *free)
    relation = st.sampled_from(("=", "!=", "<", "<=", "divides"))
    compared = quantities(named)
    condition = st.builds(Condition, left=compared, relation=relation, right=compared)
    return Rule(
        name=draw(names),
        source=source,
        target=target,
        conditions=tuple(draw(st.lists(condition, max_size=3))),
        free=free,
    )
