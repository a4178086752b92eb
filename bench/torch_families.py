"""A model of each family in PyTorch, tiny or in a size of small real use, and a batch for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def mlp(inputs: int, width: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def cnn(*widths: int) -> Any:
    layers: list[Any] = []
    for n, (a, b) in enumerate(zip((3, *widths), widths, strict=False)):
        layers += [nn.MaxPool2d(2)] if n else []
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=not n)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.second(F.relu(self.norm1(self.first(x)), inplace=True)))
        y += self.short(x)
        return F.relu(y)


def resnet(*widths: int) -> Any:
    first, last = widths[0], widths[-1]
    blocks = [Residual(a, b, 1 + (n > 0)) for n, (a, b) in enumerate(zip((first, *widths), widths, strict=False))]
    return nn.Sequential(
        nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10),
    )  # fmt: skip


def encoder(width: int, heads: int, inner: int, depth: int) -> Any:
    layer = nn.TransformerEncoderLayer(width, heads, inner, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Any, causal: bool = True) -> Any:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):  # type: ignore[misc]
    def __init__(self, words: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.norm = nn.ModuleList([Block(width, heads) for _ in range(depth)]), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LSTM(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        y, _ = self.rnn(x)
        return self.out(y[:, -1])


class UNet(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()

        def double(a: int, b: int) -> Any:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1)
            )

        self.down1, self.down2 = double(3, width), double(width, 2 * width)
        self.up, self.last = nn.ConvTranspose2d(2 * width, width, 2, 2), double(2 * width, width)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.up(self.down2(F.max_pool2d(a, 2)))
        return self.head(self.last(torch.cat([a, b], 1)))


class ViT(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, depth: int, patches: int) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        self.blocks, self.head = nn.ModuleList([Block(width, heads) for _ in range(depth)]), nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x, causal=False)
        return self.head(x[:, 0])


class MobileNet(nn.Module):  # type: ignore[misc]
    def __init__(self, *widths: int) -> None:
        super().__init__()

        def inverted(a: int, b: int, stride: int) -> Any:
            inner = 4 * a
            return nn.Sequential(
                nn.Conv2d(a, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
                nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
                nn.Conv2d(inner, b, 1, bias=False), nn.BatchNorm2d(b),
            )  # fmt: skip

        pairs = list(itertools.pairwise(widths))
        blocks = [inverted(a, b, 1 if n == len(pairs) - 1 else 2) for n, (a, b) in enumerate(pairs)]
        self.body = nn.Sequential(nn.Conv2d(3, widths[0], 3, 2, 1), *blocks)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class Recommender(nn.Module):  # type: ignore[misc]
    def __init__(self, entries: int, width: int, numbers: int, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(entries, width) for _ in range(3)])
        self.dense = nn.Sequential(nn.Linear(numbers, inner // 2), nn.ReLU(), nn.Linear(inner // 2, width), nn.ReLU())
        self.top, self.out = nn.Sequential(nn.Linear(width + 6, inner), nn.ReLU()), nn.Linear(inner, 1)

    def forward(self, numbers: Any, ids: Any) -> Any:
        parts = [self.dense(numbers), *(table(ids[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(parts, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.out(self.top(torch.cat([parts[0], products[:, rows, columns]], 1))).sigmoid()


class Diffusion(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.into, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.norm, self.qkv = nn.GroupNorm(4, width), nn.Conv2d(width, 3 * width, 1)
        self.out, self.last = nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, 3, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, 2 * width)

    def forward(self, x: Any, t: Any) -> Any:
        angles = t[:, None] * torch.exp(-torch.arange(8) * 0.5)
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.into(x)
        b = self.down(a) + time[:, :, None, None]
        q, k, v = self.qkv(self.norm(b)).flatten(2).chunk(3, 1)
        y = torch.softmax(q.transpose(1, 2) @ k / 4.0, -1) @ v.transpose(1, 2)
        b = b + self.out(y.transpose(1, 2).reshape(b.shape))
        up = F.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.last(F.silu(self.norm2(torch.cat([a, up], 1))))


def image(n: int, size: int = 32) -> tuple[Any, ...]:
    return (torch.randn(n, 3, size, size),)


Families = dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]]]]  # a model, and a batch of n

TINY: Families = {
    "mlp": (lambda: mlp(20, 64, 5), lambda n: (torch.randn(n, 20),)),
    "cnn": (lambda: cnn(8, 16), image),
    "resnet": (lambda: resnet(8, 16), image),
    "transformer encoder": (lambda: encoder(32, 4, 64, 2), lambda n: (torch.randn(n, 10, 32),)),
    "gpt": (lambda: GPT(50, 32, 4, 2, 16), lambda n: (torch.randint(0, 50, (n, 12)),)),
    "lstm": (lambda: LSTM(10, 16), lambda n: (torch.randn(n, 7, 10),)),
    "u-net": (lambda: UNet(8), lambda n: image(n, 16)),
    "vit": (lambda: ViT(32, 4, 2, 16), image),
    "mobilenet": (lambda: MobileNet(8, 12, 16), image),
    "recommender": (lambda: Recommender(40, 8, 5, 16), lambda n: (torch.randn(n, 5), torch.randint(0, 40, (n, 3)))),
    "diffusion u-net": (lambda: Diffusion(16), lambda n: (*image(n, 16), torch.rand(n) * 10)),
}
REAL: Families = {
    "mlp": (lambda: mlp(784, 512, 10), lambda n: (torch.randn(16 * n, 784),)),
    "cnn": (lambda: cnn(32, 64, 128), lambda n: image(2 * n)),
    "resnet": (lambda: resnet(32, 64, 128), lambda n: image(n, 64)),
    "transformer encoder": (lambda: encoder(256, 8, 1024, 3), lambda n: (torch.randn(n, 64, 256),)),
    "gpt": (lambda: GPT(1000, 256, 8, 4, 64), lambda n: (torch.randint(0, 1000, (n, 64)),)),
    "lstm": (lambda: LSTM(32, 128), lambda n: (torch.randn(4 * n, 24, 32),)),
    "u-net": (lambda: UNet(32), lambda n: image(n // 2)),
    "vit": (lambda: ViT(192, 6, 4, 64), lambda n: image(n, 64)),
    "mobilenet": (lambda: MobileNet(16, 24, 40, 40), lambda n: image(n, 64)),
    "recommender": (
        lambda: Recommender(2000, 32, 13, 128),
        lambda n: (torch.randn(64 * n, 13), torch.randint(0, 2000, (64 * n, 3))),
    ),
    "diffusion u-net": (lambda: Diffusion(32), lambda n: (*image(n), torch.rand(n) * 10)),
}
