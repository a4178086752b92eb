"""A program of the suite: its name, sizes and goals; and the numbers that both libraries start from."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Call", "Program", "Sizes", "Wrap", "images", "integers", "labels", "normal", "values_for"]

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]  # one step: returns its results
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]  # jit, torch.compile or nothing
SEED = 28


class Sizes(dict[str, int]):
    """Sizes by name, read as attributes."""

    def __getattr__(self, name: str) -> int:
        return self[name]


@dataclass(frozen=True)
class Program:
    """A program; the function of its name in `<library>_<family>.py` makes a `Call` of sizes and a `Wrap`.

    `goals`: for a mode, the peer and the least ratio of the peer's time to kernmill's.
    """

    name: str
    family: str  # training, computing, real or eager
    about: str
    sizes: Mapping[str, int]
    tiny: Mapping[str, int]
    rtol: float = 1e-3
    modes: tuple[str, ...] = ("captured", "cold", "warm", "eager")
    goals: Mapping[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    peers: tuple[str, ...] = ("torch", "torch.compile", "old")


def normal(*shape: int, seed: int = SEED, scale: float = 1.0) -> Array:
    """Normally distributed float32 values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def images(*shape: int, seed: int = SEED) -> Array:
    """Float32 values from 0 to 1."""
    return np.random.default_rng(seed).random(shape, np.float32)


def integers(high: int, *shape: int, seed: int = SEED) -> Array:
    """Integers from 0 to high - 1."""
    return np.random.default_rng(seed).integers(0, high, shape)


labels = integers


def values_for(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Start values of a model's tensors by name: the same ones for both libraries."""
    return {name: start_value(name, shape, zlib.crc32(name.encode())) for name, shape in shapes.items()}


def start_value(name: str, shape: tuple[int, ...], seed: int) -> Array:
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if name.endswith("running_mean"):
        return np.zeros(shape, np.float32)
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        return np.ones(shape, np.float32)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return normal(*shape, seed=seed, scale=0.5 / math.sqrt(fan_in))
