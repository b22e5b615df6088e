#!/bin/bash
# 4 nodes x 4 GPUs behind one NIC a node: every layer's sums cross two nodes.
torchrun --nproc_per_node 4 --nnodes 4 pretrain_gpt.py \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50304 \
    --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer \
    --micro-batch-size 4 --global-batch-size 32 --bf16
