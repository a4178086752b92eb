"""The training programs in torch. Each function returns a callable: one training step, which returns losses."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .program import Call, Sizes, Wrap, images, integers, labels, normal, values_for

Tensor = Any
tensor = torch.from_numpy


def started(model: Any) -> Any:
    """The model with the suite's start values."""
    values = values_for({name: tuple(t.shape) for name, t in model.state_dict().items()})
    model.load_state_dict({name: tensor(value) for name, value in values.items()})
    return model


def step_of(optimizer: Any, loss_of: Callable[..., Tensor], wrap: Wrap, *data: Tensor) -> Call:
    """A training step on `data`; `wrap` is applied to the loss only, as users of torch.compile do."""
    loss_of = wrap(loss_of)

    def step(*data: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*data)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return partial(step, *data)


def adam(model: Any, lr: float, **more: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=lr, fused=True, **more)


def adamw(model: Any, lr: float) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)


def mlp(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(nn.Linear(784, size.width), nn.ReLU(), nn.Linear(size.width, 128), nn.ReLU(),
                                  nn.Linear(128, 10)))  # fmt: skip
    x, y = tensor(images(size.batch, 784)), tensor(labels(10, size.batch))
    return step_of(adam(model, 1e-3), lambda x, y: F.cross_entropy(model(x), y), wrap, x, y)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.reshape(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, is_causal)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, size: Sizes) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList([Block(size.width, size.heads) for _ in range(size.layers)])
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(size: Sizes, wrap: Wrap) -> Call:
    model = started(GPT(size))
    text = integers(size.vocab, size.batch, size.context + 1)
    x, y = tensor(text[:, :-1].copy()), tensor(text[:, 1:].copy())
    return step_of(adamw(model, 3e-4), lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), wrap, x, y)


gpt_98m = gpt


def cnn(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(
        nn.Conv2d(3, size.width, 3, padding=1), nn.BatchNorm2d(size.width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(size.width, 2 * size.width, 3, padding=1), nn.BatchNorm2d(2 * size.width), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * size.width * (size.side // 4) ** 2, 10),
    ))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    x, y = tensor(images(size.batch, 3, size.side, size.side)), tensor(labels(10, size.batch))
    return step_of(optimizer, lambda x, y: F.cross_entropy(model(x), y), wrap, x, y)


def vae(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    model = started(nn.Sequential(
        nn.Sequential(nn.Conv2d(1, w, 4, 2, 1), nn.ReLU(), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.ReLU(),
                      nn.Flatten(), nn.Linear(2 * w * 49, 2 * size.latent)),
        nn.Sequential(nn.Linear(size.latent, 2 * w * 49), nn.ReLU(), nn.Unflatten(1, (2 * w, 7, 7)),
                      nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(w, 1, 4, 2, 1)),
    ))  # fmt: skip

    def loss_of(x: Tensor, noise: Tensor) -> Tensor:
        mean, log_var = model[0](x).chunk(2, 1)
        logits = model[1](mean + noise * (0.5 * log_var).exp())
        found = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        return (found - 0.5 * (1 + log_var - mean * mean - log_var.exp()).sum()) / len(x)

    return step_of(adam(model, 1e-3), loss_of, wrap, tensor(images(size.batch, 1, 28, 28)),
                   tensor(normal(size.batch, size.latent)))  # fmt: skip


def gan(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    maker = started(nn.Sequential(nn.Linear(32, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 784)))
    judge = started(nn.Sequential(nn.Linear(784, w), nn.LeakyReLU(0.2), nn.Linear(w, 1)))
    makers, judges = adam(maker, 2e-4, betas=(0.5, 0.999)), adam(judge, 2e-4, betas=(0.5, 0.999))
    losses = F.binary_cross_entropy_with_logits

    @wrap
    def judged_of(real: Tensor, fake: Tensor, ones: Tensor, zeros: Tensor) -> Tensor:
        return losses(judge(real), ones) + losses(judge(fake), zeros)

    @wrap
    def fooled_of(noise: Tensor, ones: Tensor) -> Tensor:
        return losses(judge(maker(noise).tanh()), ones)

    def step(real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        with torch.no_grad():
            fake = maker(noise).tanh()
        judges.zero_grad()
        judged = judged_of(real, fake, ones, zeros)
        judged.backward()
        judges.step()
        makers.zero_grad()
        fooled = fooled_of(noise, ones)
        fooled.backward()
        makers.step()
        return judged.detach(), fooled.detach()

    return partial(step, tensor(images(size.batch, 784)), tensor(normal(size.batch, 32)))


class Denoiser(nn.Module):
    """A small U-Net: down, middle, up, with an embedding of the time step."""

    def __init__(self, w: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, w), nn.SiLU(), nn.Linear(w, w))
        self.first, self.norm = nn.Conv2d(3, w, 3, padding=1), nn.GroupNorm(4, w)
        self.down, self.middle = nn.Conv2d(w, 2 * w, 3, 2, 1), nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.Conv2d(2 * w, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t.unsqueeze(1) * (torch.arange(16) * (-math.log(1e4) / 16)).exp()
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        first = F.silu(self.norm(self.first(x) + time[:, :, None, None]))
        deep = F.silu(self.middle(F.silu(self.down(first))))
        return self.last(torch.cat([first, F.silu(self.up(deep))], 1))


def diffusion(size: Sizes, wrap: Wrap) -> Call:
    model = started(Denoiser(size.width))

    def loss_of(x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        kept = (t / 1000 * (math.pi / 2)).cos().reshape(-1, 1, 1, 1)
        return F.mse_loss(model(x * kept + noise * (1 - kept * kept).sqrt(), t), noise)

    shape = (size.batch, 3, size.side, size.side)
    return step_of(adamw(model, 1e-3), loss_of, wrap, tensor(images(*shape)),
                   tensor(integers(1000, size.batch)).float(), tensor(normal(*shape)))  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(size: Sizes, wrap: Wrap) -> Call:
    model = started(Recurrent(size.width))
    x, y = tensor(normal(size.batch, size.length, 16)), tensor(normal(size.batch, 1))
    return step_of(adam(model, 1e-3), lambda x, y: F.mse_loss(model(x), y), wrap, x, y)


class GraphNetwork(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message1, self.own1 = nn.Linear(32, width), nn.Linear(32, width)
        self.message2, self.own2 = nn.Linear(width, 7), nn.Linear(width, 7)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, share: Tensor) -> Tensor:
        def gathered(h: Tensor) -> Tensor:
            return torch.zeros(len(x), h.shape[1]).index_add(0, target, h[source]) * share

        h = F.relu(self.own1(x) + gathered(self.message1(x)))
        return self.own2(h) + gathered(self.message2(h))


def graph(size: Sizes, wrap: Wrap) -> Call:
    model = started(GraphNetwork(size.width))
    source, target = (tensor(integers(size.nodes, size.edges, seed=seed)) for seed in (1, 2))
    share = (1 / (torch.zeros(size.nodes).index_add(0, target, torch.ones(size.edges)) + 1)).unsqueeze(1)
    x, y = tensor(normal(size.nodes, 32)), tensor(labels(7, size.nodes))
    loss_of = lambda x, y: F.cross_entropy(model(x, source, target, share), y)  # noqa: E731
    return step_of(adam(model, 1e-2), loss_of, wrap, x, y)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def attention(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    model = started(nn.Sequential(nn.Embedding(1000, w), *(Block(w, size.heads, False) for _ in range(size.layers)),
                                  Mean(), nn.Linear(w, 4)))  # fmt: skip
    optimizer = adamw(model, 1e-3)
    loss_of = wrap(lambda x, y: F.cross_entropy(model(x), y, label_smoothing=0.1))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return partial(step, tensor(integers(1000, size.batch, size.length)), tensor(labels(4, size.batch)))


def second(size: Sizes, wrap: Wrap) -> Call:
    """A network u(x) with u'' = -sin(x): the loss holds second derivatives."""
    model = started(nn.Sequential(nn.Linear(1, size.width), nn.Tanh(), nn.Linear(size.width, size.width), nn.Tanh(),
                                  nn.Linear(size.width, 1)))  # fmt: skip

    def loss_of(x: Tensor) -> Tensor:
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (curve + x.sin()).square().mean() + u.square().mean()

    return step_of(adam(model, 1e-3), loss_of, wrap, tensor(normal(size.points, 1)).requires_grad_())


def mixed(size: Sizes, wrap: Wrap) -> Call:
    """Float32 weights, products in bfloat16."""
    model = started(nn.Sequential(nn.Linear(size.width, size.width), nn.Linear(size.width, size.width),
                                  nn.Linear(size.width, 10)))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def low(layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(low(model[1], F.relu(low(model[0], x))))
        return F.cross_entropy(low(model[2], h).float(), y)

    return step_of(optimizer, loss_of, wrap, tensor(normal(size.batch, size.width)), tensor(labels(10, size.batch)))


def mixed_f32(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(nn.Linear(size.width, size.width), nn.Linear(size.width, size.width),
                                  nn.Linear(size.width, 10)))  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x, y = tensor(normal(size.batch, size.width)), tensor(labels(10, size.batch))
    loss_of = lambda x, y: F.cross_entropy(model[2](F.relu(model[1](F.relu(model[0](x))))), y)  # noqa: E731
    return step_of(optimizer, loss_of, wrap, x, y)


def resume(size: Sizes, wrap: Wrap) -> Call:
    """Two steps, weights and optimizer through a file, and the steps after it."""

    def made() -> tuple[Any, Any]:
        model = started(nn.Sequential(nn.Linear(64, size.width), nn.SiLU(), nn.LayerNorm(size.width),
                                      nn.Linear(size.width, 64)))  # fmt: skip
        return model, torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)

    x, y = tensor(normal(size.batch, 64)), tensor(normal(size.batch, 64, seed=1))
    model, optimizer = made()
    for _ in range(2):
        step_of(optimizer, lambda x, y: F.mse_loss(model(x), y), lambda f: f, x, y)()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "model", Path(folder) / "optimizer"
        for file, saved in zip(files, (model, optimizer), strict=True):
            torch.save(saved.state_dict(), file)
        again, then = made()
        again.load_state_dict(torch.load(files[0]))
        then.load_state_dict(torch.load(files[1]))
    return step_of(then, lambda x, y: F.mse_loss(again(x), y), wrap, x, y)


def lengths(size: Sizes, wrap: Wrap) -> Call:
    """A step on a batch of each of four lengths."""
    model = started(nn.Sequential(nn.Embedding(500, size.width), Mean(), nn.Linear(size.width, size.width), nn.ReLU(),
                                  nn.Linear(size.width, 4)))  # fmt: skip
    y = tensor(labels(4, size.batch))
    texts = [tensor(integers(500, size.batch, size.length + k * 7)) for k in range(4)]
    step: Any = step_of(adam(model, 1e-3), lambda x, y: F.cross_entropy(model(x), y), wrap)
    return lambda: [step(x, y) for x in texts]


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (self.downsample(x) if self.downsample else x))


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def resnet(size: Sizes, wrap: Wrap) -> Call:
    """ResNet-18, channels last."""
    w = size.width
    widths = [(w, w, 1), (w, 2 * w, 2), (2 * w, 4 * w, 2), (4 * w, 8 * w, 2)]
    blocks = [Residual(*where) for a, b, s in widths for where in ((a, b, s), (b, b, 1))]
    model = started(nn.Sequential(nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1), *blocks, Pooled(), nn.Linear(8 * w, 10)))  # fmt: skip
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    x = tensor(images(size.batch, 3, size.side, size.side)).to(memory_format=torch.channels_last)
    return step_of(optimizer, lambda x, y: F.cross_entropy(model(x), y), wrap, x, tensor(labels(10, size.batch)))


def weights(size: Sizes, wrap: Wrap) -> Call:
    """Reads a model's weights from a file into a new model, and answers."""
    w = size.width
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "model"
    torch.save(started(nn.Sequential(*[nn.Linear(w, w) for _ in range(size.layers)])).state_dict(), file)
    model = nn.Sequential(*[nn.Linear(w, w) for _ in range(size.layers)]).eval()
    x = tensor(normal(size.batch, w))
    answer = wrap(model)

    def call() -> Tensor:
        with torch.no_grad():
            model.load_state_dict(torch.load(file))
            return answer(x)

    weakref.finalize(call, folder.cleanup)
    return call
