"""What people write first in torch: loops over numbers and sizes, small calls, long graphs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .program import Call, Sizes, Wrap, images, normal
from .torch_training import GPT, Denoiser, Recurrent, started, tensor
from .torch_training import mlp as mlp_step


def generate(size: Sizes, wrap: Wrap) -> Call:
    """Greedy text, the whole context through the model for each token."""
    model = started(GPT(size)).eval()

    @torch.no_grad()
    def call() -> list[int]:
        tokens = [1, 2, 3, 4]
        for _ in range(size.tokens):
            logits = model(torch.tensor([tokens]))
            tokens.append(int(logits[0, -1].argmax().item()))
        return tokens

    return call


def sampling(size: Sizes, wrap: Wrap) -> Call:
    """Steps from noise to an image; the time step is a Python number."""
    model = started(Denoiser(size.width)).eval()
    start = normal(1, 3, size.side, size.side)

    @torch.no_grad()
    def call() -> Any:
        x = tensor(start)
        for i in range(size.steps, 0, -1):
            kept, next_kept = (math.cos(math.pi / 2 * k / (size.steps + 1)) for k in (i, i - 1))
            noise = model(x, torch.full((1,), 1000 * i / size.steps))
            clean = (x - (1 - kept**2) ** 0.5 * noise) / kept
            x = next_kept * clean + (1 - next_kept**2) ** 0.5 * noise
        return x.numpy()

    return call


def numbers(size: Sizes, wrap: Wrap) -> Call:
    x = tensor(normal(1000))
    return lambda: [(x * (0.1 + i / 7)).numpy()[0] for i in range(size.count)]


def sizes(size: Sizes, wrap: Wrap) -> Call:
    return lambda: [torch.ones(n).exp().sum().item() for n in range(1, size.count + 1)]


def plus_one(size: Sizes, wrap: Wrap) -> Call:
    x = tensor(normal(100))
    return lambda: x + 1


def linear_relu(size: Sizes, wrap: Wrap) -> Call:
    layer, x = started(nn.Linear(64, 64)), normal(8, 64)

    @torch.no_grad()
    def call() -> Any:
        return layer(tensor(x)).relu().numpy()

    return call


def mlp_eager(size: Sizes, wrap: Wrap) -> Call:
    call = mlp_step(size, lambda f: f)
    return lambda: call().item()


def forecast(size: Sizes, wrap: Wrap) -> Call:
    model, x = started(Recurrent(size.width)).eval(), normal(1, size.length, 16)

    @torch.no_grad()
    def call() -> Any:
        return model(tensor(x)).numpy()

    return call


def chain(size: Sizes, wrap: Wrap) -> Call:
    start = images(100)

    @torch.no_grad()
    def call() -> Any:
        x = y = tensor(start)
        for _ in range(size.count):
            y = (y * 1.001).sin() + x
        return y.numpy()

    return call


chain_double = chain


def means(size: Sizes, wrap: Wrap) -> Call:
    start = images(8, 8)

    @torch.no_grad()
    def call() -> Any:
        x = tensor(start)
        for _ in range(size.count):
            x = x - x.mean(1, keepdim=True) + 1
        return x.numpy()

    return call


def sines(size: Sizes, wrap: Wrap) -> Call:
    start = images(100)

    def call() -> Any:
        x = tensor(start).clone().requires_grad_()
        y: Any = x
        for _ in range(size.count):
            y = y.sin()
        y.sum().backward()
        return x.grad.numpy()

    return call
