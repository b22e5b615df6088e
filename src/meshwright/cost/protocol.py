"""AllReduce of NCCL inside one machine, by protocol. Enters: a machine, how many of its GPUs take
part (0, 1, ... in order) and the bytes that each holds. Leaves: seconds.

With n members, C channels (two for each ring), h = 2 (n - 1) hops and S bytes, each channel
carries S / C, cut into n chunks that go round the ring together; a chunk has at most 2 MiB, so
that large sizes take several laps. With f full laps and a rest of c bytes a chunk:

    Simple:  launch + h hop (laps) + (h C (2 MiB f + held(c)) + ramp min(S h / n, R)) / B
             held(c) = (1 - share) c + share (c up to a whole number of granules)
    LL128:   launch' + h (hop' + max(c, least) / rate),    c = S / (C n)

B, what all channels of a GPU carry together, is not fitted: it is what makes the time at 1 GiB
the published one. NCCL's tuner picks the protocol: with its own latencies and bandwidths, LL128
below the size at which the two times that it expects are equal (`switch`).

It does not know other collectives, several machines, or sizes below 1 MiB, where NCCL uses LL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.base.integers import require_whole
from meshwright.base.units import Bytes, BytesPerSecond, Seconds

Protocol = Literal["LL128", "Simple"]
Floats = NDArray[np.float64]

CHUNK = Bytes(2 << 20)
"""Half of the 4 MiB buffer of a channel; the measured curves jump where a lap is full of it."""
PUBLISHED_AT = Bytes(1 << 30)
CHANNELS_PER_RING = 2
TUNER_HOP_GAIN = Seconds(3.4e-6 - 1.9e-6)
"""What a hop of LL128 saves over one of Simple on NVLink, says NCCL's `tuning.cc`."""
TUNER_SIMPLE_START = Seconds(8.4e-6)
TUNER_LL128_SHARE = 0.92
"""Of the bandwidth of Simple, as `tuning.cc` takes it: 120 of 128 bytes carry data."""


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """What was fitted to measurements of one machine."""

    launch: Seconds
    """Of a Simple AllReduce, whatever its size: kernel start and first handshake."""
    hop: Seconds
    """Of Simple: handing one chunk to the next GPU, besides moving its bytes."""
    granule_share: float
    """Which part of a begun granule takes the time of a whole one, 0 to 1."""
    ramp: float
    """By how much more the first bytes over a GPU's port take than later ones. It describes the
    curves of A100s, bent at every group size; the measurements do not say what causes it."""
    ramp_bytes: float
    """How many bytes those are."""
    ll128_launch: Seconds
    ll128_hop: Seconds
    ll128_least: float
    """A chunk of fewer bytes takes LL128 as long as one of so many."""
    ll128_rate: BytesPerSecond
    """Of one channel with LL128."""


class ProtocolMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of up to eight GPUs; the tuples are by members: 2, 3, ..."""

    name: str
    rings: tuple[int, ...]
    """How many rings NCCL finds; each uses one NVLink in and one out of every GPU."""
    published: tuple[BytesPerSecond, ...]
    """Bus bandwidth of an AllReduce of 1 GiB."""
    granule: Bytes
    """What the threads of a channel copy of a chunk in one turn, both slices together."""
    tuner_ring: BytesPerSecond
    """What the tuner takes a ring to carry."""
    tuner_ll128_start: Seconds
    """What the tuner takes LL128 to need before its first hop."""
    constants: Constants

    @property
    def most(self) -> int:
        """The largest group."""
        return len(self.rings) + 1

    def channels(self, members: int) -> int:
        """How many channels share the bytes."""
        return CHANNELS_PER_RING * self.rings[members - 2]


def switch(machine: ProtocolMachine, members: int) -> float:
    """The bytes from which NCCL uses Simple; below 0 where it always does.

    >>> [round(switch(MACHINES["A100"], n) / 2**20, 1) for n in (4, 8)]
    [6.0, 23.2]
    """
    hops = 2 * (members - 1)
    gain = hops * TUNER_HOP_GAIN + TUNER_SIMPLE_START - machine.tuner_ll128_start
    rate = machine.rings[members - 2] * machine.tuner_ring * members / hops
    return gain * rate / (1 / TUNER_LL128_SHARE - 1)


def protocol(machine: ProtocolMachine, members: int, size: Bytes) -> Protocol:
    """Which protocol NCCL uses."""
    return "LL128" if size < switch(machine, members) else "Simple"


def all_reduce_seconds(machine: ProtocolMachine, members: int, size: Bytes) -> Seconds:
    """The time of one AllReduce.

    >>> round(1e6 * all_reduce_seconds(MACHINES["V100"], 8, Bytes(1 << 30)))
    13971
    """
    require_whole(members, "the members of the group are")
    require_whole(size, "the bytes of the AllReduce are")
    if not 2 <= members <= machine.most:
        raise InputError(
            f"a group has {members} members",
            f"give 2 to {machine.most}, as {machine.name} machines have them",
        )
    return Seconds(float(all_reduce_times(machine, members, np.array([float(size)]))[0]))


def all_reduce_times(machine: ProtocolMachine, members: int, sizes: Floats) -> Floats:
    """The times of many sizes at once, unchecked."""
    found: Floats = np.where(
        sizes < switch(machine, members),
        _ll128(machine, members, sizes),
        _simple(machine, members, sizes),
    )
    return found


def _ll128(machine: ProtocolMachine, members: int, sizes: Floats) -> Floats:
    own, hops = machine.constants, 2 * (members - 1)
    chunk = np.maximum(sizes / (machine.channels(members) * members), own.ll128_least)
    found: Floats = own.ll128_launch + hops * (own.ll128_hop + chunk / own.ll128_rate)
    return found


def _simple(machine: ProtocolMachine, members: int, sizes: Floats) -> Floats:
    # The last entry is the published size, which sets the bandwidth.
    waiting, moved = _simple_parts(machine, members, np.append(sizes, float(PUBLISHED_AT)))
    share = 2 * (members - 1) / members
    published = share * PUBLISHED_AT / machine.published[members - 2]
    rate = moved[-1] / (published - waiting[-1])
    found: Floats = waiting[:-1] + moved[:-1] / rate
    return found


def _simple_parts(machine: ProtocolMachine, members: int, sizes: Floats) -> tuple[Floats, Floats]:
    """Seconds that do not depend on the bandwidth, and bytes that a GPU's port is held for."""
    own, hops, channels = machine.constants, 2 * (members - 1), machine.channels(members)
    full = np.floor(sizes / (channels * members * CHUNK))
    rest = sizes / (channels * members) - full * CHUNK
    granules = np.ceil(rest / machine.granule) * machine.granule
    held = (1 - own.granule_share) * rest + own.granule_share * granules
    waiting = own.launch + hops * own.hop * (full + (rest > 0))
    ramp = own.ramp * np.minimum(sizes * hops / members, own.ramp_bytes)
    return waiting, hops * channels * (full * CHUNK + held) + ramp


def _gigabytes(*rates: float) -> tuple[BytesPerSecond, ...]:
    return tuple(BytesPerSecond(rate * 1e9) for rate in rates)


# Bandwidths at 1 GiB are those of vTrain's tables, one row of them for each group size. The
# constants were printed by `validate.protocol_fit` (four digits kept).

_A100 = ProtocolMachine(
    name="A100",
    # All GPUs hang on one switch with 12 NVLinks each.
    rings=(12,) * 7,
    published=_gigabytes(197.3, 211.9, 221.9, 224.5, 227.0, 226.9, 229.3),
    granule=Bytes(128 << 10),
    tuner_ring=BytesPerSecond(20e9),
    # As in NCCL 2.30, while 2.10 has 10: taken because 8 GPUs leave LL128 between 23 and 24 MiB.
    tuner_ll128_start=Seconds(14.0e-6),
    constants=Constants(
        launch=Seconds(3.511e-05),
        hop=Seconds(2.094e-06),
        granule_share=0.1648,
        ramp=0.09352,
        ramp_bytes=315000000.0,
        ll128_launch=Seconds(2.33e-05),
        ll128_hop=Seconds(2.415e-06),
        ll128_least=18850.0,
        ll128_rate=BytesPerSecond(7304000000.0),
    ),
)

_V100 = ProtocolMachine(
    name="V100",
    # The rings that close on the NVLinks of a DGX-1V between GPUs 0 to n - 1, both ways round
    # where n > 2. Of five, GPU 4 reaches only GPU 0 and no ring closes; two are a guess: the
    # published 37.2 GB/s is more than one link carries, so two rings are taken to go through 0.
    rings=(1, 2, 4, 2, 2, 4, 6),
    published=_gigabytes(22.6, 45.1, 85.4, 37.2, 45.7, 87.0, 134.5),
    granule=Bytes(64 << 10),
    # NCCL writes 20; with 10 us (NCCL 2.10) the curves leave LL128 where 18.5 to 19.2 puts it.
    tuner_ring=BytesPerSecond(19e9),
    tuner_ll128_start=Seconds(10.0e-6),
    constants=Constants(
        launch=Seconds(2.016e-05),
        hop=Seconds(1.947e-06),
        granule_share=0.1542,
        ramp=0.003993,
        ramp_bytes=84650000.0,
        ll128_launch=Seconds(3.262e-05),
        ll128_hop=Seconds(2.016e-06),
        ll128_least=16380.0,
        ll128_rate=BytesPerSecond(7561000000.0),
    ),
)

MACHINES: Mapping[str, ProtocolMachine] = {machine.name: machine for machine in (_A100, _V100)}
