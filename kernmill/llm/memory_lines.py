"""What is where in a loaded model, in lines: weights by device and layout, cache, splits, and the table of memory.

Tests: tests/kernmill/llm/test_memory_lines.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from kernmill.runtime import get_device

from ..formats import gguf
from .arch.cache import pair_of
from .generate import Model

__all__ = ["load_lines", "memory_table"]

_COLUMNS = ("total", "free", "self", "model", "context", "compute", "unaccounted")


def load_lines(model: Model, file: gguf.GGUFFile) -> list[str]:
    """Return what was loaded, by device: the lines before the text."""
    config, split, name = model.config, model.split, file.metadata.read("general.architecture", str, "?")
    types = Counter(entry.type.name.lower() for entry in file.entries.values())
    shown = ", ".join(f"{count} {name}" for name, count in types.most_common())
    weights = model.architecture.bytes_by_layout
    size = f"{sum(weights.values()) / 2**30:.2f} GiB" if sum(weights.values()) >= 2**30 else _mib(weights.values())
    lines = [f"load: {name}, {config.layers} layers, {len(file.entries)} tensors ({shown}), {size}"]
    if split is not None:
        count = sum(name != split.host for name in split.layers)
        beside = " and the output" if split.output != split.host else ""
        lines.append(f"load: {split.text()}")
        if get_device(split.host).kind == "cpu":
            lines.append(f"load: {count} of {config.layers} layers{beside} are not on {split.host}")
    for name in model.memory_by_device():
        parts = [f"{_mib([size])} {layout}" for (device, layout), size in weights.items() if device == name]
        lines += [f"load: {name:8} {', '.join(parts)}"] if parts else []
    keys, values = pair_of(model.cache_type)
    lines.append(f"context: {model.capacity} of the {config.context} tokens that it was trained on")
    held = [f"{name} {_mib([memory.context])}" for name, memory in model.memory_by_device().items() if memory.context]
    lines.append(f"cache: k {keys}, v {values}, {', '.join(held) or 'nothing'}")
    if split is not None:
        homes = [split.host, *split.layers, split.output]
        borders = sum(a != b for a, b in pairwise(homes))
        copies = f"{borders} x {4 * config.width:,} bytes" if borders else "none"
        lines.append(f"splits: {borders + 1}, copies of a token: {copies}")
    return lines


def memory_table(model: Model) -> list[str]:
    """Return the memory of the model, device by device: `self` is model, context and compute; `unaccounted` is what
    others have. Both with `free` are the total. A line `-REPACK` has the part of the model that is laid out for the
    device's products."""
    lines = [f"{'memory [MiB]':16}" + "".join(f"{name:>12}" for name in _COLUMNS)]
    for name, memory in model.memory_by_device().items():
        props, own = get_device(name).props(), sum(memory)
        others = max(0, props.total_bytes - props.free_bytes - own)
        known = bool(props.total_bytes and props.free_bytes)
        shown = [_column(props.total_bytes), _column(props.free_bytes), *(f"{n / 2**20:12.2f}" for n in (own, *memory))]
        lines.append(f"{name:16}" + "".join([*shown, f"{others / 2**20:12.2f}" if known else f"{'-':>12}"]))
        repacked = model.architecture.bytes_by_layout.get((name, "interleaved"), 0)
        if repacked and model.split is not None and name != model.split.host:
            columns = [f"{repacked / 2**20:12.2f}" if column == "model" else f"{'-':>12}" for column in _COLUMNS]
            lines.append(f"{name + '-REPACK':16}" + "".join(columns))
    return lines


def _column(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:12.2f}" if size_bytes else f"{'-':>12}"


def _mib(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 2**20:.2f} MiB"
