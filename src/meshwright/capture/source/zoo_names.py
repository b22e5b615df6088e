"""The names of the zoo, for who must not wait for PyTorch; `zoo` holds the models themselves."""

from __future__ import annotations

ZOO = (
    "alexnet",
    "bert-large",
    "candle-uno",
    "dit-xl",
    "dlrm",
    "gpt2-xl",
    "gpt3-175b",
    "inception-v3",
    "lenet",
    "llama3-70b",
    "llama3-8b",
    "mixtral-8x7b",
    "mlp",
    "nmt",
    "resnet-101",
    "resnet-50",
    "resnext-50",
    "rnnlm",
    "rnntc",
    "sdxl-unet",
    "t5-large",
    "vit-large",
    "xdl",
)

PUBLISHED = (
    "deepseek-v3",
    "gemma3-1b",
    "gemma3-27b",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "llama3.1-405b",
    "llama3.1-8b",
    "llama3.3-70b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
    "whisper-large-v3",
)
"""Configurations of Transformers that come along: hf:NAME."""
