"""Cross-rank consistency check: fixed-size digests compared by one all_gather. Enters: each one's
statement. Leaves: nothing, or their difference.

Ranks that run different plans would wait for each other for ever, or compute nonsense. So each says
in a few words of fixed size what it is about to do (digests for what is long), in one all_gather,
and those that differ are named, with both values, by one sentence that is the same on every rank.
It does not know plans or graphs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec
import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.base.version import VERSION

WIDTH = 48
"""Bytes of one value on the way; longer ones are cut to their digest."""

WORDS = {
    "torch": ("torch", "install the same version of torch everywhere"),
    "meshwright": ("meshwright", "install the same version of meshwright everywhere"),
    "ranks": ("for ranks numbering", "start every rank with the same WORLD_SIZE"),
    "backend": ("on the backend", "give every rank the same backend"),
    "plan": ("the plan", "give every rank the same plan file"),
    "graph": ("the graph", "build the same model with the same sizes on every rank"),
    "dtype": ("with the numbers", "give every rank the same dtype"),
    "extra": ("with", "give every rank the same options"),
}
"""What each value is called behind "runs", and what to do about a difference."""


class DisagreementError(InputError):
    """Ranks that are about to do different things."""


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is about to do."""

    ranks: int
    backend: str
    plan: str
    """A digest."""
    graph: str
    """A digest."""
    dtype: str
    extra: str = ""
    """Whatever else has to be the same."""
    torch: str = torch.__version__
    meshwright: str = VERSION


def digest(content: bytes) -> str:
    """Sixteen characters that differ where contents do.

    >>> digest(b"a plan")
    'a27fa2bacd5796b8'
    """
    return hashlib.sha256(content).hexdigest()[:16]


def agree(statement: Statement, device: torch.device | None = None) -> None:
    """Return if all ranks state the same; else raise the same `DisagreementError` on each."""
    # NCCL sends only what lies on its device.
    sent = torch.frombuffer(bytearray(packed(statement)), dtype=torch.uint8).to(device or "cpu")
    heard = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(heard, sent)
    disagreement = differences([unpacked(bytes(one.cpu().tolist())) for one in heard])
    if disagreement is not None:
        raise disagreement


def packed(statement: Statement) -> bytes:
    """The values of a statement, each in as many bytes."""
    return b"".join(_fitted(str(value)) for value in msgspec.structs.astuple(statement))


def _fitted(value: str) -> bytes:
    content = value.encode()
    if len(content) > WIDTH:
        content = f"digest {digest(content)}".encode()
    return content.ljust(WIDTH, b"\0")


def unpacked(content: bytes) -> dict[str, str]:
    """The values of a statement by name, as they travelled."""
    return {
        field: content[at * WIDTH : (at + 1) * WIDTH].rstrip(b"\0").decode()
        for at, field in enumerate(Statement.__struct_fields__)
    }


def differences(statements: Sequence[dict[str, str]]) -> DisagreementError | None:
    """What ranks state differently; None if they agree.

    Those are named that differ from most, and of as many from the side of rank 0.

    >>> print(differences([{"torch": "2.13.0"}, {"torch": "2.12.0"}]))
    rank 1 runs torch 2.12.0, rank 0 2.13.0; install the same version of torch everywhere.
    """
    pairs = [
        (problem, WORDS[name][1])
        for name in WORDS.keys() & statements[0].keys()
        if (problem := _difference(name, [statement[name] for statement in statements]))
    ]
    if not pairs:
        return None
    problems, remedies = zip(*sorted(pairs), strict=True)
    return DisagreementError(", and ".join(problems), ", and ".join(remedies))


def _difference(name: str, values: Sequence[str]) -> str | None:
    """Who states something else than most.

    >>> _difference("plan", ["a", "b", "a", "a"])
    'rank 1 runs the plan b, rank 0 a'
    """
    # Of equal counts the one that was met first is the most common: that of rank 0.
    common = Counter(values).most_common(1)[0][0]
    named = values.index(common)
    others = {
        value: [r for r, v in enumerate(values) if v == value] for value in dict.fromkeys(values)
    }
    parts = [
        f"{_names(ranks)} {WORDS[name][0]} {value or 'nothing'}"
        for value, ranks in others.items()
        if value != common
    ]
    return f"{' and '.join(parts)}, rank {named} {_shown(common)}" if parts else None


def _shown(value: str) -> str:
    return value or "(nothing)"


def _names(ranks: Sequence[int]) -> str:
    """Ranks and their verb.

    >>> _names([1]), _names([1, 2, 5]), _names(list(range(1, 9)))
    ('rank 1 runs', 'ranks 1, 2, 5 run', 'ranks 1, 2, 3, 4 and 4 more run')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]} runs"
    shown = ", ".join(map(str, ranks[: 4 if len(ranks) > 5 else 5]))
    more = f" and {len(ranks) - 4} more" if len(ranks) > 5 else ""
    return f"ranks {shown}{more} run"
