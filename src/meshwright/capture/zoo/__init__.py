"""The models that come with Meshwright: those of the FlexFlow and Unity papers, and today's.

>>> entry("bert-large").parameters
335174458
"""

from __future__ import annotations

from typing import Any

from meshwright.base.errors import InputError, nearest
from meshwright.capture.zoo.alexnet import ALEXNET
from meshwright.capture.zoo.dense import CANDLE_UNO, MLP
from meshwright.capture.zoo.diffusion import DIT_XL, SDXL_UNET
from meshwright.capture.zoo.encoder import BERT_LARGE, VIT_LARGE
from meshwright.capture.zoo.entry import Entry
from meshwright.capture.zoo.flexflow_recurrent import NMT, RNNLM, RNNTC
from meshwright.capture.zoo.gpt import GPT2_XL, GPT3_175B
from meshwright.capture.zoo.inception import INCEPTION_V3
from meshwright.capture.zoo.lenet import LENET
from meshwright.capture.zoo.llama import LLAMA3_8B, LLAMA3_70B
from meshwright.capture.zoo.mixtral import MIXTRAL_8X7B
from meshwright.capture.zoo.recommendation import DLRM, XDL
from meshwright.capture.zoo.resnet import RESNET50, RESNET101, RESNEXT50
from meshwright.capture.zoo.t5 import T5_LARGE

FLEXFLOW = (ALEXNET, INCEPTION_V3, RESNET101, RNNTC, RNNLM, NMT)
"""Measured in FlexFlow's paper."""

EXACT = (LENET,)
"""Searched exhaustively in FlexFlow's paper, besides two steps of RNNLM."""

UNITY = (BERT_LARGE, CANDLE_UNO, MLP, DLRM, XDL, RESNEXT50)
"""Measured in Unity's paper, besides Inception-v3."""

TODAY = (
    RESNET50, GPT2_XL, GPT3_175B, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, VIT_LARGE, T5_LARGE, DIT_XL,
    SDXL_UNET,
)  # fmt: skip

ENTRIES: tuple[Entry[Any], ...] = (*FLEXFLOW, *EXACT, *UNITY, *TODAY)


def entry(name: str) -> Entry[Any]:
    """A model of the zoo by its name."""
    by_name = {model.name: model for model in ENTRIES}
    if name not in by_name:
        raise InputError(f"there is no model {name!r} in the zoo", nearest(name, by_name))
    return by_name[name]
