#!/bin/bash
# 4 GPUs: copies of Adam's state on every one of them.
torchrun --nproc_per_node 4 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 \
    --micro-batch-size 8 --global-batch-size 32 --bf16
