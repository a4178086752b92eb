"""The computing programs in torch. Each function returns a callable that returns the program's results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .program import Call, Sizes, Wrap, images, normal

Tensor = Any
tensor = torch.from_numpy


def without_gradients(step: Callable[..., Any], wrap: Wrap) -> Callable[..., Any]:
    return torch.inference_mode()(wrap(step))


def kmeans(size: Sizes, wrap: Wrap) -> Call:
    def step(points: Tensor, centers: Tensor) -> Tensor:
        for _ in range(size.rounds):
            squares = (points * points).sum(1, keepdim=True) - 2 * points @ centers.T + (centers * centers).sum(1)
            own = F.one_hot(squares.argmin(1), len(centers)).float()
            centers = (own.T @ points) / own.sum(0).unsqueeze(1).clip(1)
        return centers

    points = normal(size.points, size.width)
    return partial(without_gradients(step, wrap), tensor(points), tensor(points[: size.centers].copy()))


def linalg(size: Sizes, wrap: Wrap) -> Call:
    """Conjugate gradients of a symmetric system, and a power iteration."""

    def step(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, rest = torch.zeros(len(b)), b
        direction, square = rest, rest.dot(rest)
        for _ in range(size.rounds):
            image = a @ direction
            share = square / direction.dot(image)
            x, rest = x + share * direction, rest - share * image
            now = rest.dot(rest)
            direction, square = rest + now / square * direction, now
        v = b
        for _ in range(size.rounds):
            v = a @ v
            v = v / v.norm()
        return x, v.dot(a @ v)

    half = normal(size.n, size.n, scale=1 / math.sqrt(size.n))
    a = half @ half.T + np.eye(size.n, dtype=np.float32)
    return partial(without_gradients(step, wrap), tensor(a), tensor(normal(size.n)))


def spectrogram(size: Sizes, wrap: Wrap) -> Call:
    """Windows of a signal, by the matrices of the discrete Fourier transform; logarithms of 40 bands."""
    n = size.window
    angles = 2 * math.pi / n * np.outer(np.arange(n), np.arange(n // 2 + 1))
    cos, sin = tensor(np.cos(angles).astype(np.float32)), tensor(np.sin(angles).astype(np.float32))
    bands, window = tensor(images(n // 2 + 1, 40)), tensor(np.hanning(n).astype(np.float32))

    def step(signal: Tensor) -> Tensor:
        frames = signal.unfold(1, n, n // 4) * window
        power = (frames @ cos).square() + (frames @ sin).square()
        return (power @ bands + 1e-6).log()

    return partial(without_gradients(step, wrap), tensor(normal(size.batch, size.length)))


def stencil(size: Sizes, wrap: Wrap) -> Call:
    """Heat on a square whose border stays cold."""

    def step(u: Tensor) -> Tensor:
        for _ in range(size.rounds):
            inner = u[1:-1, 1:-1]
            inner = inner + 0.2 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * inner)
            u = F.pad(inner, (1, 1, 1, 1))
        return u

    return partial(without_gradients(step, wrap), tensor(images(size.n, size.n)))


def nbody(size: Sizes, wrap: Wrap) -> Call:
    def step(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(size.rounds):
            apart = x.unsqueeze(0) - x.unsqueeze(1)
            near = (apart * apart).sum(2) + 0.01
            pull = (apart * (mass * near.rsqrt() / near).unsqueeze(2)).sum(1)
            v = v + 0.01 * pull
            x = x + 0.01 * v
        return x, v

    given = tensor(normal(size.n, 3)), tensor(normal(size.n, 3, seed=1)), tensor(images(size.n))
    return partial(without_gradients(step, wrap), *given)


def pictures(size: Sizes, wrap: Wrap) -> Call:
    """Normalize, blur, edges, brightness, half the size, flipped."""
    blur = tensor(np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]).astype(np.float32) / 256)
    sobel = tensor(np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32))

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = x.mean((2, 3), keepdim=True), x.std((2, 3), keepdim=True)
        x = (x - mean) / deviation
        x = F.conv2d(x, blur.expand(3, 1, 5, 5), padding=2, groups=3)
        gray = (0.3 * x[:, :1] + 0.59 * x[:, 1:2] + 0.11 * x[:, 2:]).clip(-2, 2)
        across = F.conv2d(gray, sobel.reshape(1, 1, 3, 3), padding=1)
        along = F.conv2d(gray, sobel.T.reshape(1, 1, 3, 3), padding=1)
        edges = (across * across + along * along + 1e-6).sqrt()
        small = F.interpolate(x, scale_factor=0.5, mode="bilinear").flip(3)
        return edges, small

    return partial(without_gradients(step, wrap), tensor(images(size.batch, 3, size.side, size.side)))
