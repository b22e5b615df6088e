"""FlexFlow's recurrent models: RNNTC, RNNLM and NMT, unrolled into LSTM nodes of a few steps.

FlexFlow unrolls every sequence and gives each run of steps of each layer its own node, so that
different layers and runs may sit on different devices. Here one `nn.LSTM` of one layer holds a
layer's weights and is called once for each run.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from meshwright.capture.zoo.entry import Entry, class_loss, token_loss, tokens

State = tuple[Tensor, Tensor]


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Recurrent layers of each side; `run` steps make one LSTM node."""

    vocabulary: int
    hidden: int
    layers: int
    steps: int = 40
    run: int = 8
    classes: int = 2


class Recurrent(nn.Module):
    """Layers of LSTMs over a sequence, called run by run."""

    def __init__(self, hidden: int, layers: int, run: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers)
        )
        self.run = run

    def forward(
        self, sequence: Tensor, states: list[State] | None = None
    ) -> tuple[list[Tensor], list[State]]:
        """The last layer's outputs, run by run, and each layer's last state."""
        runs = list(torch.split(sequence, self.run, dim=1))
        last = []
        for index, layer in enumerate(self.layers):
            state = None if states is None else states[index]
            for position, run in enumerate(runs):
                runs[position], state = layer(run, state)
            assert state is not None, "a sequence has at least one run"
            last.append(state)
        return runs, last


class TextClassifier(nn.Module):
    """RNNTC: the class of a text from the last step of the last layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.recurrent = Recurrent(sizes.hidden, sizes.layers, sizes.run)
        self.output = nn.Linear(sizes.hidden, sizes.classes)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of each class."""
        runs, _ = self.recurrent(self.embedding(text))
        logits: Tensor = self.output(runs[-1][:, -1])
        return logits


class LanguageModel(nn.Module):
    """RNNLM: the next word at every step."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.recurrent = Recurrent(sizes.hidden, sizes.layers, sizes.run)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of each word at each step."""
        runs, _ = self.recurrent(self.embedding(text))
        return torch.cat([self.output(run) for run in runs], dim=1)


class Attention(nn.Module):
    """Luong's attention with dot-product scores: what a decoder's steps need of the source."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, decoded: Tensor, encoded: Tensor) -> Tensor:
        """The decoder's states, each combined with its own view of the source."""
        weights = torch.bmm(decoded, encoded.transpose(1, 2)).softmax(dim=-1)
        context = torch.bmm(weights, encoded)
        return torch.tanh(self.combine(torch.cat([context, decoded], dim=-1)))


class Translator(nn.Module):
    """NMT: an encoder, a decoder that starts from its states, attention, a word at each step."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.target_embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.encoder = Recurrent(sizes.hidden, sizes.layers, sizes.run)
        self.decoder = Recurrent(sizes.hidden, sizes.layers, sizes.run)
        self.attention = Attention(sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each target word at each step."""
        encoded, states = self.encoder(self.source_embedding(source))
        whole = torch.cat(encoded, dim=1)
        decoded, _ = self.decoder(self.target_embedding(target), states)
        return torch.cat([self.output(self.attention(run, whole)) for run in decoded], dim=1)


_TINY = Sizes(vocabulary=20, hidden=8, layers=2, steps=6, run=2)

RNNTC = Entry(
    name="rnntc",
    sizes=Sizes(vocabulary=20_000, hidden=2048, layers=4),
    tiny=msgspec.structs.replace(_TINY, layers=4),
    batch=64,
    parameters=175_247_362,
    source="FlexFlow: 4 recurrent layers, 40 steps, Movie Reviews. Hidden 2048 is recalled, the "
    "vocabulary of 20,000 chosen, the count ours: none is published.",
    build=TextClassifier,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.steps),),
    targets=lambda s, n: (tokens(s.classes, n),),
    loss=class_loss,
)
RNNLM = Entry(
    name="rnnlm",
    sizes=Sizes(vocabulary=10_000, hidden=2048, layers=2),
    tiny=_TINY,
    batch=64,
    parameters=108_111_632,
    source="FlexFlow: 2 recurrent layers, 40 steps, Penn Treebank and its 10,000 words. Hidden "
    "2048 is recalled, the count ours: none is published.",
    build=LanguageModel,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.steps),),
    targets=lambda s, n: (tokens(s.vocabulary, n, s.steps),),
    loss=token_loss,
)
NMT = Entry(
    name="nmt",
    sizes=Sizes(vocabulary=32_000, hidden=1024, layers=2),
    tiny=_TINY,
    batch=64,
    parameters=134_020_352,
    source="FlexFlow's code: hidden 1024, 32,000 words, 2 + 2 LSTM layers, 40 steps. The kind of "
    "attention is chosen; the 65.8 GB an iteration moves on 64 devices mean 130.6 M parameters.",
    build=Translator,
    inputs=lambda s, n: (tokens(s.vocabulary, n, s.steps), tokens(s.vocabulary, n, s.steps)),
    targets=lambda s, n: (tokens(s.vocabulary, n, s.steps),),
    loss=token_loss,
)
