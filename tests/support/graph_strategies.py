"""Random graphs that are right by construction, for laws that hold for every graph."""

from __future__ import annotations

from hypothesis import strategies as st

from meshwright.graph.operator_graph import Guard, Operator, OperatorGraph, Parameter, Tensor, Value

NAMES = st.text("abcxyz_.019/-*", min_size=1, max_size=6).filter(lambda name: name[0] != "-")
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text('ab "\\{}[]=@,:é\n', max_size=5),
    st.lists(st.integers(-9, 9), max_size=3).map(tuple),
)
DIMS = st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=3).map(tuple)
GUARDS = st.builds(
    Guard,
    tensor=NAMES,
    value=st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False),
    line=st.sampled_from(["model.py:12", "a dir/model.py:3", "PyTorch"]),
)
DTYPES = st.sampled_from(["float32", "bfloat16", "int64", "bool"])


@st.composite
def any_graphs(draw: st.DrawFn) -> OperatorGraph:
    """Graphs that read and write well, whether or not their shapes make sense."""
    count = draw(st.integers(1, 9))
    names = draw(st.lists(NAMES, min_size=count + 3, max_size=count + 3, unique=True))
    tensors = [Tensor(name=name, dtype=draw(DTYPES), dims=draw(DIMS)) for name in names]
    x, weight, buffer, *rest = tensors
    operators: list[Operator] = []
    known = names[:3]
    while rest:
        outputs = draw(st.integers(1, 2))
        produced, rest = rest[:outputs], rest[outputs:]
        keys = draw(st.lists(st.sampled_from(["dim", "p", "value"]), unique=True, max_size=3))
        operators.append(
            Operator(
                name=f"op{len(operators)}",
                kind=draw(st.sampled_from(["add", "mylib.fold", "_x"])),
                inputs=tuple(
                    draw(st.lists(st.none() | st.sampled_from(known), min_size=0, max_size=3))
                ),
                outputs=tuple(produced),
                attributes=tuple((key, draw(VALUES)) for key in sorted(keys)),
                layer=draw(st.just("") | NAMES),
            )
        )
        known = known + [tensor.name for tensor in produced]
    return OperatorGraph(
        name=draw(st.sampled_from(["g", "zoo:bert large"])),
        inputs=(x,),
        parameters=(
            Parameter(
                tensor=weight,
                also=draw(st.sampled_from([(), ("tied.weight", "tied2")])),
                trainable=draw(st.booleans()),
            ),
        ),
        buffers=(buffer,),
        operators=tuple(operators),
        outputs=tuple(draw(st.lists(st.sampled_from(known), max_size=2))),
        loss=draw(st.none() | st.sampled_from(known)),
        checks=tuple(draw(st.lists(st.sampled_from(operators), max_size=2))),
        guards=tuple(draw(st.lists(GUARDS, max_size=2))),
    )


@st.composite
def elementwise_graphs(draw: st.DrawFn) -> OperatorGraph:
    """Graphs that are right: unary and binary operators on vectors of one size."""
    dims = (("n", 4),)
    names = ["x", "w"]
    operators = []
    for index in range(draw(st.integers(1, 8))):
        kind, arity = draw(st.sampled_from([("exp", 1), ("neg", 1), ("add", 2), ("mul", 2)]))
        inputs = tuple(draw(st.sampled_from(names)) for _ in range(arity))
        name = f"t{index}"
        output = Tensor(name=name, dtype="float32", dims=dims)
        operators.append(Operator(name=name, kind=kind, inputs=inputs, outputs=(output,)))
        names.append(name)
    x, w = (Tensor(name=name, dtype="float32", dims=dims) for name in ("x", "w"))
    return OperatorGraph(
        name="g",
        inputs=(x,),
        parameters=(Parameter(tensor=w),),
        operators=tuple(operators),
        outputs=(draw(st.sampled_from(names)),),
    )
