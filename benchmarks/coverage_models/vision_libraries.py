"""Networks of timm and torchvision by name, in training, with nothing dropped out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
Built = tuple[nn.Module, tuple[Tensor, ...], object, tuple[Tensor, ...]]


def timm(name: str, side: int, batch: int = 8) -> Built:
    from timm import create_model

    try:
        model = create_model(name, num_classes=CLASSES, img_size=side)
    except TypeError:  # A network of convolutions takes images of any size.
        model = create_model(name, num_classes=CLASSES)
    return _classifier(model, side, batch)


def torchvision(name: str, side: int, batch: int = 8) -> Built:
    from torchvision import models

    build: Callable[..., nn.Module] = models.get_model_builder(name)
    drawn = {"init_weights": False} if name == "googlenet" else {}  # Minutes by SciPy.
    return _classifier(build(num_classes=CLASSES, **drawn), side, batch)


def _classifier(model: nn.Module, side: int, batch: int) -> Built:
    for module in model.modules():
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            vars(module)["p"] = 0.0
    return model, (torch.randn(batch, 3, side, side),), _loss, (_targets(batch),)


def _targets(batch: int) -> Tensor:
    return torch.randint(0, CLASSES, (batch,))


def _loss(output: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
    """Of all heads: auxiliary classifiers and tokens of distillation have some of their own."""
    heads = output if isinstance(output, tuple) else (output,)
    return torch.stack([functional.cross_entropy(head, targets) for head in heads]).mean()
