"""Divisibility checks of a parallel configuration: why it does not run. Enters: a graph, a cluster,
a `ParallelConfig`. Leaves: a sentence for each number that another does not divide, with the
degrees nearby that work.

What must divide what is the frameworks' own: heads, and heads of keys and values, by tensor;
layers by the stages of the pipeline; positions by twice the context (each device has one piece
from the front and one from the back, as causal attention grows) and, with sequence parallelism, by
tensor; samples by data and micro-batches; experts by expert.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.degrees.placed import rows_of
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.layout import factors, inner_group_sizes


def refusals(
    graph: OperatorGraph, cluster: Cluster, config: ParallelConfig
) -> tuple[InputError, ...]:
    """All that does not divide; nothing if the configuration runs."""
    return (
        *_machine(cluster, config),
        *divisibility_problems(transformer_facts(graph), config, cluster.devices),
    )


def divisibility_problems(
    facts: Facts, config: ParallelConfig, devices: int | None = None
) -> tuple[InputError, ...]:
    """What of a model does not divide, wherever the axes lie; devices are those of the degrees
    unless a machine has others.
    """
    number = devices or config.devices
    problems = (*_model(facts, config, number), *_batch(facts, config, number))
    return (*problems, *_pipeline(facts, config))


def _machine(cluster: Cluster, config: ParallelConfig) -> Iterator[InputError]:
    devices = cluster.devices
    if config.devices != devices:
        product = " x ".join(f"{axis} {n}" for axis, n in reversed(tuple(config.degrees.items())))
        others = config.devices // config.data
        remedy = f"choose degrees that multiply to {devices}"
        if devices % others == 0:
            remedy += f", as data {devices // others}"
        yield InputError(
            f"{product} is {config.devices}, and cluster {cluster.name!r} has {devices} devices",
            remedy,
        )
        return
    try:
        rows_of(config.degrees, cluster)
    except InputError as error:
        yield error
        return
    if config.shard_within:
        yield from _neighbourhood(cluster, config)


def _neighbourhood(cluster: Cluster, config: ParallelConfig) -> Iterator[InputError]:
    """What is wrong with the devices among which ZeRO shards."""
    least, most = config.inside_data, config.inside_data * config.data
    possible = [
        devices
        for devices in inner_group_sizes(factors(cluster))
        if devices % least == 0 and most % devices == 0 and (devices > least or config.context > 1)
    ]
    if config.shard_within not in possible:
        yield InputError(
            f"ZeRO shards within {config.shard_within} devices, which are no whole share of the "
            f"{most} that data goes over on cluster {cluster.name!r}",
            f"give {_list(tuple(possible))}"
            if possible
            else "shard over all devices of the data axis",
        )


def _model(facts: Facts, config: ParallelConfig, devices: int) -> Iterator[InputError]:
    for number, what, degree, axis in (
        (facts.heads, "heads", config.tensor, "tensor"),
        (facts.key_value_heads, "heads of keys and values", config.tensor, "tensor"),
        (facts.layers, "layers", 1 if _uneven(config) else config.pipeline, "pipeline"),
    ):
        same = what != "heads" and number == facts.heads and axis == "tensor"
        if number % degree and not same:
            yield _not_divided(number, what, degree, axis, devices)
    if config.context > 1 and facts.positions % (2 * config.context):
        yield InputError(
            f"{facts.positions} positions cannot be cut into {2 * config.context} equal pieces, "
            f"two for each of context {config.context}",
            nearby(facts.positions // 2, config.context, "context", devices),
        )
    elif config.sequence and facts.positions % (config.tensor * config.context):
        each = facts.positions // config.context
        yield _not_divided(each, "positions of a device", config.tensor, "tensor", devices)
    if config.expert > 1 and not facts.experts:
        yield InputError(
            f"the degree of expert is {config.expert}, and the model has no experts",
            "leave it out, or give a model with experts",
        )
    elif facts.experts % config.expert:
        yield _not_divided(facts.experts, "experts", config.expert, "expert", devices)
        return
    among = config.data * config.context * (config.tensor if config.folded else 1)
    axes = "tensor x data x context" if config.folded else "data x context"
    if among % config.expert:
        yield _not_divided(among, f"devices of {axes}", config.expert, "expert", devices)


def _uneven(config: ParallelConfig) -> bool:
    """Whether stages need not have equally many layers."""
    return config.uneven or bool(config.stages)


def _batch(facts: Facts, config: ParallelConfig, devices: int) -> Iterator[InputError]:
    if facts.samples % config.data:
        yield _not_divided(facts.samples, "samples of a step", config.data, "data", devices)
    elif facts.samples % (config.data * config.micro_batches):
        each = facts.samples // config.data
        yield InputError(
            f"{facts.samples} samples on data {config.data} are {each} each, which "
            f"{config.micro_batches} micro-batches do not divide",
            f"give a number of micro-batches that divides {each}: {_list(divisors(each))}",
        )


def _pipeline(facts: Facts, config: ParallelConfig) -> Iterator[InputError]:
    stages = config.pipeline * config.chunks
    if stages > facts.layers and not (config.uneven and stages == facts.layers + 2):
        yield InputError(
            f"the pipeline has {stages} stages, and the model {facts.layers} layers",
            f"give at most {facts.layers} stages",
        )
    if config.stages and (sum(config.stages) != facts.layers or min(config.stages) < 1):
        yield InputError(
            f"stages of {' + '.join(map(str, config.stages))} layers are given, and the model has "
            f"{facts.layers} layers",
            f"give each stage 1 layer or more, together {facts.layers}",
        )
    if config.chunks == 1:
        return
    each = facts.layers // config.pipeline
    if config.pipeline == 1:
        yield InputError(
            f"there are {config.chunks} virtual stages a device, and pipeline is 1",
            "give a pipeline of 2 or more, or no virtual stages",
        )
    elif not _uneven(config) and facts.layers % config.pipeline == 0 and each % config.chunks:
        yield InputError(
            f"{each} layers a stage ({facts.layers} on pipeline {config.pipeline}) cannot be cut "
            f"into {config.chunks} equal virtual stages",
            f"give a number that divides {each}: {_list(divisors(each))}",
        )
    if config.micro_batches % config.pipeline:
        yield InputError(
            f"interleaved stages take micro-batches in groups of pipeline {config.pipeline}, "
            f"which does not divide {config.micro_batches} micro-batches",
            f"give a multiple of {config.pipeline} micro-batches, or no virtual stages",
        )


def _not_divided(number: int, what: str, degree: int, axis: str, devices: int) -> InputError:
    return InputError(
        f"{axis} {degree} does not divide {number} {what}", nearby(number, degree, axis, devices)
    )


def nearby(number: int, degree: int, axis: str, devices: int) -> str:
    """The degrees next to one that divide a number, and the devices.

    >>> nearby(25, 4, "tensor", 16), nearby(24, 5, "tensor", 16)
    ('give tensor 1', 'give tensor 4 or 8')
    """
    working = [d for d in divisors(number) if devices % d == 0]
    below = [d for d in working if d < degree][-1:]
    above = [d for d in working if d > degree][:1]
    return f"give {axis} {' or '.join(map(str, (*below, *above)))}"


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
