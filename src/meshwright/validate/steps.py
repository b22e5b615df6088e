"""Training steps of a GPT on vTrain's machine. Enters: rows, constants. Leaves: predicted seconds.

With r the all-reduce of a layer's output over the tensor group, D the seconds of a layer's
operators (`cost.operator`) in a pass and K how many kernels they are, L_s the layers of stage s,
    f, b                 = D + 2 r on the device beside (K + 2) dispatch_s on the host
                           (`price.host`), of the forward and of the backward pass
    forward of stage s   = L_s f                                      plus embedding or head
    backward of stage s  = L_s f + L_s b                              recomputation, then gradients
    transfer             = bytes of the output over NVSwitch; between nodes a t-th of it at an
                           eighth of the network, then gathered over NVSwitch (Megatron's
                           scatter and gather: each GPU of a tensor group sends its part)
    reduction            = all-reduce of 2 bytes a weight over the data group, once, not overlapped;
                           then that of the words, which the first and the last stage share
    update               = update_bytes a weight at streaming bandwidth
An all-reduce of n begins when its last member comes. If delays are drawn alike from an exponential
distribution of mean `skew_s`, that is (1/2 + ... + 1/n) skew_s after the mean member.
The step is the makespan of those tasks under 1F1B, with as many micro-batches as the global batch
says (a pipeline of 1 accumulates them). Ranks are numbered as Megatron does: tensor innermost, then
data, then pipeline. Across nodes all compute takes `straggling` times as long.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.units import Bytes, BytesPerSecond, Seconds
from meshwright.cluster.model import Cluster
from meshwright.cluster.rates import Rates
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.collective import Collective
from meshwright.cost.host_overhead import together
from meshwright.cost.operator import OperatorPricer, all_gradients
from meshwright.cost.pattern import Digit, Pattern, PatternUse, members
from meshwright.cost.protocol import MACHINES, all_reduce_seconds
from meshwright.graph.model import Call
from meshwright.simulate import full
from meshwright.simulate.pipeline import PipelineTask, pipeline, timed
from meshwright.validate.megatron import (
    MegatronSizes,
    embedding_calls,
    head_calls,
    layer_calls,
    layer_parameters,
    word_parameters,
)
from meshwright.validate.step_constants import StepConstants
from meshwright.validate.step_rows import NODE, IterationRow

CLUSTER = "vtrain-a100"
NVSWITCH = Cluster.named(CLUSTER).levels[-1].links[0].out
"""A GPU's port, in bytes per second."""


class Pass(NamedTuple):
    """What some operators need in one pass."""

    device: float
    """Seconds."""
    kernels: int
    """How many the host hands over."""


class LayerPrice(msgspec.Struct, frozen=True):
    """One layer, the embedding and the head: forward, backward."""

    layer: tuple[Pass, Pass]
    embedding: tuple[Pass, Pass]
    head: tuple[Pass, Pass]


class StepPredictor:
    """Predicts rows with one set of constants, each distinct part once."""

    def __init__(self, constants: StepConstants) -> None:
        self.constants = constants
        rates = Rates(
            best=constants.best,
            half=constants.half,
            odd=constants.odd,
            streaming=constants.streaming,
            scanning=constants.scanning,
        )
        self._operators = OperatorPricer(Cluster.named(CLUSTER).device, rates=rates)
        self._layers: dict[MegatronSizes, LayerPrice] = {}
        self._pricers: dict[tuple[int, int], Pricer] = {}

    def seconds(self, row: IterationRow) -> Seconds:
        """The predicted step."""
        step = pipeline("1f1b", row.pipeline, row.micro_batches)
        graph = timed(step, np.rint(self._stages(row) * 1e9).astype(np.int64))
        return Seconds(full.simulate(graph).makespan / 1e9)

    def _stages(self, row: IterationRow) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Seconds by `PipelineTask` and stage."""
        own, sizes = self.constants, row.sizes
        price = self._price(sizes)
        slower = own.straggling if row.across_nodes else 1.0
        activations = 2 * row.sequence * row.micro_batch * row.hidden
        reduce = self._all_reduce(row, "tensor", activations)

        def seconds(work: Pass, reductions: int) -> float:
            calls = work.kernels + (reductions if row.tensor > 1 else 0)
            device = slower * work.device + reductions * reduce
            return together(device, slower * own.dispatch_s * calls)

        layers = _shared_out(row.layers, row.pipeline)
        there = layers * seconds(price.layer[0], 2)
        back = there + layers * seconds(price.layer[1], 2)
        there[0] += seconds(price.embedding[0], 1)
        back[0] += seconds(price.embedding[1], 0)
        there[-1] += seconds(price.head[0], 0) + slower * own.micro_batch_s
        back[-1] += seconds(price.head[1], 1)
        weights = layers * layer_parameters(sizes)
        weights[0] += word_parameters(sizes)
        if row.pipeline > 1:
            weights[-1] += word_parameters(sizes)
        times = np.zeros((len(PipelineTask), row.pipeline))
        times[PipelineTask.FORWARD], times[PipelineTask.BACKWARD] = there, back
        times[PipelineTask.SEND] = self._transfer(row, activations)
        times[PipelineTask.REDUCE] = [self._all_reduce(row, "data", 2 * held) for held in weights]
        times[PipelineTask.REDUCE, [0, -1]] += self._shared_words(row)
        device = self._operators.device
        times[PipelineTask.UPDATE] = (
            weights * own.update_bytes / device.memory_bandwidth / own.streaming
        )
        return times

    def _price(self, sizes: MegatronSizes) -> LayerPrice:
        if sizes not in self._layers:
            self._layers[sizes] = LayerPrice(
                *(self._sum(calls(sizes)) for calls in (layer_calls, embedding_calls, head_calls))
            )
        return self._layers[sizes]

    def _sum(self, calls: tuple[Call, ...]) -> tuple[Pass, Pass]:
        there, back = Pass(0.0, 0), Pass(0.0, 0)
        for call in calls:
            price = self._operators.price(call)
            there = _with(there, price.forward.seconds, 1)
            back = _with(back, price.backward.seconds, sum(all_gradients(call)))
        return there, back

    def _all_reduce(self, row: IterationRow, axis: str, size: float) -> float:
        """Seconds of an all-reduce along an axis, from when its mean member comes."""
        if getattr(row, axis) == 1:
            return 0.0
        groups = pattern(row, axis)
        if members(groups[0]) == 1:
            seconds = _inside(members(groups[1]), round(size))
        else:
            (line,) = self._pricer(row).lines(Collective.ALL_REDUCE, groups)
            seconds = line.at(size)
        late = sum(1 / i for i in range(2, getattr(row, axis) + 1))
        return seconds + self.constants.skew_s * late

    def _shared_words(self, row: IterationRow) -> float:
        """Seconds in which the first and the last stage add up the gradients of the words."""
        if row.pipeline == 1:
            return 0.0
        size = 2 * word_parameters(row.sizes)
        if row.across_nodes:
            return size * min(NODE, row.tensor * row.data) / self.constants.nic
        return _inside(2, size)

    def _transfer(self, row: IterationRow, size: float) -> float:
        """Seconds until a stage has sent what it made; a node's GPUs do so at the same time."""
        own = self.constants
        if row.tensor * row.data < NODE:
            return max(own.dispatch_s, size / NVSWITCH)
        part = size / row.tensor
        return max(own.dispatch_s, part * NODE / own.nic + (size - part) / NVSWITCH)

    def _pricer(self, row: IterationRow) -> Pricer:
        shape = (max(1, row.gpus // NODE), min(NODE, row.gpus))
        if shape not in self._pricers:
            own = self.constants
            self._pricers[shape] = Pricer(cluster_of(own, *shape))
        return self._pricers[shape]


def cluster_of(constants: StepConstants, nodes: int, gpus: int) -> Cluster:
    """The machine with its fitted network.

    >>> cluster_of(StepConstants(), 8, 8).hierarchy
    (8, 8)
    """
    cluster = Cluster.named(CLUSTER, node=nodes, gpu=gpus)
    network, *inner = cluster.levels
    rate = BytesPerSecond(constants.nic)
    links = tuple(msgspec.structs.replace(own, out=rate, into=rate) for own in network.links)
    network = msgspec.structs.replace(network, links=links)
    return msgspec.structs.replace(cluster, levels=(network, *inner))


def pattern(row: IterationRow, axis: str) -> Pattern:
    """The groups along an axis: on each level how many ways pipeline, data and tensor split it."""
    room = min(NODE, row.gpus)
    inner: dict[str, int] = {}
    for name in ("tensor", "data", "pipeline"):
        ways: int = getattr(row, name)
        inner[name] = math.gcd(ways, room)
        if inner[name] not in (ways, room):
            raise InputError(
                f"{name} is {ways} where a node has room for {room}",
                "give a divisor or a multiple of that",
            )
        room //= inner[name]
    outer = {name: getattr(row, name) // own for name, own in inner.items()}
    names = ("pipeline", "data", "tensor")

    def digits(ways: dict[str, int]) -> tuple[Digit, ...]:
        uses = {name: PatternUse.MEMBER if name == axis else PatternUse.EVERY for name in names}
        return tuple(Digit(ways[name], uses[name]) for name in names)

    return digits(outer), digits(inner)


@lru_cache(maxsize=4096)
def _inside(ranks: int, size: int) -> float:
    """Seconds of an all-reduce inside a node, by the model that vTrain's own tables were fitted."""
    return all_reduce_seconds(MACHINES["A100"], ranks, Bytes(size))


def _with(work: Pass, seconds: float, kernels: int) -> Pass:
    """One operator more; what takes no time is not handed over."""
    return Pass(work.device + seconds, work.kernels + (kernels if seconds else 0))


def _shared_out(layers: int, stages: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Layers of each stage, as even as can be, the first stages holding one more."""
    return np.array([layers // stages + (s < layers % stages) for s in range(stages)], float)
