"""`Written`: a framework configuration as it stands in a file. Enters: nothing. Leaves: the noun
`Written`, which both readers make, and what of it depends on the model.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.baselines.degrees.facts import Facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.rates import Software
from meshwright.plan.options import SHARDS_GRADIENTS

Form = Literal["torchtitan", "megatron", "options"]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration as it stands in a file, for so many devices."""

    form: Form
    config: ParallelConfig
    batch: int | None = None
    """Samples in a step; None: as many as the model has by itself."""
    dtype: str | None = None
    """Of the parameters; None: as the model has them."""
    layers_each: int | None = None
    """Layers of a virtual stage."""
    model: str | None = None
    """The source of the model that is named, as `capture.load` reads it."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Counts of the model, named as those of `Facts`."""
    problems: tuple[tuple[str, str], ...] = ()
    """What does not divide already here: the problem and the remedy."""
    notes: tuple[str, ...] = ()
    """What is priced otherwise than the framework runs it, and what is not known."""
    ignored: tuple[str, ...] = ()
    """Settings that have nothing to do with parallelism."""
    software: Software = Software()
    """How the framework runs kernels and hides what goes over links."""


def settled(written: Written, facts: Facts) -> ParallelConfig:
    """The configuration, with the virtual stages that the model's layers give."""
    _require_sizes(written, facts)
    config = summed_by(written.form, written.config)
    if config.recompute_layers >= facts.layers:
        config = replace(config, recompute_layers=0)
    if written.layers_each is None:
        return config
    return replace(config, chunks=max(1, facts.layers // config.pipeline // written.layers_each))


def summed_by(framework: str, config: ParallelConfig) -> ParallelConfig:
    """The configuration with gradients summed when a framework sums them.

    Of FSDP2 after each micro-batch unless its no_sync is used: torchtitan does not, pipelines of
    PyTorch do, and our script (`pytorch`) and plain degrees (`options`) do as they are told.
    DeepSpeed and Megatron-FSDP have no room for whole gradients; Accelerate and JAX sum once.

    >>> summed_by("torchtitan", ParallelConfig(data=8, zero=3, micro_batches=4)).sync_each
    True
    """
    match framework:
        case "options":
            return config
        case "pytorch":
            each = config.sync_each and config.pipeline == 1
        case "torchtitan":
            each = config.pipeline == 1
        case _:
            each = framework in ("megatron", "deepspeed")
    each = each and config.zero >= SHARDS_GRADIENTS and config.micro_batches > 1
    return replace(config, sync_each=each)


def _require_sizes(written: Written, facts: Facts) -> None:
    for name, said in written.sizes:
        has = getattr(facts, name)
        if said != has:
            what = name.replace("_", " ")
            raise InputError(
                f"the configuration says {said} {what}, and the model has {has}",
                "give the model that the configuration is for, or leave it out",
            )


def micro_batches_of(
    batch: int, micro_batch: int, data: int, named: str
) -> tuple[int, tuple[tuple[str, str], ...]]:
    """How many micro-batches a step has, and what does not divide.

    >>> micro_batches_of(64, 2, 8, "the global batch size")
    (4, ())
    >>> micro_batches_of(64, 3, 8, "the global batch size")[0]
    2
    """
    each = micro_batch * data
    if batch % each == 0:
        return batch // each, ()
    near = sorted({max(each, batch // each * each), -(-batch // each) * each})
    problem = f"{named} {batch} is no multiple of {each}: micro-batch {micro_batch} x data {data}"
    # The rest is judged with the number nearby that divides, so that one mistake is told once.
    working = [n for n in divisors(max(1, batch // data)) if n <= max(1, batch // each)]
    return working[-1], ((problem, f"give {' or '.join(map(str, near))}"),)
