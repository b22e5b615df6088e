"""Trial runs: the first small configuration of a class that its own forward pass takes.

Enters: configurations in the order in which they are wished for. Leaves: the first whose model runs
on its example inputs. Sizes of a class have to fit together in ways that only its code knows, so
each is built on the CPU and run once; nothing is traced. All processes choose alike, as all do so
from the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import torch

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example
from meshwright.capture.trace.tracing import silent
from meshwright.capture.transformers.inputs import Kinds

Build = Callable[[Any, Kinds], Example]
"""An example of a configuration, with these kinds of inputs, on the device of the context."""

MOST_PARAMETERS = 50_000_000
"""Of a model that is run only to see whether it runs."""


def first_that_runs(configs: Iterable[Any], build: Build) -> tuple[Any, Kinds]:
    """A configuration and kinds of inputs; the first that can be built if none runs."""
    built: list[tuple[Any, Kinds]] = []
    refused: list[InputError] = []
    for config, kinds in _trials(configs):
        try:
            runs = _runs(config, kinds, build)
        except InputError as error:
            refused.append(error)
            continue
        if runs:
            return config, kinds
        built.append((config, kinds))
    if not built:
        raise refused[0]
    return built[0]


def _trials(configs: Iterable[Any]) -> Iterator[tuple[Any, Kinds]]:
    """Configurations as they come, with the kinds of inputs that have a loss; then without one."""
    earlier: list[Any] = []
    for config in configs:
        earlier.append(config)
        yield from ((config, kinds) for kinds in Kinds if kinds is not Kinds.OUTPUTS)
    yield from ((config, Kinds.OUTPUTS) for config in earlier)


def _runs(config: Any, kinds: Kinds, build: Build) -> bool:
    with torch.device("meta"):
        empty = build(config, kinds)
    if sum(parameter.numel() for parameter in empty.model.parameters()) > MOST_PARAMETERS:
        return False
    with _unseen(), torch.device("cpu"):
        example = build(config, kinds)
        try:
            example.model(*example.inputs, **example.named)
        except Exception:
            # Whatever the class raises: these sizes, or these inputs, do not fit.
            return False
    return True


@contextmanager
def _unseen() -> Iterator[None]:
    """Leave no output and no random state behind."""
    with torch.random.fork_rng(), silent(), redirect_stdout(StringIO()), torch.no_grad():
        torch.manual_seed(0)
        yield
