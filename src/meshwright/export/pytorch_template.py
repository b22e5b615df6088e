"""Templates of the PyTorch training script. Enters: nothing. Leaves: templates to fill.

A script has the pieces that its plan needs and no others; it imports torch and the user's model.
"""

from __future__ import annotations

IMPORTS = """{standard}

import torch
import torch.distributed as dist
{imports}
"""

BUILD = '''
def build():
    """The model, the arguments of one step (all samples), and how its output becomes a loss.

    {words}
    """
{body}
'''

BUILD_NOTHING = """
raise NotImplementedError("the plan names no model: write it here")
return model, inputs, {}, loss, targets
"""

MESH = '''
def build_mesh(device):
    """Ranks in the plan's order: of the machine's factors {factors} each axis has its own."""
    ranks = torch.arange(PIPELINE * REPLICATE * SHARD * TENSOR).reshape({sizes})
    ranks = ranks.permute({order}).reshape(PIPELINE, REPLICATE, SHARD, TENSOR)
    return DeviceMesh(device, ranks, mesh_dim_names=("pipeline", "replicate", "shard", "tensor"))
'''

MATCHED = '''
def matched(model, pattern):
    """The modules of a name in which * stands for any layer, as far as they are there."""
    words = pattern.split(".")
    for name, module in model.named_modules():
        parts = name.split(".")
        if len(parts) == len(words) and all(w in ("*", p) for w, p in zip(words, parts)):
            yield module
'''

RECOMPUTE = '''
def recompute(model):
    """Activation checkpointing: layers run again in the backward pass."""
    for name, module in list(model.named_modules()):
        if name in RECOMPUTED:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, checkpoint_wrapper(module))
'''

SHARD = '''
def shard(model, mesh):
    """Data parallelism: {words}; a layer is a group of its own."""
    how = {{"mesh": mesh[{axes}], "reshard_after_forward": {reshard}{policy}}}
    for layer in {layers}:
        fully_shard(layer, **how)
    fully_shard(model, **how)
{again}{steps}'''

LAYERS_OF_MODEL = "[own for name in LAYERS for own in matched(model, name)]"
LAYERS_OF_STAGE = "[model.model.get_submodule(name) for name in model.names]"

AGAIN = """    # PipelineStage would keep what backward passes gather until the last micro-batch.
    model.set_reshard_after_backward = lambda *reshard, **how: None
"""

STAGE = '''
class Skip(nn.Module):
    """Stands for a module that another stage has."""

    def __init__(self, width=None):
        super().__init__()
        self.width = width

    def forward(self, x=None, *others, **named):
        x = x if x is not None else next(iter(named.values()))
        if self.width is None:
            return x
        return torch.zeros((), device=x.device).expand(*x.shape, self.width)

{handed}
class Ended(Exception):
    """What a stage has to compute is computed."""


class Stop(nn.Module):
    """Stands for what comes behind the layers, which the last stage has."""

    def forward(self, *inputs, **named):
        raise Ended


class Stage(nn.Module):
    """Some layers of a model, run by the model's own forward: what other stages have is skipped,
    and hidden states enter the first layer from the stage before."""

    def __init__(self, model, names, first, last, loss, mesh):
        super().__init__()
        held = [p for p in LAYERS if p not in names]
        ends = () if last else AFTER
        for name in (*held, *(() if first else BEFORE), *ends):
            parent, _, attribute = name.rpartition(".")
            width = getattr(model.get_submodule(name), "embedding_dim", None)
            other = Stop() if name in ends else Skip(width)
            setattr(model.get_submodule(parent), attribute, other)
        self.model, self.first, self.last, self.loss, self.mesh = model, first, last, loss, mesh
        self.names, self.entering, self.leaving = names, None, None

    def connect(self):
        """Let hidden states in and out; before all hooks of FSDP, and behind them."""
        if not self.first:
            layer = self.model.get_submodule(self.names[0])
            layer.register_forward_pre_hook(self.enter, prepend=True, with_kwargs=True)
        if not self.last:
            self.model.get_submodule(self.names[-1]).register_forward_hook(self.leave)

    def enter(self, module, inputs, named):
        if inputs:
            return (self.entering, *inputs[1:]), named
        return (), {{**named, next(iter(named)): self.entering}}

    def leave(self, module, inputs, output):
        self.leaving = output if isinstance(output, torch.Tensor) else output[0]

    def forward(self, hidden, inputs, named, targets):
        self.entering = {enter}
        try:
            output = self.model(*inputs, **named)
        except Ended:
            output = None
        if not self.last:
            return {leave}
        loss = self.loss(output, *targets) if self.loss else output["loss"]
        return (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).reshape(1)
'''

HANDED = """
HIDDEN = {hidden}  # how hidden states lie on the tensor axis between stages


"""

BATCH = '''
def part(batch, ways, index, samples):
    """Of all that has the samples first the share of one of several ranks or micro-batches."""
    if isinstance(batch, (tuple, list)):
        return type(batch)(part(own, ways, index, samples) for own in batch)
    if isinstance(batch, dict):
        return {name: part(own, ways, index, samples) for name, own in batch.items()}
    if not isinstance(batch, torch.Tensor) or not batch.dim() or batch.shape[0] != samples:
        return batch
    return batch.chunk(ways)[index]


def own_samples(batch, mesh, device):
    """The samples of this rank: a batch has those of all ranks."""
    index = mesh.get_local_rank("replicate") * SHARD + mesh.get_local_rank("shard")

    def move(own):
        if isinstance(own, (tuple, list)):
            return type(own)(map(move, own))
        if isinstance(own, dict):
            return {name: move(value) for name, value in own.items()}
        return own.to(device) if isinstance(own, torch.Tensor) else own

    return move(part(batch, REPLICATE * SHARD, index, SAMPLES))


def averaged(loss, mesh):
    """The loss of all samples; every rank has as many."""
    loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss.clone()
    for axis in ("replicate", "shard"):
        dist.all_reduce(loss, group=mesh.get_group(axis))
    return loss.item() / (REPLICATE * SHARD)
'''

TRAIN = '''
class Training:
    """The model laid out by the plan, and its optimizer."""

    def __init__(self, device, dtype=None, seed=0, weights=True{argument}):
        self.mesh, self.device = build_mesh(device.type), device
        dtype = {dtype} if dtype is None else dtype
        torch.manual_seed(seed)  # the same batch on every rank
{building}        self.batch.append(targets)
        model = model.to(dtype=dtype)
        plain = dict(tensors(model))
{layout}{compiled}{shard}        self.model = model
        materialise(model, device)
        if weights:
            fill([model], plain, dtype, device, seed)
        self.optimizer = {optimizer}

    def step(self, batch):
        """One training step on the samples of all ranks: (inputs, named inputs, targets)."""
        batch = own_samples(batch, self.mesh, self.device)
        self.optimizer.zero_grad()
        total = 0.0
        for number in range(MICRO_BATCHES):
            inputs, named, targets = part(batch, MICRO_BATCHES, number, OWN_SAMPLES)
{sync}            output = self.model(*inputs, **named)
            loss = self.loss(output, *targets) if self.loss else output["loss"]
            (loss / MICRO_BATCHES).backward()
            total = total + loss.detach() / MICRO_BATCHES
        self.optimizer.step()
        return averaged(total, self.mesh)
'''

COMPILED = """        if compiled:
            for layer in [own for name in LAYERS for own in matched(model, name)] or [model]:
                layer.compile(backend=compiled)
"""

COMPILE = """    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND",
                        help="torch.compile of every layer")  # fmt: skip
"""

TRAIN_PIPELINE = '''
class Training:
    """The stages of this rank laid out by the plan, their schedule and optimizer."""

    def __init__(self, device, dtype=None, seed=0, weights=True):
        self.mesh, self.device = build_mesh(device.type), device
        dtype = {dtype} if dtype is None else dtype
        torch.manual_seed(seed)  # the same batch on every rank
{building}        self.batch.append(targets)
        model = model.to(dtype=dtype)
        plain = dict(tensors(model))
        rank, group = self.mesh.get_local_rank("pipeline"), self.mesh.get_group("pipeline")
        self.parts, stages = [], []
        for number in range(rank, len(STAGES), PIPELINE):
            first, last = number == 0, number == len(STAGES) - 1
            model_part = copy.deepcopy(model)
{layout}            own = Stage(model_part, STAGES[number], first, last, loss, self.mesh)
{shard}            own.connect()
            materialise(own, device)
            self.parts.append(own)
            stages.append(PipelineStage(own, number, len(STAGES), device, group=group))
        if weights:
            fill([own.model for own in self.parts], plain, dtype, device, seed)
        self.last = rank == PIPELINE - 1
        self.schedule = {schedule}({given}, MICRO_BATCHES, loss_fn=lambda loss, _: loss.sum())
        own_parameters = [p for own in self.parts for p in own.parameters()]
        self.optimizer = {optimizer}

    def step(self, batch):
        """One training step on the samples of all ranks: (inputs, named inputs, targets)."""
        inputs, named, targets = own_samples(batch, self.mesh, self.device)
        self.optimizer.zero_grad()
        given = {{"inputs": inputs, "named": named, "targets": targets}}
        first = next(own for own in (*inputs, *named.values()) if isinstance(own, torch.Tensor))
        losses = []
        arguments = (first,) if self.mesh.get_local_rank("pipeline") == 0 else ()
        target = first if self.last else None
        self.schedule.step(*arguments, target=target, losses=losses if self.last else None,
                           return_outputs=False, **given)  # fmt: skip
        self.optimizer.step()
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        if losses:
            total = torch.stack(losses).mean().double()
        dist.broadcast(total, group=self.mesh.get_group("pipeline"), group_src=PIPELINE - 1)
        return averaged(total, self.mesh)
'''

MACHINE = '''
def check_machine(device):
    """Refuse another machine than the planned one: {words}."""
    gpu = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if gpu else {memory}
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (socket.gethostname(), memory))
    hosts = [found[first : first + {gpus}] for first in range(0, len(found), {gpus})]
    apart = [len({{name for name, _ in host}}) > 1 for host in hosts]
    if any(apart) or len({{host[0][0] for host in hosts}}) < len(hosts):
        raise SystemExit("the plan is for {hosts} hosts of {gpus} ranks; --anywhere runs it")
    if min(memory for _, memory in found) < 0.9 * {memory}:
        raise SystemExit("the plan is for devices with {memory} bytes; --anywhere runs it")
'''

MAIN = """
def main():
    parser = argparse.ArgumentParser(description="Train by the plan; start it with torchrun.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--save", help="a folder for a checkpoint (DCP) at the end")
    parser.add_argument("--load", help="a checkpoint to begin with, of any layout")
{compile}    parser.add_argument("--anywhere", action="store_true", help="on any machine")
    asked = parser.parse_args()
    gpu = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count())
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    if dist.get_world_size() != PIPELINE * REPLICATE * SHARD * TENSOR:
        raise SystemExit(f"the plan is for {{PIPELINE * REPLICATE * SHARD * TENSOR}} ranks")
    if not asked.anywhere:
        check_machine(device)
    training = Training(device, weights=not asked.load{compiled})
    if asked.load:
        load(training, asked.load)
    for number in range(asked.steps):
        with {contexts}:
            loss = training.step(tuple(training.batch))  # put your batches here
        if dist.get_rank() == 0:
            print(f"step {{number}}: loss {{loss:.6f}}", flush=True)
    if asked.save:
        save(training, asked.save)
    dist.destroy_process_group()
    if not gpu:
        os._exit(0)  # gloo's threads may outlive their groups, and abort while Python ends


if __name__ == "__main__":
    main()
"""

CHECKPOINT = '''
def state(training):
    """Parameters and optimizer state under the plain model's names, as DTensors: a checkpoint can
    be loaded by any other layout."""
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer}


def save(training, folder):
    checkpoint.save(state(training), checkpoint_id=folder)


def load(training, folder):
    own = state(training)
    checkpoint.load(own, checkpoint_id=folder)
    set_state_dict(training.model, training.optimizer, model_state_dict=own["model"],
                   optim_state_dict=own["optimizer"])  # fmt: skip
'''

CHECKPOINT_PIPELINE = '''
def state(training):
    """Parameters and optimizer state of this rank's stages under the plain model's names."""
    models = [own.model for own in training.parts]
    found = [get_state_dict(own, training.optimizer) for own in models]
    return {"model": {k: v for m, _ in found for k, v in m.items()}}


def save(training, folder):
    checkpoint.save(state(training), checkpoint_id=folder)


def load(training, folder):
    own = state(training)
    checkpoint.load(own, checkpoint_id=folder)
    for part_ in training.parts:
        set_model_state_dict(part_.model, own["model"], options=StateDictOptions(strict=False))
'''
