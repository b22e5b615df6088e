"""Transformers' Trainer by a plan.

torchrun --nproc-per-node 2 transformers_trainer.py plan.json
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from model import BATCH, Samples, build
from torch.utils.data import DataLoader, DistributedSampler
from transformers import Trainer, TrainingArguments

import meshwright


class PlannedTrainer(Trainer):
    """Gives each rank its share of the samples, as the plan cuts them."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of this rank's samples."""
        shares, own = self.model.data_share
        sampler = DistributedSampler(self.train_dataset, shares, own, shuffle=False)
        return DataLoader(self.train_dataset, BATCH // shares, sampler=sampler)


arguments = TrainingArguments(
    "/tmp/trainer",
    use_cpu=True,
    num_train_epochs=2,
    learning_rate=0.01,
    max_grad_norm=1.0,
    gradient_accumulation_steps=2,
    logging_steps=1,
    remove_unused_columns=False,
    save_strategy="no",  # model.save(path, trainer.optimizer) does
    report_to="none",
    disable_tqdm=True,
)
if not dist.is_initialized():
    dist.init_process_group("gloo")
with meshwright.parallelize(build()[0], meshwright.load_plan(sys.argv[1])) as model:
    trainer = PlannedTrainer(model, arguments, train_dataset=Samples())
    trainer.train()
    if dist.get_rank() == 0:
        logged = [row for row in trainer.state.log_history if "loss" in row]
        print("losses", *(f"{float(row['loss']):.4f}" for row in logged))
        print("norms", *(f"{float(row['grad_norm']):.4f}" for row in logged))
dist.destroy_process_group()
