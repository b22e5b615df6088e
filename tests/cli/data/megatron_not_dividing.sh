#!/bin/bash
# 4 nodes x 8 GPUs. 12 layers on 8 stages; 512 samples are no multiple of 3 x 1.
TP=4
PP=8
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
    --num-layers 12 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
    --micro-batch-size 3 --global-batch-size 512 --bf16
