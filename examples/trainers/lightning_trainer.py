"""PyTorch Lightning by a plan: torchrun --nproc-per-node 2 lightning_trainer.py plan.json.

To Lightning every rank is alone on one device: the plan does what a strategy would.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.environments import LightningEnvironment
from model import BATCH, Samples, build
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

import meshwright


class Training(lightning.LightningModule):
    """A loss outside of the model, as most of Lightning's modules have it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.losses = model, list[Tensor]()

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
        """The loss of this rank's samples."""
        logits = self.model(x=batch["x"])["logits"]
        loss = functional.cross_entropy(logits, batch["labels"])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over DTensors."""
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)


dist.init_process_group("gloo")
with meshwright.parallelize(build()[0], meshwright.load_plan(sys.argv[1])) as model:
    samples, (shares, own) = Samples(), model.data_share
    sampler = DistributedSampler(samples, shares, own, shuffle=False)
    loader = DataLoader(samples, BATCH // shares, sampler=sampler)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        plugins=[LightningEnvironment()],
        max_epochs=2,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        enable_checkpointing=False,  # model.save(path, optimizer) does
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Training(model)
    trainer.fit(module, loader)
    losses = torch.stack(module.losses)
    dist.all_reduce(losses)
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.4f}" for loss in losses / dist.get_world_size()))
dist.destroy_process_group()
