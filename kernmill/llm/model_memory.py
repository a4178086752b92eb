"""class ModelMemory: the memory of a model's weights, cache and captured graphs, in all or by device.

Tests: tests/kernmill/llm/test_devices.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernmill import Tensor

from ..captures import Jit
from .arch.weight import nbytes

__all__ = ["ModelMemory", "by_device"]


class ModelMemory(NamedTuple):
    """The memory of a model on its device. Units: bytes. `context` is the cache, `compute` the memory of captures."""

    weights: int
    context: int
    compute: int


def by_device(
    devices: Sequence[str],
    weights: Mapping[tuple[str, str], int],
    captures: Iterable[Jit[..., Any]],
    cache: Iterable[Tensor],
) -> dict[str, ModelMemory]:
    """Return the memory on each device. `weights`: bytes by device and layout; `cache`: the tensors of the cache."""
    nothing = ModelMemory(0, 0, 0)
    found = dict.fromkeys(devices, nothing)
    for (name, _), size_bytes in weights.items():
        found[name] = found[name]._replace(weights=found[name].weights + size_bytes)
    for name, size_bytes in (row for one in captures for row in one.memory().by_device.items()):
        known = found.get(name, nothing)
        found[name] = known._replace(compute=known.compute + size_bytes)
    for tensor in cache:
        known = found[tensor.device]
        found[tensor.device] = known._replace(context=known.context + nbytes(tensor))
    return found
