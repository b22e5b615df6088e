"""Software by name: eager PyTorch, torch.compile, Megatron. Enters: a name, or what a framework's
file says. Leaves: `Software`, and clusters whose devices run it, so that everything that is priced
on one cluster is priced as the same software runs it.
"""

from __future__ import annotations

from msgspec.structs import replace

from meshwright.base.errors import InputError, nearest
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import HIDDEN_EXCHANGE, HIDDEN_TENSOR, Software

EAGER, COMPILED, MEGATRON = "eager", "compiled", "megatron"

WORDS = {
    EAGER: "eager PyTorch",
    COMPILED: "compiled PyTorch (fused kernels)",
    MEGATRON: "Megatron (fused kernels, gradients in float32)",
}
"""What each is called."""


def megatron_software(
    *, tensor_overlap: bool, copies: int = 0, exchange_overlap: bool = False, products: str = ""
) -> Software:
    """Megatron's kernels: fused, with gradients in float32; tokens are sent once to a machine
    where the number of their copies is given.
    """
    return Software(
        fuses=True,
        wide=True,
        products=products,
        dispatched=copies,
        hidden_exchange=HIDDEN_EXCHANGE if exchange_overlap else 0.0,
        hidden_tensor=HIDDEN_TENSOR if tensor_overlap else 0.0,
    )


KNOWN = {
    EAGER: Software(),
    COMPILED: Software(fuses=True),
    MEGATRON: megatron_software(tensor_overlap=True),
}
"""What a name means; Megatron's tensor-parallel collectives overlap, as in NVIDIA's recipes."""


def cluster_with_software(cluster: Cluster, name: str | None) -> Cluster:
    """A cluster whose devices run software of that name, in the precision that they are asked for;
    without a name what the cluster says, which is eager PyTorch unless its file says otherwise.

    >>> describe_software(cluster_with_software(Cluster.named("dgx-h100"), "compiled"))
    'compiled PyTorch (fused kernels)'
    """
    if name is None:
        return cluster
    if name not in KNOWN:
        raise InputError(f"the software is {name!r}", nearest(name, KNOWN))
    return _with(cluster, KNOWN[name])


def running(cluster: Cluster, software: Software) -> Cluster:
    """The same with what a framework's file says; a cluster that has its own software keeps it."""
    if software == Software() or replace(cluster.device.running, products="") != Software():
        return cluster
    return _with(cluster, software)


def _with(cluster: Cluster, software: Software) -> Cluster:
    updated = replace(software, products=cluster.device.running.products or software.products)
    return replace(cluster, device=replace(cluster.device, software=updated))


def describe_software(cluster: Cluster) -> str:
    """What runs kernels on a cluster, in words.

    >>> describe_software(Cluster.named("dgx-h100"))
    'eager PyTorch'
    """
    running = cluster.device.running
    plain = replace(running, products="")
    named = next((WORDS[name] for name, known in KNOWN.items() if known == plain), None)
    words = [named or f"{'fused' if running.fuses else 'eager'} kernels"]
    if named is None and running.wide:
        words.append("gradients in float32")
    if running.products:
        words.append(f"products in {running.products}")
    return ", ".join(words)
