"""Three language models on random tokens: an LSTM, a transformer encoder and a transformer decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.gpu.training import Batch

MASKED_FRAC = 0.15
"""Share of tokens that the encoder must guess: Devlin et al., arXiv:1810.04805, section 3.1."""


class TextSize(NamedTuple):
    """Size of a language model; `heads` 0 is an LSTM."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    tokens: int
    is_causal: bool


TEXT = {
    "lstm": TextSize(10_000, 1024, 2, 0, 64, True),
    "encoder": TextSize(30_522, 768, 12, 12, 128, False),
    "decoder": TextSize(50_257, 768, 12, 12, 512, True),
}
"""The encoder has BERT-base's size (arXiv:1810.04805, section 3), the decoder GPT-2's smallest."""
REHEARSAL_TEXT = {
    "lstm": TextSize(50, 16, 2, 0, 8, True),
    "encoder": TextSize(50, 16, 2, 2, 8, False),
    "decoder": TextSize(50, 16, 2, 2, 8, True),
}


class LanguageModel(nn.Module):
    """Embeds tokens, mixes them along the sequence, and scores the vocabulary."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.is_causal = size.is_causal
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.place = nn.Parameter(torch.zeros(size.tokens, size.width))
        self.lstm: nn.LSTM | None = None
        if size.heads:
            layer = nn.TransformerEncoderLayer(
                size.width, size.heads, 4 * size.width, 0.1, "gelu", batch_first=True, norm_first=True
            )
            self.mix = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.tokens))
        else:
            self.lstm = nn.LSTM(size.width, size.width, size.layers, batch_first=True)
        self.score = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, L) int64 -> (N, L, vocabulary)."""
        x = self.embed(tokens) + self.place
        if self.lstm is not None:
            x = self.lstm(x)[0]
        elif self.is_causal:
            x = self.mix(x, mask=self.mask, is_causal=True)
        else:
            x = self.mix(x)
        return self.score(x)


def text_size(name: str, *, is_small: bool) -> TextSize:
    """Size of `lstm`, `encoder` or `decoder`."""
    return (REHEARSAL_TEXT if is_small else TEXT)[name]


def token_batch(size: TextSize, batch: int, device: torch.device) -> Batch:
    """Inputs and targets, (N, L) int64 each; a target of -100 is not counted."""
    tokens = torch.randint(1, size.vocabulary, (batch, size.tokens), device=device)
    if size.is_causal:
        targets = torch.roll(tokens, -1, 1)
        targets[:, -1] = -100
        return tokens, targets
    is_masked = torch.rand(tokens.shape, device=device) < MASKED_FRAC
    is_masked[:, 0] = True  # at least one, or there would be no loss
    return tokens.masked_fill(is_masked, 0), tokens.masked_fill(~is_masked, -100)


def text_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy over the tokens to guess."""
    tokens, targets = batch
    return functional.cross_entropy(network(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
