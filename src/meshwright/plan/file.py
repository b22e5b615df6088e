"""Plan files: versioned JSON, written atomically. Enters: a `Plan`, or a path. Leaves: a file,
always whole, or a checked `Plan`.

A file is JSON with a version, first what was decided, a layout a line, then what it was decided
for. Saving what was loaded gives the same bytes. What is wrong with a file is said in one sentence,
with its path in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.files import write_atomically
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import Program
from meshwright.cost.backend import NCCL
from meshwright.cost.collective import Collective
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.validation import check
from meshwright.plan.options import Options
from meshwright.plan.plan import VERSION, Plan, PlannedChain, PlannedReduction

STEPWISE = tuple(
    collective.value for collective in Collective if collective is not Collective.ALL_REDUCE
)
"""What several of a kind can carry out; sums on everybody have programs."""

KEY = "meshwright_plan"
"""Where a file has its version."""

OTHERS = {
    "meshwright_island_plan": "a plan over islands, for 'explain' and 'replan'",
    "meshwright_checkpoint": "a checkpoint of a search",
    "operators": "a graph",
    "bound_s": "what 'plan --json' prints",
    "strategies": "what 'compare --json' prints",
    "traceEvents": "a trace",
}
"""Keys by which other files give themselves away."""

MAKE = "write one with 'meshwright plan MODEL --cluster C --save FILE'"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    meshwright_plan: int
    origin: str
    model: str = ""
    batch: int | None = None
    rewrites: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    options: Options
    layouts: tuple[tuple[str, str], ...]
    programs: tuple[PlannedReduction, ...]
    chains: tuple[PlannedChain, ...] = ()
    backend: str = NCCL.name
    cluster: Cluster
    graph: OperatorGraph


def save_plan(plan: Plan, path: str | Path) -> None:
    r"""Write a plan, whole or not at all; `load_plan` is the way back.

    >>> from tempfile import TemporaryDirectory
    >>> from meshwright import Cluster, Plan, load_plan, save_plan
    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph("graph tiny\ninput x: float32[n=8]\n"
    ...                     "operator y: y: float32[n=8] = relu(x)\noutput y")
    >>> plan = Plan(origin="by hand", graph=graph, cluster=Cluster.named("laptop"),
    ...             layouts=(("y", "sample sample"),))
    >>> with TemporaryDirectory() as folder:
    ...     save_plan(plan, f"{folder}/plan.json")
    ...     load_plan(f"{folder}/plan.json") == plan
    True
    """
    write_atomically(path, plan_bytes(plan))


def plan_bytes(plan: Plan) -> bytes:
    """A plan as its file has it."""
    file = _File(
        meshwright_plan=VERSION,
        origin=plan.origin,
        model=plan.model,
        batch=plan.batch,
        rewrites=plan.rewrites or msgspec.UNSET,
        options=plan.options,
        layouts=plan.layouts,
        programs=plan.programs,
        chains=plan.chains,
        backend=plan.backend,
        cluster=plan.cluster,
        graph=plan.graph,
    )
    return "".join((*_lines(msgspec.to_builtins(file), 2), "\n")).encode()


def load_plan(path: str | Path) -> Plan:
    """The plan of a file that `save_plan`, 'meshwright plan' or 'compare --save' wrote."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read plan {str(path)!r} ({error.strerror})", MAKE) from None
    try:
        return parse_plan(content)
    except InputError as error:
        raise error.at(f"plan {str(path)!r}") from None


def looks_like_plan(path: str | Path) -> bool:
    """Whether a file begins as those do that `save_plan` writes."""
    begin = f'{{\n "{KEY}": '.encode()
    try:
        with Path(path).open("rb") as file:
            return file.read(len(begin)) == begin
    except OSError:
        return False


def parse_plan(content: bytes) -> Plan:
    """The plan that a file's bytes say."""
    try:
        _refuse_others(msgspec.json.decode(content))
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.ValidationError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        what = "not what it should be" if isinstance(error, msgspec.ValidationError) else "no JSON"
        raise InputError(f"it is {what} ({error})", f"correct it, or {MAKE}") from None
    except RecursionError:
        raise InputError("it is nested too deep", MAKE) from None
    problems = check(file.graph)
    if problems:
        raise InputError(f"its graph is not consistent: {problems[0]}", MAKE)
    plan = Plan(
        origin=file.origin,
        graph=file.graph,
        cluster=file.cluster,
        layouts=file.layouts,
        options=file.options,
        programs=file.programs,
        chains=file.chains,
        backend=file.backend,
        model=file.model,
        batch=file.batch,
        rewrites=() if file.rewrites is msgspec.UNSET else file.rewrites,
    )
    for reduction in plan.programs:
        _refuse_strange("a reduction", (*reduction.over, *reduction.beside), len(plan.factors))
        Program.parse(reduction.program)
    for chain in plan.chains:
        _refuse_strange(f"a chain of {chain.collective}", chain.over, len(plan.factors))
        _refuse_broken(chain)
    return plan


def _refuse_others(content: object) -> None:
    """Refuse what is no plan, or one of another version."""
    if not isinstance(content, dict) or KEY not in content:
        keys = content if isinstance(content, dict) else ()
        what = next((words for key, words in OTHERS.items() if key in keys), "no plan")
        raise InputError(f"it is {what}", f"give a file with {KEY!r}, or {MAKE}")
    version = content[KEY]
    if version != VERSION or not isinstance(version, int):
        newer = isinstance(version, int) and version > VERSION
        remedy = "take a newer Meshwright" if newer else f"make it anew: {MAKE}"
        raise InputError(
            f"it has version {version!r}, and this Meshwright reads version {VERSION}", remedy
        )


def _refuse_strange(what: str, named: Sequence[int], factors: int) -> None:
    """Refuse a collective over factors that the machine lacks."""
    if len(set(named)) < len(named) or not set(named) <= set(range(factors)):
        raise InputError(
            f"{what} names factors {list(named)}",
            f"name each of the cluster's {factors} prime factors at most once, the first as 0",
        )


def _refuse_broken(chain: PlannedChain) -> None:
    """Refuse steps that are not along all factors, or those of something that has none."""
    if chain.collective not in STEPWISE:
        raise InputError(f"a chain is of {chain.collective!r}", nearest(chain.collective, STEPWISE))
    named = [factor for step in chain.steps for factor in step]
    if sorted(named) != sorted(chain.over) or any(list(s) != sorted(s) for s in chain.steps):
        raise InputError(
            f"a {chain.collective} over factors {list(chain.over)} has steps "
            f"{[list(step) for step in chain.steps]}",
            "name each of the factors in one step, ascending",
        )


def _lines(value: object, depth: int, indent: str = "") -> Iterator[str]:
    """JSON with the items of the outer collections a line each."""
    match value:
        case dict() if depth and value:
            items = [
                (f"{msgspec.json.encode(key).decode()}: ", entry) for key, entry in value.items()
            ]
            brackets = "{}"
        case list() | tuple() if depth and value:
            items, brackets = [("", entry) for entry in value], "[]"
        case _:
            yield msgspec.json.encode(value).decode()
            return
    yield brackets[0]
    for number, (key, element) in enumerate(items):
        yield f"{',' if number else ''}\n{indent} {key}"
        yield from _lines(element, depth - 1, f"{indent} ")
    yield f"\n{indent}{brackets[1]}"
