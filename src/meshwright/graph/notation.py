"""Index notation of operators (as einsum): syntax tree and parser. Enters: text. Leaves:
`Definition`s.

    linear(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]

A label is a dim of the output (i.., o) or is summed over (k). The ways to cut an operator are read
off the line, never told: an output label cuts every operand that has it and copies the others; a
label of an outermost sum cuts too, and leaves a sum to be taken. A label can be cut only if each
operand has it at one dim in all its places; a window needs its neighbours' rows (`halo`). An output
label that no operand has is as long as an attribute says, `j < n`. In a file the line

    kernel = mylib::swiglu        or        kernel = package.module:function

below a definition says what PyTorch runs for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.reader import Reader


class Label(msgspec.Struct, frozen=True, tag=True):
    """A dim read at a label; `many` stands for any number of dims."""

    name: str
    many: bool = False


class Window(msgspec.Struct, frozen=True, tag=True):
    """A dim read at output * stride + place - padding, zero outside."""

    output: str
    stride: str
    place: str
    padding: str


Index = Label | Window


class Number(msgspec.Struct, frozen=True, tag=True):
    """A constant."""

    value: int


class Named(msgspec.Struct, frozen=True, tag=True):
    """The position of a label, or the value of an attribute."""

    name: str


class Extent(msgspec.Struct, frozen=True, tag=True):
    """The size of the dim that a label runs over."""

    label: str


class OperandRead(msgspec.Struct, frozen=True, tag=True):
    """An element of an operand."""

    operand: str
    indices: tuple[Index, ...]


class Plus(msgspec.Struct, frozen=True, tag=True):
    """A sum of terms."""

    terms: tuple[Expression, ...]


class ProductTerm(msgspec.Struct, frozen=True, tag=True):
    """A product of factors."""

    factors: tuple[Expression, ...]


class Apply(msgspec.Struct, frozen=True, tag=True):
    """A function of numbers."""

    function: str
    arguments: tuple[Expression, ...]


class Total(msgspec.Struct, frozen=True, tag=True):
    """A sum over labels."""

    labels: tuple[str, ...]
    body: Expression


Expression = Number | Named | Extent | OperandRead | Plus | ProductTerm | Apply | Total


class Definition(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """An operator with one output."""

    name: str
    parameters: tuple[str, ...] = ()
    operands: tuple[str, ...]
    output: tuple[Label, ...]
    body: Expression
    line: str
    """As it was written."""
    lengths: tuple[tuple[str, str], ...] = ()
    """Output labels that no operand has, each with the attribute that says how long it is."""
    kernel: str = ""
    """What runs it: a PyTorch operator, `library::name`, or a function, `package.module:name`."""

    @cached_property
    def reads(self) -> tuple[OperandRead, ...]:
        """Every place where an operand is read."""
        return tuple(part for part in parts(self.body) if isinstance(part, OperandRead))

    def indices(self, operand: str) -> tuple[Index, ...]:
        """How an operand is first read."""
        return next(read.indices for read in self.reads if read.operand == operand)

    @cached_property
    def summed(self) -> tuple[str, ...]:
        """Labels of the outermost sum, if the operator is nothing but a sum."""
        return self.body.labels if isinstance(self.body, Total) else ()

    @cached_property
    def cuts(self) -> tuple[str, ...]:
        """Labels that can be cut: those of the output, then those of the outermost sum."""
        candidates = (*(label.name for label in self.output), *self.summed)
        lengths = dict(self.lengths)
        return tuple(name for name in candidates if name not in lengths and self._is_clean(name))

    @cached_property
    def positions(self) -> frozenset[str]:
        """Names whose value an element depends on: attributes, and labels by their position."""
        return frozenset(part.name for part in parts(self.body) if isinstance(part, Named))

    def _is_clean(self, label: str) -> bool:
        """Whether each operand has the label at one and the same dim wherever it is read."""
        for operand in self.operands:
            places = {
                tuple(_outputs_at(index) == label for index in read.indices)
                for read in self.reads
                if read.operand == operand
            }
            if len(places) > 1 or sum(next(iter(places), ())) > 1:
                return False
        inside = (
            isinstance(index, Window) and index.place == label
            for read in self.reads
            for index in read.indices
        )
        # A task knows the size of its own piece only.
        return not any(inside) and Extent(label) not in parts(self.body)

    @cache  # noqa: B019  definitions live as long as the program
    def at(self, ranks: tuple[int, ...]) -> Definition:
        """The definition for operands of these ranks, without labels that stand for many dims.

        >>> linear = parse_definition("linear(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]")
        >>> [label.name for label in linear.at((3, 2)).output]
        ['i.0', 'i.1', 'o']
        """
        many = {
            index.name: rank - len(indices) + 1
            for operand, rank in zip(self.operands, ranks, strict=True)
            for indices in (self.indices(operand),)
            for index in indices
            if isinstance(index, Label) and index.many
        }
        concrete = msgspec.structs.replace(
            self, output=_spread(self.output, many), body=_concrete(self.body, many)
        )
        for operand, rank in zip(self.operands, ranks, strict=True):
            if len(concrete.indices(operand)) != rank or any(n < 0 for n in many.values()):
                raise MisfitError(
                    f"{self.name} reads {operand} with {len(self.indices(operand))} "
                    f"indices, but it has {rank} dims"
                )
        return concrete


class MisfitError(ValueError):
    """Tensors that an operator cannot take; the message says why."""


def _outputs_at(index: Index) -> str:
    return index.name if isinstance(index, Label) else index.output


def parts(expression: Expression) -> Iterator[Expression]:
    """An expression and everything inside it."""
    yield expression
    match expression:
        case Plus(terms=inner) | ProductTerm(factors=inner) | Apply(arguments=inner):
            for term in inner:
                yield from parts(term)
        case Total(body=body):
            yield from parts(body)
        case _:
            return


def _spread(labels: tuple[Index, ...], many: Mapping[str, int]) -> tuple[Label, ...]:
    indices: list[Index] = []
    for label in labels:
        if isinstance(label, Label) and label.many:
            indices.extend(Label(f"{label.name}.{n}") for n in range(many[label.name]))
        else:
            indices.append(label)
    return tuple(indices)  # type: ignore[arg-type]  # windows occur in reads only


def _concrete(expression: Expression, many: Mapping[str, int]) -> Expression:
    match expression:
        case OperandRead(operand=operand, indices=indices):
            return OperandRead(operand, _spread(indices, many))
        case Plus(terms=terms):
            return Plus(tuple(_concrete(term, many) for term in terms))
        case ProductTerm(factors=factors):
            return ProductTerm(tuple(_concrete(factor, many) for factor in factors))
        case Apply(function=function, arguments=arguments):
            return Apply(function, tuple(_concrete(argument, many) for argument in arguments))
        case Total(labels=labels, body=body):
            return Total(labels, _concrete(body, many))
        case _:
            return expression


def parse_definition(line: str) -> Definition:
    """One line of index notation.

    >>> parse_definition("scale(x, g)[i.., o] = x[i.., o] * g[o]").cuts
    ('i', 'o')
    """
    reader = Reader(line)
    name = reader.name("the name of an operator")
    parameters: tuple[str, ...] = ()
    if reader.accept("["):
        parameters = reader.listed(lambda: reader.name("a parameter"))
        reader.expect("]")
    reader.expect("(")
    operands = reader.listed(lambda: reader.name("an operand"))
    reader.expect(")")
    reader.expect("[")
    labels = () if reader.peek() == "]" else reader.listed(lambda: _output_label(reader))
    reader.expect("]")
    reader.expect("=")
    body = _sum(reader, frozenset(operands))
    reader.end()
    unread = set(operands) - {part.operand for part in parts(body) if isinstance(part, OperandRead)}
    if unread:
        raise InputError(
            f"{line!r} does not read {', '.join(sorted(unread))}", "read it or drop it"
        )
    return Definition(
        name=name,
        parameters=parameters,
        operands=operands,
        output=tuple(label for label, _ in labels),
        body=body,
        line=line,
        lengths=tuple((label.name, length) for label, length in labels if length),
    )


def parse_definitions(
    text: str, require: Callable[[Definition], None] = lambda definition: None
) -> dict[str, Definition]:
    r"""Every operator of a file by its name; what `require` refuses is said with its line.

    >>> text = "twice(x)[i..] = x[i..] + x[i..]\n    kernel = mylib::twice"
    >>> parse_definitions(text)["twice"].kernel
    'mylib::twice'
    """
    definitions: dict[str, Definition] = {}
    last = ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        try:
            if kernel := _KERNEL_LINE.fullmatch(bare):
                definitions[last] = _with_kernel(definitions.get(last), kernel[1])
            elif bare:
                definition = parse_definition(bare)
                if definition.name in definitions:
                    raise InputError(f"{definition.name!r} is defined again", "rename one")
                require(definition)
                definitions[definition.name], last = definition, definition.name
        except InputError as error:
            raise error.at(f"line {number}") from None
    return definitions


_KERNEL_LINE = re.compile(r"kernel\s*=\s*(.*)")
_KERNEL = re.compile(r"\w+::\w+|[^\s:]+:\w+")


def _with_kernel(definition: Definition | None, kernel: str) -> Definition:
    if definition is None:
        raise InputError(f"kernel {kernel!r} stands below no operator", "put it below its line")
    if definition.kernel:
        raise InputError(f"{definition.name!r} has two kernels", "leave one of them")
    if not _KERNEL.fullmatch(kernel):
        raise InputError(
            f"the kernel of {definition.name!r} is {kernel!r}",
            "write library::operator, package.module:function or path/to/file.py:function",
        )
    return msgspec.structs.replace(definition, kernel=kernel)


def _sum(reader: Reader, operands: frozenset[str]) -> Expression:
    terms = [_product(reader, operands)]
    while reader.peek() in ("+", "-"):
        sign = reader.take()
        term = _product(reader, operands)
        terms.append(term if sign == "+" else ProductTerm((Number(-1), term)))
    return terms[0] if len(terms) == 1 else Plus(tuple(terms))


def _product(reader: Reader, operands: frozenset[str]) -> Expression:
    if reader.accept("sum"):
        reader.expect("(")
        labels = reader.listed(lambda: reader.name("a label"))
        reader.expect(")")
        return Total(labels, _product(reader, operands))
    factors = [_factor(reader, operands)]
    while reader.peek() in ("*", "/"):
        sign = reader.take()
        factor = _factor(reader, operands)
        factors.append(factor if sign == "*" else Apply("inverse", (factor,)))
    return factors[0] if len(factors) == 1 else ProductTerm(tuple(factors))


def _factor(reader: Reader, operands: frozenset[str]) -> Expression:
    if reader.accept("("):
        inner = _sum(reader, operands)
        reader.expect(")")
        return inner
    if reader.peek().lstrip("-").isdigit():
        return Number(reader.number("a number"))
    name = reader.name("a number, an operand, a function, a label or '('")
    if name in operands:
        reader.expect("[")
        indices = () if reader.peek() == "]" else reader.listed(lambda: _index(reader))
        reader.expect("]")
        return OperandRead(name, indices)
    if reader.accept("("):
        if name == "size":
            label = reader.name("a label")
            reader.expect(")")
            return Extent(label)
        arguments = reader.listed(lambda: _sum(reader, operands))
        reader.expect(")")
        return Apply(name, arguments)
    return Named(name)


def _label(reader: Reader) -> Label:
    return Label(reader.name("a label"), reader.accept(".."))


def _output_label(reader: Reader) -> tuple[Label, str]:
    label = _label(reader)
    return label, reader.name("the attribute that says its size") if reader.accept("<") else ""


def _index(reader: Reader) -> Index:
    label = _label(reader)
    if label.many or not reader.accept("*"):
        return label
    stride = reader.name("a stride")
    reader.expect("+")
    place = reader.name("a label inside the window")
    reader.expect("-")
    return Window(label.name, stride, place, reader.name("a padding"))
