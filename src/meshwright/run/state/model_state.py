"""Loading and gathering a model's state_dict: each rank takes its shards. Enters: a `state_dict` of
the plain module. Leaves: this rank's pieces; or the whole state again, gathered tensor by tensor.

Each rank takes only what it keeps, so that a state that lies in a file (`torch.load` with mmap) is
never whole in memory. A tied weight is there under each of its names. Buffers are whole on every
rank; what operators wrote to them is taken from who did. Files are the business of `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.operator_graph import OperatorGraph, Parameter, Spec
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import elements, full, overlap, shape_of, within
from meshwright.lower.ownership import Holdings, Region
from meshwright.run.comm.resharding import cut
from meshwright.run.exec.executor import Executor

Keeps = Callable[[Executor, Holdings, str], tuple[tuple[Region, ...], Tensor]]
"""What a rank keeps of a parameter or buffer, and where that lies in the whole."""


def load_state(
    executor: Executor, state: Mapping[str, Tensor], *, keys: Collection[str] | None = None
) -> None:
    """Take over the state of a plain module, of which nothing may be missing or too much.

    `keys` are those of the module's own state_dict; a graph does not know buffers that no operator
    reads. Without them only such beside others that are read are let through, as batch norms have.
    """
    specs = {key: spec_of(state[key]) for key in state}
    refuse_state_mismatch(executor, specs, "the state", keys)
    holdings = Holdings(executor.script)
    for parameter in executor.script.plan.graph.parameters:
        piece = executor.parameters.pieces.get(parameter.tensor.name)
        if piece is not None:
            value = state[names_of(parameter)[-1]].detach()
            for region in holdings.regions(piece.name, executor.rank):
                region_of(piece.seen, region).copy_(cut(value, region.box))
    for key in others(executor, specs):
        put_buffer(executor, key, state[key].detach())


def put_buffer(executor: Executor, key: str, value: Tensor) -> None:
    """Take over a buffer's value; its memory stays where others know it."""
    buffer = executor.buffers.get(key)
    if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
        # Regions of it are read as one row, however the module's own lies in memory.
        executor.buffers[key] = value.to(
            executor.device, copy=True, memory_format=torch.contiguous_format
        )
    else:
        buffer.copy_(value)


def share_buffers(executor: Executor, model: nn.Module) -> None:
    """Have a buffer that the module has under several names be one here, too."""
    first: dict[int, str] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name in executor.buffers:
            executor.buffers[name] = executor.buffers[first.setdefault(id(buffer), name)]


def buffer_names(executor: Executor) -> Iterator[tuple[str, ...]]:
    """All names of each buffer, first the one by which the graph knows it."""
    known, aliases = executor.script.plan.graph.stored, dict[int, list[str]]()
    for name, buffer in executor.buffers.items():
        aliases.setdefault(id(buffer), []).append(name)
    yield from (
        tuple(sorted(names, key=lambda alias: alias not in known)) for names in aliases.values()
    )


def take_constants(executor: Executor, values: Mapping[str, Tensor]) -> None:
    """Take over those buffers of the graph that a state_dict of the module does not have."""
    for buffer in executor.script.plan.graph.buffers:
        if buffer.name in values:
            value = values[buffer.name].detach()
            executor.constants[buffer.name] = value.to(executor.device, copy=True)


def full_state(executor: Executor, *, to_rank: int | None = 0) -> dict[str, Tensor] | None:
    """The state of the plain module, on one rank or, with None, on all; on the others None.

    All ranks take part. What no operator reads is as it was loaded.
    """
    holdings = Holdings(executor.script)
    state: dict[str, Tensor] = {}
    for names in _entries(executor):
        whole = _gathered(executor, holdings, names[0], to_rank or 0, local_regions_of)
        if to_rank is None:
            whole = _everywhere(executor, names[0], whole)
        if whole is not None:
            state |= dict.fromkeys(names, whole.cpu())
    return state if to_rank in (None, executor.rank) else None


def full_gradients(executor: Executor) -> dict[str, Tensor] | None:
    """Whole gradients of the last step by parameter, on the first rank; on the others None.

    All ranks take part. What has none, on the rank that keeps it, has zeros.
    """
    holdings, graph = Holdings(executor.script), executor.script.plan.graph
    kept = set(executor.script.parallel.made)
    gradients: dict[str, Tensor] = {}
    for parameter in graph.parameters:
        name = parameter.tensor.name
        if name in kept and parameter.trainable:
            whole = _gathered(executor, holdings, name, 0, _gradient_of)
            if whole is not None:
                gradients[name] = whole.cpu()
    return gradients if executor.rank == 0 else None


def _gradient_of(
    executor: Executor, holdings: Holdings, name: str
) -> tuple[tuple[Region, ...], Tensor]:
    """The gradient of what this rank keeps of a parameter, and where."""
    regions, kept = local_regions_of(executor, holdings, name)
    piece = executor.parameters.pieces.get(name)
    gradient = None if piece is None else piece.accumulated
    return regions, torch.zeros_like(kept) if gradient is None else gradient


def _entries(executor: Executor) -> Iterator[tuple[str, ...]]:
    """The names of every tensor of the state; several if it is tied."""
    graph, kept = executor.script.plan.graph, set(executor.script.parallel.made)
    yield from (
        names_of(parameter) for parameter in graph.parameters if parameter.tensor.name in kept
    )
    yield from buffer_names(executor)


def _gathered(
    executor: Executor, holdings: Holdings, name: str, root: int, keeps: Keeps
) -> Tensor | None:
    """A whole tensor on one rank, of what each keeps of it."""
    if name not in holdings.shares:
        return executor.buffers[name].clone() if executor.rank == root else None
    regions, kept = keeps(executor, holdings, name)
    spec = executor.script.plan.graph.stored[name]
    whole = None
    if executor.rank == root:
        whole = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=executor.device)
    sends, receives = list[tuple[int, Tensor]](), list[tuple[int, Tensor]]()
    for share in holdings.shares[name]:
        if share.device == executor.rank:
            part = view_of_box(kept, regions, share.box)
            if whole is None:
                sends.append((root, part))
            else:
                cut(whole, share.box).copy_(part)
        elif whole is not None:
            receives.append((share.device, cut(whole, share.box)))
    executor.wire.exchange(sends, receives)
    executor.wire.finish()
    return whole


def _everywhere(executor: Executor, name: str, whole: Tensor | None) -> Tensor:
    """What the first rank has, on all."""
    if name not in executor.script.plan.graph.stored:
        return executor.buffers[name].clone()
    spec = executor.script.plan.graph.stored[name]
    if whole is None:
        whole = torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device=executor.device)
    executor.wire.broadcast(whole, tuple(range(dist.get_world_size())))
    return whole


def local_regions_of(
    executor: Executor, holdings: Holdings, name: str
) -> tuple[tuple[Region, ...], Tensor]:
    """What this rank keeps of a parameter or buffer that operators read, and where."""
    if name in executor.buffers:
        whole = executor.buffers[name]
        return (Region(full(whole.shape), 0),), whole
    piece = executor.parameters.pieces.get(name)
    if piece is None:
        return (), torch.empty(0, dtype=torch_dtype(executor.script.plan.graph.specs[name].dtype))
    return holdings.regions(name, executor.rank), piece.seen


def region_of(kept: Tensor, region: Region) -> Tensor:
    """A region of what a rank keeps, as a view."""
    row = kept.detach().view(-1)
    return row[region.first : region.first + elements(region.box)].view(shape_of(region.box))


def view_of_box(kept: Tensor, regions: Sequence[Region], box: Box) -> Tensor:
    """A box that lies inside of one region of what a rank keeps, as a view."""
    region = next(
        candidate for candidate in regions if not box or overlap(candidate.box, box) == box
    )
    return cut(region_of(kept, region), within(box, region.box))


def names_of(parameter: Parameter) -> tuple[str, ...]:
    """Under which names a state has a parameter."""
    return (parameter.tensor.name, *parameter.also)


def others(executor: Executor, keys: Collection[str]) -> list[str]:
    """The keys of a state that are no parameters which operators read."""
    graph, kept = executor.script.plan.graph, executor.script.parallel.made
    read = {
        n
        for parameter in graph.parameters
        if parameter.tensor.name in kept
        for n in names_of(parameter)
    }
    return [key for key in keys if key not in read]


def spec_of(value: Tensor) -> Spec:
    """A tensor without its values."""
    return Spec(str(value.dtype).removeprefix("torch."), tuple(value.shape))


def refuse_state_mismatch(
    executor: Executor, specs: Mapping[str, Spec], what: str, keys: Collection[str] | None
) -> None:
    """A state is taken over only if it is that of the module which was captured."""
    graph = executor.script.plan.graph
    known = _known(graph)
    read = [key for key in known if key not in executor.constants]
    needed = dict.fromkeys([*read, *executor.buffers, *(keys or ())])
    remedy = "give the state_dict of the module that was captured"
    missing = [key for key in needed if key not in specs]
    if missing:
        raise InputError(
            f"{what} has no {_counted(missing)}, which graph {graph.name!r} needs",
            f"{remedy}, and a tensor that its forward makes by itself as one of 'constants'",
        )
    extra = [key for key in specs if key not in needed and (keys or not _beside(key, graph))]
    if extra:
        raise InputError(
            f"{what} has {_counted(extra)}, which graph {graph.name!r} does not know", remedy
        )
    wrong = [key for key, spec in known.items() if key in specs and specs[key] != spec]
    if wrong:
        actual, expected = specs[wrong[0]], known[wrong[0]]
        raise InputError(
            f"{_counted(wrong)} in {what} is {_text(actual)}, in graph {graph.name!r} "
            f"{_text(expected)}",
            remedy if actual.shape != expected.shape else f"convert it to {expected.dtype}",
        )


def _known(graph: OperatorGraph) -> dict[str, Spec]:
    specs = {n: parameter.stored for parameter in graph.parameters for n in names_of(parameter)}
    return specs | {buffer.name: buffer.spec for buffer in graph.buffers}


def _beside(key: str, graph: OperatorGraph) -> bool:
    """Whether a key may be a buffer that nobody reads, of a module of which others are read."""
    owner = key.rpartition(".")[0]
    return any(buffer.name.rpartition(".")[0] == owner for buffer in graph.buffers)


def _counted(keys: Sequence[str]) -> str:
    more = len(keys) - 1
    return repr(keys[0]) + (f" (and {more} other{'s' if more > 1 else ''})" if more else "")


def _text(spec: Spec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"
