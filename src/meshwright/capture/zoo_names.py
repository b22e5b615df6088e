"""The names of the zoo, for who must not wait for PyTorch; `zoo` holds the models themselves."""

from __future__ import annotations

ZOO = (
    "alexnet",
    "bert-large",
    "candle-uno",
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
    "t5-large",
    "vit-large",
    "xdl",
)
