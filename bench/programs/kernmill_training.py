"""The training programs in kernmill. Each function returns a callable: one training step, which returns losses."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kernmill import Tensor, nn, no_grad

from .program import Call, Sizes, Wrap, images, integers, labels, normal, values_for


def started(model: Any) -> Any:
    """The model with the suite's start values."""
    model.load_state_dict(values_for({name: t.shape for name, t in model.state_dict().items()}))
    return model


def step_of(optimizer: Any, loss_of: Callable[..., Tensor], wrap: Wrap, *data: Tensor) -> Call:
    """A training step on `data`."""

    def step(*data: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*data)
        loss.backward()
        optimizer.step()
        return loss

    return partial(wrap(step), *data)


def mlp(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(nn.Linear(784, size.width), Tensor.relu, nn.Linear(size.width, 128), Tensor.relu,
                                  nn.Linear(128, 10)))  # fmt: skip
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-3)
    x, y = Tensor(images(size.batch, 784)), Tensor(labels(10, size.batch))
    return step_of(optimizer, lambda x, y: model(x).cross_entropy(y), wrap, x, y)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        self.heads, self.is_causal = heads, is_causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.reshape(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, 2))
        y = q.scaled_dot_product_attention(k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, is_causal: bool = True) -> None:
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, is_causal)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT(nn.Module):
    def __init__(self, size: Sizes) -> None:
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.context, size.width)
        self.blocks = [Block(size.width, size.heads) for _ in range(size.layers)]
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(Tensor.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(size: Sizes, wrap: Wrap) -> Call:
    model = started(GPT(size))
    optimizer = nn.optim.AdamW(model.parameters(), lr=3e-4)
    text = integers(size.vocab, size.batch, size.context + 1)
    x, y = Tensor(text[:, :-1].copy()), Tensor(text[:, 1:].copy())
    return step_of(optimizer, lambda x, y: model(x).flatten(0, 1).cross_entropy(y.flatten()), wrap, x, y)


def cnn(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(
        nn.Conv2d(3, size.width, 3, padding=1), nn.BatchNorm2d(size.width), Tensor.relu, lambda x: x.max_pool2d(2),
        nn.Conv2d(size.width, 2 * size.width, 3, padding=1), nn.BatchNorm2d(2 * size.width), Tensor.relu,
        lambda x: x.max_pool2d(2), lambda x: x.flatten(1), nn.Linear(2 * size.width * (size.side // 4) ** 2, 10),
    ))  # fmt: skip
    optimizer = nn.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = Tensor(images(size.batch, 3, size.side, size.side)), Tensor(labels(10, size.batch))
    return step_of(optimizer, lambda x, y: model(x).cross_entropy(y), wrap, x, y)


def vae(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    model = started(nn.Sequential(
        nn.Sequential(nn.Conv2d(1, w, 4, 2, 1), Tensor.relu, nn.Conv2d(w, 2 * w, 4, 2, 1), Tensor.relu,
                      lambda x: x.flatten(1), nn.Linear(2 * w * 49, 2 * size.latent)),
        nn.Sequential(nn.Linear(size.latent, 2 * w * 49), Tensor.relu, lambda x: x.unflatten(1, (2 * w, 7, 7)),
                      nn.ConvTranspose2d(2 * w, w, 4, 2, 1), Tensor.relu, nn.ConvTranspose2d(w, 1, 4, 2, 1)),
    ))  # fmt: skip
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(x: Tensor, noise: Tensor) -> Tensor:
        mean, log_var = model[0](x).chunk(2, 1)
        logits = model[1](mean + noise * (0.5 * log_var).exp())
        found = logits.binary_cross_entropy_with_logits(x, reduction="sum")
        return (found - 0.5 * (1 + log_var - mean * mean - log_var.exp()).sum()) / len(x)

    return step_of(optimizer, loss_of, wrap, Tensor(images(size.batch, 1, 28, 28)),
                   Tensor(normal(size.batch, size.latent)))  # fmt: skip


def gan(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    maker = started(nn.Sequential(nn.Linear(32, w), Tensor.relu, nn.Linear(w, w), Tensor.relu, nn.Linear(w, 784)))
    judge = started(nn.Sequential(nn.Linear(784, w), lambda x: x.leaky_relu(0.2), nn.Linear(w, 1)))
    makers = nn.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = nn.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step(real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        ones, zeros = Tensor.ones(len(real), 1), Tensor.zeros(len(real), 1)
        fake = maker(noise).tanh()
        judges.zero_grad()
        judged = judge(real).binary_cross_entropy_with_logits(ones)
        judged = judged + judge(fake.detach()).binary_cross_entropy_with_logits(zeros)
        judged.backward()
        judges.step()
        makers.zero_grad()
        fooled = judge(maker(noise).tanh()).binary_cross_entropy_with_logits(ones)
        fooled.backward()
        makers.step()
        return judged, fooled

    return partial(wrap(step), Tensor(images(size.batch, 784)), Tensor(normal(size.batch, 32)))


class Denoiser(nn.Module):
    """A small U-Net: down, middle, up, with an embedding of the time step."""

    def __init__(self, w: int) -> None:
        self.time = nn.Sequential(nn.Linear(32, w), Tensor.silu, nn.Linear(w, w))
        self.first, self.norm = nn.Conv2d(3, w, 3, padding=1), nn.GroupNorm(4, w)
        self.down, self.middle = nn.Conv2d(w, 2 * w, 3, 2, 1), nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.Conv2d(2 * w, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t.unsqueeze(1) * (Tensor.arange(16) * (-math.log(1e4) / 16)).exp()
        time = self.time(angles.sin().cat(angles.cos(), axis=1))
        first = self.norm(self.first(x) + time.reshape(*time.shape, 1, 1)).silu()
        deep = self.middle(self.down(first).silu()).silu()
        return self.last(first.cat(self.up(deep).silu(), axis=1))


def diffusion(size: Sizes, wrap: Wrap) -> Call:
    model = started(Denoiser(size.width))
    optimizer = nn.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        kept = (t / 1000 * (math.pi / 2)).cos().reshape(-1, 1, 1, 1)
        return model(x * kept + noise * (1 - kept * kept).sqrt(), t).mse_loss(noise)

    shape = (size.batch, 3, size.side, size.side)
    t = Tensor(integers(1000, size.batch)).float().realize()
    return step_of(optimizer, loss_of, wrap, Tensor(images(*shape)), t, Tensor(normal(*shape)))


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        self.lstm, self.head = nn.LSTM(16, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(size: Sizes, wrap: Wrap) -> Call:
    model = started(Recurrent(size.width))
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-3)
    x, y = Tensor(normal(size.batch, size.length, 16)), Tensor(normal(size.batch, 1))
    return step_of(optimizer, lambda x, y: model(x).mse_loss(y), wrap, x, y)


class GraphNetwork(nn.Module):
    def __init__(self, width: int) -> None:
        self.message1, self.own1 = nn.Linear(32, width), nn.Linear(32, width)
        self.message2, self.own2 = nn.Linear(width, 7), nn.Linear(width, 7)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, share: Tensor) -> Tensor:
        def gathered(h: Tensor) -> Tensor:
            return Tensor.zeros(len(x), h.shape[1]).index_add(0, target, h[source]) * share

        h = (self.own1(x) + gathered(self.message1(x))).relu()
        return self.own2(h) + gathered(self.message2(h))


def graph(size: Sizes, wrap: Wrap) -> Call:
    model = started(GraphNetwork(size.width))
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-2)
    source, target = (Tensor(integers(size.nodes, size.edges, seed=seed)) for seed in (1, 2))
    share = (1 / (Tensor.zeros(size.nodes).index_add(0, target, Tensor.ones(size.edges)) + 1)).unsqueeze(1).realize()
    x, y = Tensor(normal(size.nodes, 32)), Tensor(labels(7, size.nodes))
    return step_of(optimizer, lambda x, y: model(x, source, target, share).cross_entropy(y), wrap, x, y)


def attention(size: Sizes, wrap: Wrap) -> Call:
    w = size.width
    model = started(nn.Sequential(nn.Embedding(1000, w), *(Block(w, size.heads, False) for _ in range(size.layers)),
                                  lambda x: x.mean(1), nn.Linear(w, 4)))  # fmt: skip
    optimizer = nn.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y, label_smoothing=0.1)
        loss.backward()
        nn.optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return partial(wrap(step), Tensor(integers(1000, size.batch, size.length)), Tensor(labels(4, size.batch)))


def second(size: Sizes, wrap: Wrap) -> Call:
    """A network u(x) with u'' = -sin(x): the loss holds second derivatives."""
    model = started(nn.Sequential(nn.Linear(1, size.width), Tensor.tanh, nn.Linear(size.width, size.width),
                                  Tensor.tanh, nn.Linear(size.width, 1)))  # fmt: skip
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(x: Tensor) -> Tensor:
        u = model(x)
        (slope,) = u.sum().gradient(x)
        (curve,) = slope.sum().gradient(x)
        return (curve + x.sin()).square().mean() + u.square().mean()

    return step_of(optimizer, loss_of, wrap, Tensor(normal(size.points, 1), requires_grad=True))


def mixed(size: Sizes, wrap: Wrap) -> Call:
    """Float32 weights, products in bfloat16."""
    model = started(nn.Sequential(nn.Linear(size.width, size.width), nn.Linear(size.width, size.width),
                                  nn.Linear(size.width, 10)))  # fmt: skip
    optimizer = nn.optim.SGD(model.parameters(), lr=0.01)

    def low(layer: nn.Linear, x: Tensor) -> Tensor:
        return x.bfloat16().linear(layer.weight.bfloat16(), layer.bias.bfloat16())

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        h = low(model[1], low(model[0], x).relu()).relu()
        return low(model[2], h).float().cross_entropy(y)

    return step_of(optimizer, loss_of, wrap, Tensor(normal(size.batch, size.width)), Tensor(labels(10, size.batch)))


def mixed_f32(size: Sizes, wrap: Wrap) -> Call:
    model = started(nn.Sequential(nn.Linear(size.width, size.width), nn.Linear(size.width, size.width),
                                  nn.Linear(size.width, 10)))  # fmt: skip
    optimizer = nn.optim.SGD(model.parameters(), lr=0.01)
    x, y = Tensor(normal(size.batch, size.width)), Tensor(labels(10, size.batch))
    return step_of(optimizer, lambda x, y: model[2](model[1](model[0](x).relu()).relu()).cross_entropy(y), wrap, x, y)


def resume(size: Sizes, wrap: Wrap) -> Call:
    """Two steps, weights and optimizer through a file, and the steps after it."""

    def made() -> tuple[Any, Any]:
        model = started(nn.Sequential(nn.Linear(64, size.width), Tensor.silu, nn.LayerNorm(size.width),
                                      nn.Linear(size.width, 64)))  # fmt: skip
        return model, nn.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)

    x, y = Tensor(normal(size.batch, 64)), Tensor(normal(size.batch, 64, seed=1))
    model, optimizer = made()
    for _ in range(2):
        step_of(optimizer, lambda x, y: model(x).mse_loss(y), lambda f: f, x, y)()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "model", Path(folder) / "optimizer"
        for file, saved in zip(files, (model, optimizer), strict=True):
            nn.state.save(file, saved.state_dict())
        again, then = made()
        again.load_state_dict(nn.state.load(files[0]))
        then.load_state_dict(nn.state.load(files[1]))
    return step_of(then, lambda x, y: again(x).mse_loss(y), wrap, x, y)


def lengths(size: Sizes, wrap: Wrap) -> Call:
    """A step on a batch of each of four lengths."""
    model = started(nn.Sequential(nn.Embedding(500, size.width), lambda x: x.mean(1), nn.Linear(size.width, size.width),
                                  Tensor.relu, nn.Linear(size.width, 4)))  # fmt: skip
    optimizer = nn.optim.Adam(model.parameters(), lr=1e-3)
    y = Tensor(labels(4, size.batch))
    texts = [Tensor(integers(500, size.batch, size.length + k * 7)) for k in range(4)]
    step = step_of(optimizer, lambda x, y: model(x).cross_entropy(y), wrap).func
    return lambda: [step(x, y) for x in texts]


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + (self.downsample(x) if self.downsample else x)).relu()


def resnet(size: Sizes, wrap: Wrap) -> Call:
    """ResNet-18."""
    w = size.width
    widths = [(w, w, 1), (w, 2 * w, 2), (2 * w, 4 * w, 2), (4 * w, 8 * w, 2)]
    blocks = [Residual(*where) for a, b, s in widths for where in ((a, b, s), (b, b, 1))]
    model = started(nn.Sequential(nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), Tensor.relu,
                                  lambda x: x.max_pool2d(3, 2, 1), *blocks, lambda x: x.mean((2, 3)),
                                  nn.Linear(8 * w, 10)))  # fmt: skip
    optimizer = nn.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = Tensor(images(size.batch, 3, size.side, size.side)), Tensor(labels(10, size.batch))
    return step_of(optimizer, lambda x, y: model(x).cross_entropy(y), wrap, x, y)


def gpt_98m(size: Sizes, wrap: Wrap) -> Call:
    return gpt(size, wrap)


def weights(size: Sizes, wrap: Wrap) -> Call:
    """Reads a model's weights from a file into a new model, and answers."""
    w = size.width
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "model"
    layers = [nn.Linear(w, w) for _ in range(size.layers)]
    nn.state.save(file, started(nn.Sequential(*layers)).state_dict())
    model = nn.Sequential(*[nn.Linear(w, w) for _ in range(size.layers)]).eval()
    x = Tensor(normal(size.batch, w))
    answer = wrap(lambda x: model(x))

    def call() -> Tensor:
        with no_grad():
            model.load_state_dict(nn.state.load(file))
            return answer(x)

    weakref.finalize(call, folder.cleanup)
    return call
