"""Small models of each family, and a batch for each: what `torch.compile` is tried with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.nn.functional as F
from torch import nn


def mlp() -> Any:
    return nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 5))


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


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


def resnet() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def encoder() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


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
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.blocks, self.norm = nn.ModuleList([Block(32, 4) for _ in range(2)]), nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LSTM(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(10, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        y, _ = self.rnn(x)
        return self.out(y[:, -1])


class UNet(nn.Module):  # type: ignore[misc]
    def __init__(self, norm: Callable[[int], Any] = nn.BatchNorm2d, channels: int = 3) -> None:
        super().__init__()

        def double(a: int, b: int) -> Any:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), norm(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1))

        self.down1, self.down2, self.up = double(channels, 8), double(8, 16), nn.ConvTranspose2d(16, 8, 2, 2)
        self.last, self.head = double(16, 8), nn.Conv2d(8, channels, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.up(self.down2(F.max_pool2d(a, 2)))
        return self.head(self.last(torch.cat([a, b], 1)))


class ViT(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        self.blocks, self.head = nn.ModuleList([Block(32, 4) for _ in range(2)]), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x, causal=False)
        return self.head(x[:, 0])


class MobileNet(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()

        def inverted(a: int, b: int, stride: int) -> Any:
            inner = 4 * a
            return nn.Sequential(
                nn.Conv2d(a, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
                nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
                nn.Conv2d(inner, b, 1, bias=False), nn.BatchNorm2d(b),
            )  # fmt: skip

        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), inverted(8, 12, 2), inverted(12, 16, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class Recommender(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(40, 8) for _ in range(3)])
        self.dense, self.top = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Sequential(nn.Linear(14, 16), nn.ReLU())
        self.out = nn.Linear(16, 1)

    def forward(self, numbers: Any, ids: Any) -> Any:
        parts = [self.dense(numbers), *(table(ids[:, i]) for i, table in enumerate(self.tables))]
        stacked = torch.stack(parts, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return self.out(self.top(torch.cat([parts[0], products[:, rows, columns]], 1))).sigmoid()


class Diffusion(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.into, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, 1)
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.last, self.norm2 = nn.Conv2d(32, 3, 3, padding=1), nn.GroupNorm(8, 32)

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


FAMILIES: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]]]] = {
    "mlp": (mlp, lambda n: (torch.randn(n, 20),)),
    "cnn": (cnn, image),
    "resnet": (resnet, image),
    "transformer encoder": (encoder, lambda n: (torch.randn(n, 10, 32),)),
    "gpt": (GPT, lambda n: (torch.randint(0, 50, (n, 12)),)),
    "lstm": (LSTM, lambda n: (torch.randn(n, 7, 10),)),
    "u-net": (UNet, lambda n: image(n, 16)),
    "vit": (ViT, image),
    "mobilenet": (MobileNet, image),
    "recommender": (Recommender, lambda n: (torch.randn(n, 5), torch.randint(0, 40, (n, 3)))),
    "diffusion u-net": (Diffusion, lambda n: (*image(n, 16), torch.rand(n) * 10)),
}
