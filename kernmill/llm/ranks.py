"""A model over the ranks of a job: which part each rank has, its bytes of the file, and the steps that rank 0 leads.

All ranks open the file. Rank 0 reads prompts, samples and serves; before each step it tells the others what to compute,
and `follow` does it there. Tests: tests/kernmill/llm/test_ranks.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from kernmill import SettingError
from kernmill.ir import DeviceTable, show_ns
from kernmill.runtime import get_device, later

from .. import dist
from ..formats import gguf
from .arch import ARCHITECTURES, Architecture, Config
from .arch.experts import expert_shapes
from .arch.part import RankPart, Slices
from .model_file import config_in
from .split import ModelTooLargeError, SplitOptions, stages

__all__ = ["RankedFile", "over_ranks"]

_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16  # of a file that are compared over the ranks
_READING = ("bytes_per_ns", "near_bytes", "far_bytes_per_ns")  # the rates of a device that reads
_ONCE = ("attn_output.bias", "ffn_down.bias")  # are added by rank 0: the sum over ranks follows


class RankedFile(NamedTuple):
    """A file with this rank's part of each tensor, and the sizes of this rank's model."""

    file: gguf.GGUFFile
    config: Config
    text: str  # what rank 0 prints of the split


def over_ranks(file: gguf.GGUFFile, wanted: SplitOptions, cache_bytes: Callable[[Config], int]) -> RankedFile:
    """Divide a model over the ranks of this job; all of them call this.

    `cache_bytes`: of a model with these sizes.

    Raises:
        SettingError: the sizes of the model cannot be divided.
        ModelTooLargeError: the memory of the ranks does not suffice.
        DistError: ranks have different files or options.
    """
    dist.agree(f"the file of the model ({file.where})", f"the checksum {_digest(file):08x}")
    dist.agree("the options of the split", wanted)
    config = config_in(file)
    kind = ARCHITECTURES[config.name]
    if kind.layer_inputs is not Architecture.layer_inputs or kind.has_streams:
        raise SettingError(f"--split: layers of {config.name} models share more than x. Run the model on one rank.")
    vocabulary = file.entries["token_embd.weight"].shape[0]
    part = RankPart(dist.rank(), dist.size(), 0, config.layers, vocabulary, wanted.mode == "tensor")
    if part.by_tensors:
        own = _divided(config, part)
        shown = (
            f"each of {part.size} ranks has {own.heads} of {config.heads} heads and {own.feed_forward} of "
            f"{config.feed_forward} rows of each layer"
        )
        _check_room(file, part, cache_bytes(own))
    else:
        bounds, shown = _layers(file, config, wanted, cache_bytes(config) // config.layers)
        part = replace(part, first=bounds[part.rank], stop=bounds[part.rank + 1])
        own = replace(config, part=part)
    entries = {
        name: _own_entry(entry, part, config, own) for name, entry in file.entries.items() if _has(name, part, file)
    }
    fields: dict[str, Any] = {**_fields(file), "entries": entries}
    return RankedFile(_PartFile(**fields, whole=file, own=own, config=config), own, shown)


def _fields(file: gguf.GGUFFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in gguf.GGUFFile.__dataclass_fields__}


def _digest(file: gguf.GGUFFile) -> int:
    """A checksum of the head and of samples of a file."""
    found = 0
    for data in file.parts:
        step = max(_SAMPLE_BYTES, len(data) // _SAMPLES)
        for start in range(0, len(data), step):
            found = crc32(data[start : start + _SAMPLE_BYTES], found)
        found = crc32(str(len(data)).encode(), found)
    return found


# --- layers ----------------------------------------------------------------------------------------------------------
def _has(name: str, part: RankPart, file: gguf.GGUFFile) -> bool:
    """True if this rank needs a tensor."""
    if part.by_tensors:
        return True
    if name.startswith("blk."):
        return part.first <= int(name.split(".")[1]) < part.stop
    if name == "token_embd.weight":
        return part.is_first or (part.is_last and "output.weight" not in file.entries)
    return part.is_last or name != "output.weight"


def _layers(file: gguf.GGUFFile, config: Config, wanted: SplitOptions, cache_bytes: int) -> tuple[list[int], str]:
    """The first layer of each rank, and the number of layers; by the options, else by memory, rates and links."""
    sizes = {name: entry.stop - entry.start for name, entry in file.entries.items()}
    of_layer, read = ([0] * config.layers for _ in range(2))
    for name, size in sizes.items():
        if name.startswith("blk.") and (n := int(name.split(".")[1])) < config.layers:
            of_layer[n] += size
            read[n] += size * config.experts.used // config.experts.count if "_exps." in name else size
    embedding, vocabulary = sizes["token_embd.weight"], file.entries["token_embd.weight"].shape[0]
    of_output = sum(size for name, size in sizes.items() if name.startswith("output"))
    of_output += 0 if "output.weight" in sizes else embedding
    table, size = _ranks_table(4 * config.width), dist.size()
    if wanted.shares and len(wanted.shares) != size:
        raise SettingError(f"-ts: {len(wanted.shares)} shares for {size} ranks. Give one for each.")
    bounds, time_ns = stages(of_layer, of_output, cache_bytes, table, wanted.shares, embedding, read)
    if bounds is None:
        free = ", ".join(f"{spec.name} {spec.limit_bytes / 2**20:.1f} MiB" for spec in table.specs)
        need = (sum(of_layer) + of_output + embedding + cache_bytes * config.layers) / 2**20
        raise ModelTooLargeError(
            f"this model does not fit: it takes {need:.1f} MiB, and the ranks have free: {free}. Start more ranks, or "
            "choose a smaller context (-c) or a smaller cache type (-ctk)."
        )
    ranges = [
        f"rank {n}: layers {a}-{b - 1}" if b > a else f"rank {n}: no layers"
        for n, (a, b) in enumerate(itertools.pairwise(bounds))
    ]
    ends = table.names[0], table.names[-1]
    links = (size - 1) * table.copy_ns(*ends, 4 * config.width) + table.copy_ns(*ends, 4 * vocabulary)
    return bounds, f"{', '.join(ranges)}; predicted {show_ns(time_ns + links)} a token, {show_ns(links)} of it in links"


def _ranks_table(size_bytes: int) -> DeviceTable:
    """The ranks as devices: free memory and rate of each, and the measured links between neighbours."""
    spec = next(iter(later.device_rates.device_table((), ()).specs))
    props = get_device().props()
    free = (props.free_bytes or props.total_bytes or 1 << 62) // dist.communicator().local_size
    own = {"limit_bytes": free, **{name: getattr(spec, name) for name in _READING}}
    found = dist.communicator().all_objects((own, dist.link_to_next()))
    names = [f"rank {n}" for n in range(dist.size())]
    specs = [spec._replace(name=name, **own) for name, (own, _) in zip(names, found, strict=True)]
    slowest = max((link for _, link in found), key=lambda link: link.time_ns(size_bytes))
    return DeviceTable(tuple(specs), {(a, b): slowest for a in names for b in names if a != b})


# --- tensors ---------------------------------------------------------------------------------------------------------
def _divided(config: Config, part: RankPart) -> Config:
    """The sizes of one rank's part of each layer."""
    kind, n, e = ARCHITECTURES[config.name], part.size, config.experts
    why = ""
    own_parts = (kind.attention, kind.mask, kind.layer, kind.feed_forward)
    known = (Architecture.attention, Architecture.mask, Architecture.layer, Architecture.feed_forward)
    if own_parts != known or kind.is_encoder or config.latent is not None:
        why = f"{config.name} models compute attention in another way"
    elif config.of_layers:
        why = "layers have different sizes"
    elif kind.shapes(config).get("attn_q_norm.weight", (config.head_width,)) != (config.head_width,):
        why = f"{config.name} models norm all heads together"
    else:
        sizes = {
            "key heads": config.kv_heads, "rows of feed-forward parts": config.feed_forward,
            "experts": e.count, "rows of shared experts": e.shared_width,
        }  # fmt: skip
        bad = next((f"{size} {name}" for name, size in sizes.items() if size % n), "")
        why = bad and f"{bad} cannot be divided by {n}"
    if why:
        raise SettingError(f"--split tensor over {n} ranks: {why}. Use --split layer.")
    experts = replace(e, here=e.count // n, shared_width=e.shared_width // n)
    return replace(
        config, part=part, heads=config.heads // n, kv_heads=config.kv_heads // n,
        feed_forward=config.feed_forward // n, experts=experts,
    )  # fmt: skip


def _check_room(file: gguf.GGUFFile, part: RankPart, cache_bytes: int) -> None:
    props = get_device().props()
    free = (props.free_bytes or props.total_bytes or 1 << 62) // dist.communicator().local_size
    need = sum(entry.stop - entry.start for entry in file.entries.values()) // part.size + cache_bytes
    short = [n for n, room in enumerate(dist.communicator().all_objects(free)) if room < need]
    if short:
        raise ModelTooLargeError(
            f"this model does not fit: each rank needs {need / 2**20:.1f} MiB, and rank {short[0]} has less. Start "
            "more ranks, or choose a smaller context (-c) or a smaller cache type (-ctk)."
        )


def _shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of a layer, also those that merge others."""
    kind = ARCHITECTURES[config.name]
    return kind.shapes(config) | expert_shapes(config)


def own_part(file: gguf.GGUFFile, name: str) -> Slices:
    """Return the part of a tensor that this rank has of a file."""
    if not isinstance(file, _PartFile) or file.own.part is None or not file.own.part.by_tensors:
        return Slices()
    return _slices(file.whole.entries[name], file.own.part, file.config, file.own)


def _slices(entry: gguf.GGUFEntry, part: RankPart, whole: Config, own: Config) -> Slices:
    """The part of a tensor that this rank has: an axis that is shorter in its model is divided."""
    r, name = part.rank, entry.name
    if name in ("token_embd.weight", "output.weight", "output.bias"):
        each, most = part.rows_each, entry.shape[0]
        return Slices(((min(r * each, most), min((r + 1) * each, most)),))
    all_of, mine = _shapes(whole), _shapes(own)
    merged = _joined_names(entry, whole)
    if merged[0] not in all_of:
        return Slices()
    old, new = all_of[merged[0]], mine[merged[0]]
    axis = next((axis for axis, (a, b) in enumerate(zip(old, new, strict=True)) if a != b), None)
    if axis is None:
        return Slices()
    if axis:
        return Slices(columns=(r * new[axis], (r + 1) * new[axis]))
    if len(old) == 3 or len(merged) == 1:
        return Slices(((r * new[0], (r + 1) * new[0]),))
    starts = itertools.accumulate((all_of[one][0] for one in merged), initial=0)
    sizes = [mine[one][0] for one in merged]
    return Slices(tuple((at + r * size, at + (r + 1) * size) for at, size in zip(starts, sizes, strict=False)))


def _joined_names(entry: gguf.GGUFEntry, config: Config) -> list[str]:
    """The matrices or biases that a tensor of a layer has, one after the other."""
    of_layer, all_of = entry.name.split(".", 2)[-1], _shapes(config)
    base, _, kind = of_layer.rpartition(".")
    axis = -1 if kind == "bias" else -2
    for joint, parts in ARCHITECTURES[config.name].fused:
        names = [f"{one}.{kind}" for one in parts]
        if joint == base and names[0] in all_of and entry.shape[axis] == sum(all_of[one][axis] for one in names):
            return names
    return [of_layer]


def _own_entry(entry: gguf.GGUFEntry, part: RankPart, whole: Config, own: Config) -> gguf.GGUFEntry:
    """The entry of a tensor as this rank has it."""
    if not part.by_tensors:
        return entry
    cut, shape = _slices(entry, part, whole, own), entry.shape
    if cut.rows:
        shape = (sum(stop - start for start, stop in cut.rows), *shape[1:])
    if cut.columns is not None:
        values = entry.type.values
        if any(column % values for column in cut.columns):
            raise SettingError(
                f"--split tensor: {entry.name} has rows of {shape[-1]} values in blocks of {values}, which {part.size} "
                "ranks cannot divide. Use --split layer."
            )
        shape = (*shape[:-1], cut.columns[1] - cut.columns[0])
    size = (entry.stop - entry.start) * prod(shape) // prod(entry.shape)
    return replace(entry, shape=shape, start=entry.start, stop=entry.start + size)


@dataclass(slots=True)
class _PartFile(gguf.GGUFFile):
    """A file whose tensors are this rank's parts; `entries` has those that it needs."""

    whole: gguf.GGUFFile
    config: Config
    own: Config

    def values(self, name: str) -> memoryview:
        """The bytes of this rank's part of a tensor: of rows in place where they are one range, else copied."""
        entry, part, data = self.whole.entries[name], self.own.part, self.whole.values(name)
        assert part is not None
        cut = own_part(self, name)
        if cut.columns is not None:
            table = np.frombuffer(data, np.uint8).reshape(prod(entry.shape[:-1]), -1)
            start, stop = (column // entry.type.values * entry.type.size_bytes for column in cut.columns)
            return np.ascontiguousarray(table[:, start:stop]).reshape(-1).data
        if name.endswith(_ONCE) and part.by_tensors and part.rank:
            return np.zeros(len(data), np.uint8).data
        row = len(data) // entry.shape[0] if entry.shape else 0
        pieces = [data[start * row : stop * row] for start, stop in cut.rows]
        return data if not pieces else pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def release(self, name: str) -> None:
        """The tensor was copied."""
        self.whole.release(name)
