"""The weights of a model's file in memory: matrices in the layout that products read fastest.

Tests: tests/kernmill/llm/test_generate.py.
"""

from __future__ import annotations

from collections.abc import Callable

from kernmill import Tensor
from kernmill.runtime import WeightArena, default_device, get_device

from ..formats import gguf
from ..quant import (
    BLOCKS,
    FloatMatrix,
    interleaved_bytes,
    interleaved_layout,
    load_tensor,
    prefers_interleaved_rows,
    rows_together,
)
from .arch import Weight
from .arch.tensors import is_plain
from .kept_weights import KeptWeights

__all__ = ["arena_for", "arenas_for", "loaded"]


def arena_for(file: gguf.GGUFFile) -> WeightArena:
    """Allocate memory for the interleaved matrices of a file: the system starts to pre-fault it."""
    return arenas_for(file, lambda _: default_device())[default_device()]


def arenas_for(
    file: gguf.GGUFFile, device_of: Callable[[str], str], kept: KeptWeights | None = None
) -> dict[str, WeightArena]:
    """Allocate memory for the interleaved matrices of a file on each device, but those that are kept on disk."""
    kept = KeptWeights(file) if kept is None else kept
    sizes: dict[str, list[int]] = {}
    for name, entry in file.entries.items():
        of_device = sizes.setdefault(device_of(name), [])
        layout = interleaved_layout(entry.type, device_of(name))
        if _is_interleaved(entry, device_of(name)) and not kept.has(name, layout, device_of(name)):
            of_device.append(interleaved_bytes(entry.type, entry.shape, device_of(name)))
    return {device: WeightArena(device, own) for device, own in sizes.items()}


def loaded(file: gguf.GGUFFile, name: str, arena: WeightArena, kept: KeptWeights) -> Weight:
    """A tensor of a file, copied: matrices in the order in which products read them fastest. A page of the file that is
    read later may bring 2 MB of it into memory."""
    is_interleaved = _is_interleaved(file.entries[name], get_device().name)
    found = load_tensor(file, name, copied=not is_interleaved)
    laid: Weight = found
    if is_interleaved:
        layout = interleaved_layout(file.entries[name].type)
        old = kept.find(name, layout, get_device().name)
        made = FloatMatrix.of(found, arena, old) if isinstance(found, Tensor) else found.interleaved(arena, old)
        if made.data is not old:
            kept.add(name, layout, made.data)
        laid = made
    file.release(name)
    return laid


def _is_interleaved(entry: gguf.GGUFEntry, device: str) -> bool:
    """True if a tensor is a matrix whose rows will be interleaved, or a stack of such matrices."""
    kind = entry.type.dtype
    if is_plain(entry.name):
        return False
    if len(entry.shape) == 3:
        block = BLOCKS.get(entry.type.name)
        together = FloatMatrix.interleave if block is None else rows_together(block, device)
        is_whole_groups = entry.shape[1] % together == 0
    else:
        is_whole_groups = len(entry.shape) == 2
    return is_whole_groups and (kind is None or prefers_interleaved_rows(kind, device))
