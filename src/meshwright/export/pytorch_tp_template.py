"""Templates of the PyTorch script: tensor parallelism (DTensor). Enters: nothing. Leaves: templates
to fill.
"""

from __future__ import annotations

TENSOR = '''
def parallelize(model, mesh):
    """Tensor parallelism (Megatron's): columns, then rows{sequence}.

    All other parameters become DTensors too, so that every value between the first table and the
    logits is one, and shapes which the model's code names stay true.
    """
    styles = {{
{styles}
    }}
    parallelize_module(model, mesh["tensor"], styles)
{gathered}{settled}{locally}    for name, own in list(model.named_parameters()):
        if isinstance(own, DTensor){skipped}:
            continue
        parent, _, attribute = name.rpartition(".")
        replicated = nn.Parameter(distribute_tensor(own, mesh["tensor"], [Replicate()]))
        setattr(model.get_submodule(parent), attribute, replicated)
{tied}'''

GATHERED = """    for pattern in {patterns}:  # what columns read: one collective in each pass
        for module in matched(model, pattern):
            module.register_forward_hook(lambda module, inputs, output: whole(output))
"""

SETTLED = """    for pattern in {patterns}:
        for module in matched(model, pattern):
            module.register_forward_hook(lambda module, inputs, output: settled(output))
"""

LOCALLY = """    local = set()
    for pattern in {patterns}:
        for module in matched(model, pattern):
            run_locally(module, mesh["tensor"])
            local |= set(map(id, module.parameters()))
"""

SKIPPED = " or id(own) in local"

LOCAL = '''
def run_locally(module, mesh):
    """Let a module that DTensor has no rules for compute on every rank of the tensor axis."""

    def local(own):
        return whole(own).to_local() if isinstance(own, DTensor) else own

    def copies(own):
        if not isinstance(own, torch.Tensor) or not own.is_floating_point():
            return own
        return DTensor.from_local(own, mesh, [Replicate()], run_check=False)

    def enter(module, inputs, named):
        return tree_map(local, inputs), tree_map(local, named)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(lambda module, inputs, output: tree_map(copies, output))
'''

SETTLED_FUNCTION = '''
def settled(own):
    """The same values; their gradient is summed here, before it reaches a table that is cut."""
    return own.redistribute(placements=own.placements)
'''

WHOLE = '''
def whole(own):
    """A DTensor that every rank of the tensor axis has all of."""
    return own.redistribute(placements=[Replicate()])
'''

TIED = """    for name, *others in {names}:  # parameters that the model uses twice
        for other in others:
            module, _, attribute = other.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(name))
"""

COMPUTING = '''
@contextmanager
def computing(device):
    """Tensors that are no DTensors count as replicated; attention is one that DTensor knows."""
    kinds = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with implicit_replication(), sdpa_kernel(kinds[-1:] if device.type == "cpu" else kinds):
        yield
'''
