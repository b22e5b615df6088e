"""The task template: indices of each op group's and edge's tasks, in arrays.

    forward(u, m)  backward(u, m)     a unit's compute, for each micro-batch m
    carry(b, m)    return(b, m)       what moves a bundle to its readers, and its gradient back
    update(b)                         the optimizer, for parameters
    again(b, m)                       fetching sharded parameters for the backward pass
    regather(b)                       gathering what was updated in shards
    launch(i)                         a host's launches of one slot (`host`)
A plan decides which of them are live and how long they take; it never moves an edge.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.simulate.tasks import Flags, Indices, Ints

Bytes8 = NDArray[np.int8]
Floats = NDArray[np.float64]

NONE = -1
"""In arrays of numbers of tasks and edges: there is none."""


class TaskTemplate(NamedTuple):
    """What compiled code knows of units, bundles and where their tasks are."""

    flows: Flags
    """[units] whether a unit has a backward pass."""
    unit_bundle_start: Indices
    unit_bundle: Indices
    """The bundles that a unit makes or reads."""
    forward: Indices
    """[units, micro-batches] tasks."""
    backward: Indices
    maker: Indices
    """[bundles]"""
    parameters: Flags
    """[bundles]"""
    source_start: Indices
    source_maker: Indices
    """[sources] units."""
    source_bytes: Floats
    source_there: Bytes8
    """[sources, splits of the maker]"""
    source_back: Bytes8
    trained: Flags
    """[sources]"""
    leg_start: Indices
    leg_source: Indices
    leg_unit: Indices
    leg_there: Bytes8
    """[consumers, splits of the reader]"""
    leg_back: Bytes8
    leg_flows: Flags
    """[consumers] whether a gradient comes back."""
    leg_reads: Flags
    """[consumers] always."""
    leg_extra: Flags
    """[consumers] whether there are halos, statistics or exchanges."""
    leg_halo: Floats
    leg_statistics: Floats
    leg_exchanged: Floats
    """[consumers, splits] bytes of one all-reduce inside the reader."""
    leg_rounds: Ints
    """[consumers, splits, 2] how many of them, there and back."""
    leg_cut_by: Ints
    """[consumers, splits] the splits that cut them too, as bits."""
    carry: Indices
    """[bundles, micro-batches] tasks; of parameters only the first, unless they are fetched for
    each use."""
    carry_back: Indices
    """[bundles, micro-batches] tasks that return gradients; of parameters only the first, unless
    they are summed after each micro-batch."""
    update: Indices
    """[bundles] tasks, or NONE."""
    regather: Indices
    again: Indices
    """[bundles, micro-batches] tasks; of parameters that are fetched for each use."""
    carried_edge: Indices
    """[bundles, micro-batches] maker -> carry, or NONE for parameters."""
    returned_edge: Indices
    """[bundles, micro-batches] return -> maker's backward, or -> update."""
    leg_edge: Indices
    """[consumers, micro-batches] carry -> reader."""
    leg_back_edge: Indices
    """[consumers, micro-batches] reader's backward -> return."""
    leg_again_edge: Indices
    """[consumers, micro-batches] again -> reader's backward, or NONE."""
    regather_edge: Indices
    """[bundles] update -> regather, or NONE."""
    ahead_edge: Indices
    """[2, bundles, micro-batches] a use some time before -> carry and again, or NONE."""
    launch: Indices
    """[launches] tasks."""
    launch_unit: Indices
    """[launches] a unit that the slot ends with."""
    launch_micro: Indices


class TaskLabels(NamedTuple):
    """What the tasks are, for people."""

    kind: tuple[str, ...]
    """forward, backward, launch (of units), carry, return, update, again, regather (of bundles)"""
    subject: tuple[int, ...]
    """The number of the unit or bundle."""
    micro_batch: tuple[int, ...]


def labels_of(template: TaskTemplate, tasks: int) -> TaskLabels:
    """What each of so many tasks is."""
    kind = [""] * tasks
    subject, micro_batch = np.zeros((2, tasks), np.int64)
    for name, numbers in (
        ("forward", template.forward),
        ("backward", template.backward),
        ("carry", template.carry),
        ("return", template.carry_back),
        ("update", template.update[:, None]),
        ("again", template.again),
        ("regather", template.regather[:, None]),
    ):
        rows, micro = np.nonzero(numbers != NONE)
        task_numbers = numbers[rows, micro]
        subject[task_numbers], micro_batch[task_numbers] = rows, micro
        for task in task_numbers.tolist():
            kind[task] = name
    for task in template.launch.tolist():
        kind[task] = "launch"
    subject[template.launch], micro_batch[template.launch] = (
        template.launch_unit, template.launch_micro,
    )  # fmt: skip
    return TaskLabels(tuple(kind), tuple(subject.tolist()), tuple(micro_batch.tolist()))
