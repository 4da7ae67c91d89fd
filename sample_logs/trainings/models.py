"""Data and models: the text of Python's own library, byte by byte, and networks of some thousand weights."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def corpus(*modules: str) -> torch.Tensor:
    """The source of these standard modules as bytes."""
    text = b"".join((Path(os.__file__).parent / f"{m}.py").read_bytes() for m in modules)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def windows(text: torch.Tensor, count: int, length: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` random pieces of the text: inputs, and the next byte at each place."""
    at = torch.randint(len(text) - length - 1, (count,), generator=rng)
    piece = torch.stack([text[i : i + length + 1] for i in at])
    return piece[:, :-1], piece[:, 1:]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all places, in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


# -- models


class Block(nn.Module):
    """A transformer block, Pre-LN or Post-LN."""

    def __init__(self, width: int, heads: int, post: bool) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention."""
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, d))


class RoundedToHalf(torch.autograd.Function):
    """Values as fp16 holds them (above 65504: inf); the gradient passes in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class GPT(nn.Module):
    """A byte-level language model; `half` rounds block outputs to fp16, `post` is Post-LN, `tail` are seconds to wait."""

    def __init__(
        self, width: int = 48, layers: int = 2, heads: int = 4, length: int = 48, *, half: bool = False, post: bool = False
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, post) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.half_blocks, self.tail = half, 0.0
        for p in self.parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = RoundedToHalf.apply(block(h)) if self.half_blocks else block(h)
        if self.tail:
            time.sleep(self.tail)
        logits = self.head(self.norm(h))
        return RoundedToHalf.apply(logits) if self.half_blocks else logits


class Recurrent(nn.Module):
    """A byte-level language model with one recurrent layer."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.cell = (
            nn.RNN(width, width, nonlinearity="relu", batch_first=True) if cell == "relu" else nn.LSTM(width, width, batch_first=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.tokens(x))[0])


class PostBlock(nn.Module):
    """A Post-LN encoder block whose feed-forward part is a saturating sigmoid and has lost its skip path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.Sigmoid(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(self.mlp(x))


class Bert(nn.Module):
    """A sentence classifier: twelve Post-LN blocks, the first place decides."""

    def __init__(self, width: int, layers: int, classes: int, length: int, std: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(PostBlock(width, 4) for _ in range(layers))
        self.classifier = nn.Linear(width, classes)
        for p in self.parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h[:, 0])
