"""The verbs `simulate` and `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import print_json, print_parts, progress_bar
from meshwright.cli.plan_options import (
    MixedOption,
    OptimizerOption,
    PapersOption,
    chosen_training,
)
from meshwright.cli.rule_options import OperatorsOption, defined_operators
from meshwright.cli.shared_options import (
    BackendOption,
    BatchOption,
    ClusterOption,
    DtypeOption,
    GpusOption,
    JsonOption,
    ModelArgument,
    NodesOption,
    ResizeOption,
    SequenceOption,
    SoftwareOption,
    as_run,
    captured_graph,
    chosen,
    chosen_budget,
    chosen_cluster,
    require_output_path,
    require_places,
    set_aside,
)

if TYPE_CHECKING:
    from meshwright.plan.plan import Plan
    from meshwright.search.mcmc.metropolis import Engine


def simulate(
    plan: Annotated[str, typer.Argument(help="A plan that 'plan' or 'compare --out' wrote.")],
    engine: Annotated[
        str, typer.Option(help="full, reference or delta; all predict the same.")
    ] = "full",
    trace: Annotated[
        str | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Refuse a plan for another cluster.")
    ] = None,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    model: Annotated[str | None, typer.Option(help="Refuse a plan for another model.")] = None,
    batch: BatchOption = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Every layout, and what happens on the edges between.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Predict a training step of a plan: time, communication, memory, what costs most.

    The plan of the example is the one that the example of 'meshwright plan' writes.

    Example:  meshwright simulate plan.json --trace trace.json
    """
    import msgspec

    from meshwright.base.errors import InputError
    from meshwright.base.files import write_atomically
    from meshwright.plan.file import load_plan
    from meshwright.plan.fits import require_cluster

    require_output_path("--trace", trace)
    before = ""
    engine = chosen(engine, ("full", "reference", "delta"), "--engine")
    if cluster is None and (resize or nodes is not None or gpus is not None):
        raise InputError("--nodes, --gpus and --resize are about --cluster", "give it too")
    if model is None and batch is not None:
        raise InputError("--batch is about --model", "give it too")
    loaded = load_plan(plan)
    if cluster is not None:
        require_cluster(loaded, chosen_cluster(cluster, nodes, gpus, resize))
    if model is not None:
        _require_model(loaded, model, batch)

    from meshwright.explain.utilisation import costliest, occupancies
    from meshwright.lower.parallel_graph import ParallelGraph
    from meshwright.lower.parallel_operators import written
    from meshwright.report.json.trace import trace_document
    from meshwright.report.text import plans
    from meshwright.simulate.engines import ENGINES
    from meshwright.simulate.simulation import simulate as simulated

    simulation = simulated(loaded, engine=ENGINES[engine])
    if trace is not None:
        before = set_aside(trace)
        write_atomically(trace, msgspec.json.encode(trace_document(simulation)))
    if json:
        print_json(plans.simulation_document(simulation, engine))
        return
    if graph:
        print_parts(written(ParallelGraph(loaded)))
        return
    print_parts(
        plans.describe_plan(loaded),
        plans.table_of_prediction(simulation),
        plans.describe_memory(simulation.prediction, loaded.cluster),
        plans.table_of_costs(costliest(simulation, plans.MOST)),
        plans.table_of_occupancies(occupancies(simulation)),
        *(() if trace is None else (f"The trace is in {trace}.{before}",)),
    )


def compare(
    model: ModelArgument,
    cluster: ClusterOption,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    batch: BatchOption = None,
    seq: SequenceOption = None,
    dtype: DtypeOption = None,
    software: SoftwareOption = None,
    optimizer: OptimizerOption = "adam",
    mixed: MixedOption = False,
    budget: Annotated[
        str, typer.Option(help="Of the search: a time, or a number of proposals.")
    ] = "20s",
    seed: Annotated[
        int, typer.Option(min=0, max=2**32, help="Seed of the search's random numbers.")
    ] = 0,
    backend: BackendOption = "nccl",
    checkpoint: Annotated[
        str | None, typer.Option(help="Keep the search in this file; go on if it is there.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", "--save", help="Write the plan found to this file.")
    ] = None,
    papers: PapersOption = False,
    engine: Annotated[str, typer.Option(help="delta or full; both find the same.")] = "delta",
    operators: OperatorsOption = None,
    json: JsonOption = False,
) -> None:
    """Put all baseline strategies and a search side by side, each simulated.

    Ctrl-C ends the search with the best so far. With a budget in proposals the same seed gives the
    same plan.

    Example:  meshwright compare zoo:bert-large/tiny -c laptop --budget 500 --out compared.json
    """
    import msgspec

    from meshwright.cost.backend import backend_named
    from meshwright.search.resolve import with_sequence

    ways: tuple[Engine, ...] = ("delta", "full")
    allowed, way = chosen_budget(budget), chosen(engine, ways, "--engine")
    library, training = backend_named(backend), chosen_training(optimizer, mixed)
    machine = as_run(chosen_cluster(cluster, nodes, gpus, resize), dtype, software)
    model = with_sequence(model, seq)
    require_places(out=out, checkpoint=checkpoint)
    graph = captured_graph(model, batch, dtype, defined_operators(operators))

    from meshwright.configs.recipes import recipes
    from meshwright.plan.file import save_plan
    from meshwright.report.predictions import describe_refused
    from meshwright.report.text import plans
    from meshwright.search.compare import compare as side_by_side

    with progress_bar("simulating baselines (the first time compiles for a minute or two)") as show:
        comparison = side_by_side(
            graph,
            machine,
            allowed,
            options=training,
            backend=library,
            seed=seed,
            engine=way,
            checkpoint=checkpoint,
            progress=lambda now: show(
                now.used,
                f"{now.doing}: {now.nanoseconds / 1e6:.4g} ms predicted, {now.proposals} proposals",
            ),
        )
    before = set_aside(out)
    if out is not None:
        save_plan(msgspec.structs.replace(comparison.searched.plan, model=model, batch=batch), out)
    known = recipes(graph, machine, machine.device.memory, training=training, backend=library)
    old = (comparison.strategies[:-1], comparison.refused) if papers else ((), ())
    comparison = comparison._replace(
        strategies=(*known.fitted, *old[0], comparison.strategies[-1]),
        refused=(*known.refused, *old[1]),
    )
    if json:
        asked = {"backend": backend, "engine": way, "seed": seed, "budget": budget, "saved": out}
        print_json(plans.comparison_document(comparison, asked))
        return
    sentences = [describe_refused(comparison.refused)] if comparison.refused else []
    sentences.append(plans.describe_search(comparison))
    if out is not None:
        sentences.append(f"The plan of the search is in {out}.{before}")
    print_parts(
        plans.describe_comparison(comparison),
        plans.table_of_strategies(comparison),
        "\n".join(sentences),
    )


def _require_model(plan: Plan, model: str, batch: int | None) -> None:
    from meshwright.capture.recognised.user_operators import definitions_in
    from meshwright.plan.fits import require_graph

    operators = definitions_in(plan.graph)
    require_graph(plan, captured_graph(model, batch, operators=operators))
