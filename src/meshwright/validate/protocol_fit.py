"""Constants of `cost.protocol` from measured rows. Enters: rows of one machine. Leaves: constants.

They minimise, averaged over the group sizes,

    mean |error| of all rows + mean |error| with each row weighted by 1 / bytes

so that the many rows of hundreds of MiB count, and each doubling of the size counts as well. The
search changes one constant at a time by a factor, keeps what is better, and shrinks the factor
of a constant where neither way is; it takes no chance, so the same rows give the same constants.

The constants that ship were printed by

    python -c "from meshwright.validate.protocol_fit import shipped_fits; print(shipped_fits())"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from meshwright.base.errors import InputError
from meshwright.base.units import BytesPerSecond, Seconds
from meshwright.cost.protocol import MACHINES, Constants, Floats, ProtocolMachine, all_reduce_times
from meshwright.validate.collectives import AllReduceRow, Evidence, Group, embedded_rows

START = Constants(
    launch=Seconds(30e-6),
    hop=Seconds(3e-6),
    granule_share=0.3,
    ramp=0.05,
    ramp_bytes=400e6,
    ll128_launch=Seconds(25e-6),
    ll128_hop=Seconds(2e-6),
    ll128_least=16384.0,
    ll128_rate=BytesPerSecond(7.5e9),
)
"""Where the search starts for every machine: the size of what NCCL's own tables say."""
MOST_ROUNDS = 300
SMALLEST_STEP = 1e-4

Measured = Mapping[int, tuple[Floats, Floats]]
"""Bytes and measured seconds by members."""


def fit(rows: Sequence[AllReduceRow], start: Constants = START) -> Constants:
    """The constants of one machine that suit the rows best; what is 0 at the start stays 0."""
    machine = _machine(rows)
    measured = _measured(rows)
    best, lowest = start, _loss(machine, start, measured)
    steps = dict.fromkeys(Constants.__struct_fields__, 0.3)
    for _ in range(MOST_ROUNDS):
        for name, step in steps.items():
            for factor in (1 + step, 1 - step):
                trial = msgspec.structs.replace(best, **{name: getattr(best, name) * factor})
                loss = _loss(machine, trial, measured)
                if loss < lowest:
                    best, lowest, steps[name] = trial, loss, min(1.5 * step, 0.5)
                    break
            else:
                steps[name] = 0.6 * step
        if max(steps.values()) < SMALLEST_STEP:
            break
    return best


def shipped_fits() -> dict[str, Constants]:
    """The constants of every machine from the half of the embedded rows that is for fitting."""
    rows = [row for row in embedded_rows() if row.fitted]
    return {name: fit([row for row in rows if row.gpu == name]) for name in MACHINES}


def gather_evidence(rows: Sequence[AllReduceRow]) -> dict[Group, Evidence]:
    """How the constants do on rows that they have not seen, by group."""
    groups: dict[Group, list[AllReduceRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    found = {}
    for group, own in sorted(groups.items()):
        machine = MACHINES[group[0]]
        others = [row for row in rows if row.gpu == group[0] and row.group != group]
        found[group] = Evidence(
            other_half=mean_error(machine, [row for row in own if not row.fitted]),
            size_left_out=mean_error(_with(machine, fit(others)), own),
        )
    return found


def mean_error(machine: ProtocolMachine, rows: Sequence[AllReduceRow]) -> float:
    """The mean absolute error on rows of one group size."""
    ((members, (sizes, seconds)),) = _measured(rows).items()
    return float(_errors(machine, members, sizes, seconds).mean())


def _errors(machine: ProtocolMachine, members: int, sizes: Floats, seconds: Floats) -> Floats:
    found: Floats = np.abs(all_reduce_times(machine, members, sizes) / seconds - 1)
    return found


def _with(machine: ProtocolMachine, constants: Constants) -> ProtocolMachine:
    return msgspec.structs.replace(machine, constants=constants)


def _machine(rows: Sequence[AllReduceRow]) -> ProtocolMachine:
    names = sorted({row.gpu for row in rows})
    if len(names) != 1:
        found = " and ".join(names) or "none"
        raise InputError(f"constants are of one machine, the rows of {found}", "fit one at a time")
    return MACHINES[names[0]]


def _measured(rows: Sequence[AllReduceRow]) -> Measured:
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        found[row.ranks].append((row.bytes, row.measured_s))
    arrays = {members: np.array(pairs, dtype=np.float64) for members, pairs in found.items()}
    return {members: (own[:, 0], own[:, 1]) for members, own in sorted(arrays.items())}


def _loss(machine: ProtocolMachine, constants: Constants, measured: Measured) -> float:
    if constants.granule_share > 1:
        return np.inf
    trial = _with(machine, constants)
    losses = []
    for members, (sizes, seconds) in measured.items():
        errors = _errors(trial, members, sizes, seconds)
        losses.append(errors.mean() + np.average(errors, weights=1 / sizes))
    return float(np.mean(losses))
