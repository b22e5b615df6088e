"""Task assignment of all op groups and edges at once. Enters: their roles. Leaves: a task graph, or
the unit or bundle for which a table lacks a row. Compiled: to call `assign` from Python for each
unit and each bundle takes longer than what it does.
"""

from __future__ import annotations

from meshwright.base.compiled import compiled
from meshwright.sharding.reshard import Codes
from meshwright.simulate.assign import AssignmentRates, assign_edge, assign_op_group
from meshwright.simulate.collective_table import CollectiveTable
from meshwright.simulate.edge_collectives import FOUND, Workspace
from meshwright.simulate.operator_table import TimeTable
from meshwright.simulate.task_template import TaskTemplate
from meshwright.simulate.tasks import Ints, TaskGraph


@compiled
def assign_all(
    template: TaskTemplate,
    graph: TaskGraph,
    table: CollectiveTable,
    times: TimeTable,
    rates: AssignmentRates,
    radix: Ints,
    types: Ints,
    first: int,
    roles: Codes,
    room: Workspace,
) -> int:
    """Write units and then bundles, from number `first` on.

    Returns the number of the first that was not written, with the reason in `Workspace.missing`, or
    how many there are.
    """
    units, bundles = len(template.flows), len(template.maker)
    for number in range(first, units + bundles):
        if number < units:
            unit_roles = roles[number]
            status = assign_op_group(
                template, graph, table, times, rates, radix, types[number], number, unit_roles, room
            )
        else:
            status = assign_edge(template, graph, table, rates, radix, number - units, roles, room)
        if status != FOUND:
            room.missing[0] = status
            return number
    return units + bundles
