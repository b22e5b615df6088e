"""Templates of the PyTorch script: meta-device initialisation and checkpoint loading. Enters:
nothing. Leaves: templates to fill.

A model is built on the meta device, cut there, and given memory for the pieces of a rank only. Rank
0 alone builds it with values, in its host's memory, and hands them out a tensor at a time: then
training begins with the weights of one device. With a checkpoint to load nobody does.
"""

from __future__ import annotations

EMPTY = '''
@contextmanager
def without_weights():
    """Parameters take no memory until a rank's pieces of them are known; buffers have values."""
    register = nn.Module.register_parameter

    def register_empty(module, name, parameter):
        if parameter is not None and not parameter.is_meta:
            if not hasattr(parameter, "empty"):  # else it is used twice, and stays one
                parameter.empty = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            parameter = parameter.empty
        register(module, name, parameter)

    nn.Module.register_parameter = register_empty
    try:
        yield
    finally:
        nn.Module.register_parameter = register

'''

WEIGHTS = '''
def tensors(model):
    """Parameters and buffers under the plain model's names."""
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        yield name.replace("_checkpoint_wrapped_module.", ""), own


@torch.no_grad()
def materialise(model, device):
    """Memory for the pieces that this rank holds; buffers keep their values, ties stay."""
    buffers, names = dict(model.named_buffers()), {}
    for name, own in model.named_parameters(remove_duplicate=False):
        names.setdefault(own, []).append(name)
    model.to_empty(device=device)
    for name, own in buffers.items():
        if not own.is_meta:
            model.get_buffer(name).copy_(own)
    for first, *others in names.values():
        for other in others:
            module, _, attribute = other.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(first))


def piece(whole, own):
    """Of a whole tensor what this rank holds: FSDP has cut what the tensor axis had left."""
    mesh = own.device_mesh
    for axis in reversed(range(mesh.ndim)):
        dim = getattr(own.placements[axis], "dim", None)
        if dim is not None:
            pieces, index = whole.chunk(mesh.size(axis), dim), mesh.get_local_rank(axis)
            whole = pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)
    return whole


@torch.no_grad()
def fill(models, plain, dtype, device, seed):
    """Weights as one device begins with: rank 0 alone has all of them, in its host's memory, and
    every rank keeps its pieces of each tensor that passes."""
    whole, held = {}, {}
    for model in models:
        for name, own in tensors(model):
            held.setdefault(name, []).append(own)
    if dist.get_rank() == 0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole = dict(tensors(build()[0].to(dtype)))
    for name, like in plain.items():
        passing = torch.empty(like.shape, dtype=like.dtype, device=device)
        if whole:
            passing.copy_(whole[name])
        dist.broadcast(passing, 0)
        for own in held.get(name, ()):
            if isinstance(own, DTensor):
                own.to_local().copy_(piece(passing, own))
            else:
                own.copy_(passing)
'''

BUILDING = """        with without_weights():
            model, *self.batch, {loss}, targets = build()
"""

BUILDING_WHOLE = """        # The model reads weights while it is built: every rank has all of them
        model, *self.batch, {loss}, targets = build()
"""
