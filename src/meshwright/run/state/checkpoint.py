"""Checkpoints of `torch.distributed.checkpoint`. Enters: an executor, an optimizer, a folder.
Leaves: a checkpoint with the plain module's keys and whole shapes, of which each rank writes its
shares; or an executor that goes on from one, whatever plan, ranks or plain module wrote it.

    {"model": module.state_dict(), "optim": get_optimizer_state_dict(module, optimizer),
     "meshwright": {"steps": ...}}
is how a plain script reads and writes the same (the last only for random operators to go on). A
checkpoint is written beside its place and then renamed: there is never half of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from meshwright.base.errors import InputError
from meshwright.base.files import REMEDY
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.operator_graph import Spec
from meshwright.lower.ownership import Holdings
from meshwright.run.exec.executor import Executor
from meshwright.run.state.model_state import (
    buffer_names,
    names_of,
    others,
    put_buffer,
    refuse_state_mismatch,
)
from meshwright.run.state.optimizer_state import (
    empty_optimizer_state,
    put_optimizer_state,
    sharded_optimizer_state,
)
from meshwright.run.state.state_dicts import sharded

MODEL = "model."
METADATA = ".metadata"
"""The file that makes a folder a checkpoint; torch writes it last."""


def sharded_state(executor: Executor) -> dict[str, object]:
    """The state of the plain module with this rank's part of each tensor, for `dcp` to use."""
    holdings, graph = Holdings(executor.script), executor.script.plan.graph
    state: dict[str, object] = {}
    for parameter in graph.parameters:
        if parameter.tensor.name in holdings.shares:
            tensor = sharded(executor, holdings, parameter.tensor.name)
            state |= dict.fromkeys(names_of(parameter), tensor)
    for first, *also in buffer_names(executor):
        lies = first in holdings.shares
        value = sharded(executor, holdings, first) if lies else executor.buffers[first]
        state |= dict.fromkeys((first, *also), value)
    return state


def save_checkpoint(
    executor: Executor, path: str | Path, optimizer: Optimizer | None = None
) -> None:
    """Write a checkpoint into a folder, in place of an older one; all ranks take part."""
    whole = Path(path)
    part = whole.with_name(f".{whole.name}.part")
    _first_rank(lambda: _clear(whole, part))
    state: dict[str, Any] = {
        "model": sharded_state(executor),
        "meshwright": {"steps": executor.steps},
    }
    optimizing = sharded_optimizer_state(executor, optimizer)
    if optimizing is not None:
        state["optim"] = optimizing
    try:
        save(state, checkpoint_id=part)
    except CheckpointException as error:
        raise _told(error, f"cannot write {str(path)!r}") from None
    _first_rank(lambda: _place(part, whole))


def load_checkpoint(
    executor: Executor, path: str | Path, optimizer: Optimizer | None = None
) -> None:
    """Go on from a checkpoint; all ranks take part."""
    metadata = _metadata(Path(path))
    specs = _specs(metadata)
    refuse_state_mismatch(executor, specs, f"checkpoint {str(path)!r}", None)
    for key in others(executor, specs):
        shape, dtype = specs[key].shape, torch_dtype(specs[key].dtype)
        put_buffer(executor, key, torch.empty(shape, dtype=dtype))
    state: dict[str, Any] = {"model": sharded_state(executor)}
    if "meshwright.steps" in metadata.state_dict_metadata:
        state["meshwright"] = {"steps": 0}
    if optimizer is not None:
        state["optim"] = empty_optimizer_state(executor, optimizer, metadata, str(path))
    try:
        load(state, checkpoint_id=path)
    except CheckpointException as error:
        raise _told(error, f"cannot read {str(path)!r}") from None
    executor.steps = state.get("meshwright", {"steps": 0})["steps"]
    if optimizer is not None:
        put_optimizer_state(executor, optimizer, state["optim"])


def _metadata(path: Path) -> Metadata:
    if not (path / METADATA).is_file():
        raise InputError(
            f"there is no checkpoint in {str(path)!r}",
            "name a folder that torch.distributed.checkpoint has written",
        )
    return FileSystemReader(path).read_metadata()


def _specs(metadata: Metadata) -> dict[str, Spec]:
    """What a checkpoint has of the module."""
    return {
        key.removeprefix(MODEL): Spec(
            str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size)
        )
        for key, entry in metadata.state_dict_metadata.items()
        if key.startswith(MODEL) and isinstance(entry, TensorStorageMetadata)
    }


def _clear(whole: Path, part: Path) -> None:
    """Make room for a new checkpoint; a folder that is none is left alone."""
    if whole.exists() and not (whole / METADATA).is_file():
        raise InputError(f"{str(whole)!r} is there and is no checkpoint", "name another folder")
    if part.exists():
        shutil.rmtree(part)


def _place(part: Path, whole: Path) -> None:
    """Let a checkpoint take its place; the older one is there until then."""
    old = whole.with_name(f".{whole.name}.old")
    if whole.exists():
        whole.replace(old)
    part.replace(whole)
    if old.exists():
        shutil.rmtree(old)


def _first_rank(action: Callable[[], None]) -> None:
    """Have the first rank do something; if it cannot, all say why."""
    problem: list[tuple[str, str] | None] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except InputError as error:
            problem = [(error.problem, error.remedy)]
        except OSError as error:
            problem = [(f"cannot write {error.filename!r} ({error.strerror})", REMEDY)]
    dist.broadcast_object_list(problem)
    if problem[0] is not None:
        raise InputError(*problem[0])


def _told(error: CheckpointException, what: str) -> InputError:
    rank, (cause, _) = next(iter(sorted(error.failures.items())))
    return InputError(
        f"{what}: rank {rank} failed with {type(cause).__name__}: {cause}",
        "see that all ranks reach the folder, and that it has room",
    )
