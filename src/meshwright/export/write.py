"""Export driver: a plan projected onto a target, written and priced. Enters: a `Plan`, the graph of
the model as it is, a target's name. Leaves: `Exported`: files, what is lost, and the prediction of
what was written beside the plan's.

The prediction is of what the target runs (`as_run`), by the library that the plan was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective
from meshwright.export.as_run import as_run, machine_of
from meshwright.export.exported import Exported, ExportWriting, Files, target_named
from meshwright.export.header_comments import comment, head
from meshwright.export.hyperparameters import transformer_dims
from meshwright.export.jax_mesh import indivisible_parameters, write_jax
from meshwright.export.libraries import HALF, write_accelerate, write_deepspeed
from meshwright.export.lost import Over, lost_plan_settings, lost_stages
from meshwright.export.megatron import lost_sizes, write_megatron
from meshwright.export.modules import (
    layer_modules,
    stages_of,
    supports_sequence_parallel,
    tensor_styles,
)
from meshwright.export.projection import Fitted, devices_by_rank, fitted, sharded_factors
from meshwright.export.pytorch import write_pytorch
from meshwright.export.pytorch_fsdp_steps import fsdp_collective_steps
from meshwright.export.rank_files import check_script, gpus_of, host_file, rank_file
from meshwright.export.torchtitan import UNKNOWN, torchtitan_flavor, write_torchtitan
from meshwright.export.uniform import Uniform, uniform_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.simulate.simulation import prices_of, simulate

WRITERS: Mapping[str, Callable[[ExportWriting], Files]] = {
    "pytorch": write_pytorch,
    "megatron": write_megatron,
    "torchtitan": write_torchtitan,
    "jax": write_jax,
    "deepspeed": write_deepspeed,
    "accelerate": write_accelerate,
}


def exported(plan: Plan, graph: OperatorGraph, target: str) -> Exported:
    """A plan for a target, with all that is lost."""
    framework, facts = target_named(target), known_facts(graph)
    uniform = uniform_of(plan)
    fit = fitted(uniform, framework, plan.cluster, facts)
    if target == "pytorch":
        fit = _with_hidden_states(_with_stages(fit, uniform, graph, plan.cluster, facts), graph)
    if target == "deepspeed" and graph.parameters[0].tensor.dtype in HALF:
        fit = fit._replace(config=replace(fit.config, mixed=True))
    meant = plan_of(graph, plan.cluster, fit, facts)
    writing = ExportWriting(plan, graph, meant, fit.config, fit.taken, "")
    ran = as_run(WRITERS[target](writing), fit.config, target, plan.cluster.devices, facts)
    machine = machine_of(plan.cluster, ran.software)
    written = replace(
        plan_of(graph, machine, fit._replace(config=ran.config), facts), backend=plan.backend
    )
    carried = _carried(plan, fit) if target == "pytorch" else {}
    lost = [
        *fit.lost,
        *lost_plan_settings(
            plan, written, uniform.share, programs=framework.programs, carried=carried
        ),
    ]
    if written.options.mixed and not plan.options.mixed:
        lost.append(f"16-bit parameters alone: {target} keeps float32 copies of them")
    if target == "pytorch" and not plan.model:
        lost.append("the plan does not name its model: write build() in the script")
    if target == "pytorch" and fit.config.tensor > 1:
        lost += [
            f"{name}: every rank of the tensor axis computes all of it, for PyTorch has no style "
            "that cuts it; the predicted figure has it cut"
            for name in tensor_styles(meant, fit.taken["tensor"]).left
        ]
    if target == "megatron":
        lost += lost_sizes(transformer_dims(graph))
    if target == "torchtitan" and torchtitan_flavor(transformer_dims(graph)) is None:
        lost.append(f"torchtitan has no model of these sizes: write its name for {UNKNOWN}")
    if fit.config.pipeline > 1:
        lost += lost_stages(plan, fit.taken["pipeline"], fit.config)
    whole = indivisible_parameters(writing) if target == "jax" else ()
    if whole:
        lost.append(f"JAX cuts equal pieces only: {', '.join(whole)} are whole on every device")
    before = simulate(plan, prices_of(plan)).prediction
    after = simulate(written, prices_of(written, programs=False)).prediction
    text = comment(head(plan, written, (before, after), fit.config, lost))
    files = WRITERS[target](writing._replace(head=text)) | _ranks(fit, plan.cluster)
    return Exported(
        target=target,
        config=fit.config,
        files=tuple(files.items()),
        lost=tuple(lost),
        plans=(plan, written),
        planned=before,
        written=after,
    )


def _carried(plan: Plan, fit: Fitted) -> dict[str, Over]:
    """The collectives over the data axis that the script carries out in the plan's steps."""
    sharded = sharded_factors(fit.config, fit.taken, plan.cluster)
    steps = fsdp_collective_steps(plan, sharded, fit.config.zero)
    kinds = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    return {
        kind.value: frozenset(sharded) for kind, chain in zip(kinds, steps, strict=True) if chain
    }


def _with_stages(
    fit: Fitted, uniform: Uniform, graph: OperatorGraph, cluster: Cluster, facts: Facts | None
) -> Fitted:
    """Without a pipeline where the model cannot be cut between its layers."""
    if fit.config.pipeline == 1:
        return fit
    try:
        stages_of(graph, fit.config)
    except InputError as problem:
        framework = target_named("pytorch")
        flat = replace(framework, axes=tuple(axis for axis in framework.axes if axis != "pipeline"))
        try:
            other = fitted(uniform, flat, cluster, facts)
        except InputError:
            raise problem from None
        lost = (note.replace(NO_PIPELINE, problem.problem) for note in other.lost)
        return other._replace(lost=tuple(lost))
    return fit


NO_PIPELINE = "pytorch has no pipeline parallelism"


def _with_hidden_states(fit: Fitted, graph: OperatorGraph) -> Fitted:
    """Without sequence parallelism where hidden states do not have positions as second dim, and
    without activation checkpointing where layers are no modules.
    """
    if fit.config.recompute and not layer_modules(graph):
        lost = "activation checkpointing: the model has no repeated modules that could run again"
        fit = fit._replace(config=replace(fit.config, recompute=False), lost=(*fit.lost, lost))
    if not fit.config.sequence or supports_sequence_parallel(graph):
        return fit
    lost = "sequence parallelism: hidden states do not lie as samples x positions x features"
    return fit._replace(config=replace(fit.config, sequence=False), lost=(*fit.lost, lost))


def known_facts(graph: OperatorGraph) -> Facts | None:
    """The counts of a transformer; None of another model."""
    try:
        return transformer_facts(graph)
    except InputError:
        return None


def plan_of(graph: OperatorGraph, cluster: Cluster, fit: Fitted, facts: Facts | None) -> Plan:
    """The plan that a configuration means."""
    if facts is not None:
        return configured(graph, cluster, fit.config, fit.taken)
    return replace(data_parallel(graph, cluster), options=fit.config.options)


def _ranks(fit: Fitted, cluster: Cluster) -> Files:
    """The check at start, and the files of hosts where ranks do not lie in their order."""
    devices = devices_by_rank(fit.config, fit.taken, cluster)
    check = {"check_ranks.py": check_script(devices, cluster)}
    if fit.ordered:
        return {"check_ranks.py": check_script(range(cluster.devices), cluster)}
    gpus = gpus_of(cluster)
    return check | {"hostfile": host_file(devices, gpus), "rankfile": rank_file(devices, gpus)}
