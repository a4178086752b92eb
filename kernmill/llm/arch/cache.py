"""class Cache: keys and values of the tokens so far, each at its position, and the states of recurrent layers.

class `Positions`: the positions of new tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from kernmill import DType, SettingError, Tensor, Variable, cat, dtypes, where

from ...quant import BLOCKS

__all__ = ["CACHE_TYPES", "Cache", "CacheTypes", "LayerMemory", "LayerTurns", "Positions", "pair_of"]

CacheTypes = str | tuple[str, str]  # of both, or of keys and of values
LayerTurns = Mapping[bool, tuple[Tensor, Tensor]]  # of layers with and without a window: cosine and sine

_FLOATS = {"f32": dtypes.float32, "f16": dtypes.float16, "bf16": dtypes.bfloat16}
_BLOCK = 32  # values: heads have 64 to 256 of them
_TYPES = {name.lower(): kind for name, kind in BLOCKS.items() if kind.write is not None and kind.values == _BLOCK}
CACHE_TYPES = (*_FLOATS, *_TYPES)


class Chosen(NamedTuple):
    """The sequences of a cache that a step continues, and their positions. It writes by variables and reads by data.

    Shapes: ids and first (rows,).
    """

    numbers: Sequence[Any]
    ids: Tensor
    first: Tensor


class Positions(NamedTuple):
    """The positions of the new tokens of a step: variables of the captured graph, so that one graph serves every
    position.

    `first`: of each sequence, the position of its first new token. `end`: one past the last position that any sequence
    uses. `chosen`: some sequences of the cache, for a step of an engine; None: all of them, in order.
    `lengths`: of whole texts, which need no cache, how many tokens each has; the others are padding. `counts`: of each
    sequence, how many of its new tokens are text. The others are padding, which must not change a state; None: none is.
    `inputs`: what layers of some models take in addition to x.
    """

    first: Sequence[Any]
    end: Any
    chosen: Chosen | None = None
    lengths: Tensor | None = None
    counts: Tensor | None = None
    inputs: Tensor | None = None

    @classmethod
    def bound(cls, first: Sequence[int], count: int, capacity: int) -> Positions:
        """The arguments of one call for steps of `count` tokens."""
        names, end = _variables(len(first), count, capacity)
        return cls(tuple(v.bind(p) for v, p in zip(names, first, strict=True)), end.bind(max(first) + count))

    @classmethod
    def of_rows(cls, numbers: Sequence[int], first: Sequence[int], count: int, size: tuple[int, int]) -> Positions:
        """The arguments of one call for `count` tokens of each of these sequences of a cache.

        `size`: number of sequences, and capacity.
        """
        sequences, capacity = size
        names = [Variable(f"row{n}", 0, sequences - 1) for n in range(len(numbers))]
        bound = tuple(name.bind(number) for name, number in zip(names, numbers, strict=True))
        ids, starts = (Tensor(np.array(values, np.int32)) for values in (numbers, first))
        return cls.bound(first, count, capacity)._replace(chosen=Chosen(bound, ids, starts))

    def row(self, n: int) -> Any:
        """The number in the cache of the sequence of row n."""
        return n if self.chosen is None else self.chosen.numbers[n]

    def cached(self, table: Tensor) -> Tensor:
        """The entries of these sequences up to `end`. Shapes: (all, heads, capacity, ..) -> (sequences, heads, end,
        ..)."""
        if self.chosen is None:
            return table[:, :, : self.end]
        if len(self.first) > 1:
            return table[self.chosen.ids][:, :, : self.end]
        number = self.row(0)
        return table[number : number + 1, :, : self.end]

    @property
    def starts(self) -> Tensor:
        """The first position of each sequence. Shapes: (sequences,)."""
        if self.chosen is not None:
            return self.chosen.first
        return cat([Tensor(p).reshape(1) for p in self.first])

    @classmethod
    def whole(cls, lengths: Tensor, count: int) -> Positions:
        """Whole texts from position 0 on. Shapes: lengths (texts,)."""
        return cls((0,), count, lengths=lengths)

    def rows(self, table: Tensor, count: int) -> Tensor:
        """Return the rows of a table for the new tokens; of whole texts the same for all.

        Shapes: (capacity, ..) -> (sequences or 1, count, ..).
        """
        if self.chosen is not None and len(self.first) > 1:
            positions = self.chosen.first.unsqueeze(1) + Tensor.arange(count)
            return table[positions]
        return cat([table[p : p + count].unsqueeze(0) for p in self.first])


@functools.cache
def _variables(sequences: int, count: int, capacity: int) -> tuple[list[Variable], Variable]:
    names = [Variable(f"first{n}", 0, capacity - count) for n in range(sequences)]
    return names, Variable("end", count, capacity)


def _row(type: str, width: int) -> tuple[tuple[int, ...], DType]:
    """Return shape and dtype of a stored key or value."""
    if type not in CACHE_TYPES:
        raise SettingError(f"cache of {type!r}: must be one of {', '.join(CACHE_TYPES)}.")
    if type in _FLOATS:
        return (width,), _FLOATS[type]
    if width % _BLOCK:
        raise SettingError(
            f"cache of {type}: heads of {width} values are not a multiple of the block size {_BLOCK}. Choose one of "
            f"{', '.join(_FLOATS)}."
        )
    return (width // _BLOCK, _TYPES[type].size_bytes), dtypes.uint8


def pair_of(types: CacheTypes) -> tuple[str, str]:
    """The types of keys and of values.

    Raises:
        SettingError: it is neither a string nor a pair of strings.
    """
    pair = (types, types) if isinstance(types, str) else types
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
        raise SettingError(f"cache_type={types!r}: must be a type, or a pair (type of keys, type of values).")
    return pair[0], pair[1]


class LayerMemory(NamedTuple):
    """The memory of a layer for a sequence: keys and values of some heads, 0 for none, and states of these shapes."""

    heads: int
    key_width: int
    value_width: int
    states: tuple[tuple[int, ...], ...] = ()
    home: str | None = None  # its device; None: the setting


class Cache(NamedTuple):
    """Keys and values of layers: the token at position p of a sequence is stored at index p. States of layers: the one
    after the last token of a sequence, and one that is kept, to which the sequence can go back.

    A tuple of dicts by layer, since `jit` finds the tensors of containers and tracks writes to them.

    Shapes: keys[layer] (sequences, kv heads, capacity, head width), values[layer] the same with the value width. Of a
    type with blocks the last axis is [blocks, bytes of a block]. Each of states[layer] (2 * sequences, ..), the kept
    ones behind.
    """

    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    states: dict[int, list[Tensor]]
    key_type: str = "f32"
    value_type: str = "f32"
    passed: dict[int, tuple[Tensor, Tensor]] | None = None  # without a cache: keys and values of this pass

    @classmethod
    def empty(cls, layers: Sequence[LayerMemory], capacity: int, sequences: int = 1, type: CacheTypes = "f32") -> Cache:
        """Return a cache of zeros: unwritten positions are masked, but 0 times nan would be nan.

        Raises:
            SettingError: unknown type, or heads that are not a multiple of its block size.
        """

        def zeros(kept: LayerMemory, width: int, type: str) -> Tensor:
            row, dtype = _row(type, width)
            shape = (sequences, kept.heads, capacity, *row)
            return Tensor(np.zeros(shape, np.float32 if dtype.is_float else np.uint8), dtype, device=kept.home)

        key_type, value_type = pair_of(type)
        numbered = [(n, kept) for n, kept in enumerate(layers) if kept.heads]
        keys = {n: zeros(kept, kept.key_width, key_type) for n, kept in numbered}
        values = {n: zeros(kept, kept.value_width, value_type) for n, kept in numbered}
        states = {
            n: [Tensor(np.zeros((2 * sequences, *shape), np.float32), device=kept.home) for shape in kept.states]
            for n, kept in enumerate(layers)
            if kept.states
        }
        return cls(keys, values, states, key_type, value_type)

    @classmethod
    def none(cls) -> Cache:
        """The cache of whole texts: it keeps nothing."""
        return cls({}, {}, {}, passed={})

    @staticmethod
    def nbytes(layers: Sequence[LayerMemory], capacity: int, sequences: int = 1, type: CacheTypes = "f32") -> int:
        """Return the bytes that `empty` takes. Raises the same errors."""
        total = 0
        for kept in layers:
            if kept.heads:
                rows = map(_row, pair_of(type), (kept.key_width, kept.value_width))
                total += capacity * kept.heads * sum(prod(row) * dtype.size_bytes for row, dtype in rows)
            total += 2 * 4 * sum(map(prod, kept.states))
        return total * sequences

    @property
    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return [*self.keys.values(), *self.values.values(), *(one for each in self.states.values() for one in each)]

    def of_layer(self, layer: int) -> list[Tensor]:
        """The tensors that a layer changes."""
        pair = [self.keys[layer], self.values[layer]] if layer in self.keys else []
        return [*pair, *self.states.get(layer, [])]

    def read_states(self, layer: int, positions: Positions) -> list[Tensor]:
        """The states of a layer before the new tokens: zeros at position 0. Shapes: (sequences, ..) each."""
        is_begun = positions.starts > 0
        found: list[Tensor] = []
        for table in self.states[layer]:
            if positions.chosen is None:
                rows = table[: len(positions.first)]
            elif len(positions.first) > 1:
                rows = table[positions.chosen.ids]
            else:
                rows = table[positions.row(0) : positions.row(0) + 1]
            found.append(where(is_begun.reshape(-1, *[1] * (table.ndim - 1)), rows, rows._filled(0.0)))
        return found

    def write_states(self, layer: int, positions: Positions, states: Sequence[Tensor]) -> None:
        """Replace the states of a layer by those after the new tokens. Shapes: (sequences, ..) each."""
        for table, new in zip(self.states[layer], states, strict=True):
            if positions.chosen is None:
                table[: len(positions.first)] = new
                continue
            for n in range(len(positions.first)):
                row = positions.row(n)
                table[row : row + 1] = new[n : n + 1]

    def copy_tokens(self, source: Any, target: Any, position: Any, count: int) -> None:
        """Replace `count` keys and values of a sequence, from a position on, by those of another at the same ones."""
        for table in (*self.keys.values(), *self.values.values()):
            taken = table[source : source + 1, :, position : position + count].contiguous()
            table[target : target + 1, :, position : position + count] = taken

    def move_tokens(
        self, number: Any, source: Any, target: Any, count: int, turned: Callable[[int, Tensor], Tensor]
    ) -> None:
        """Replace `count` keys and values of a sequence, from position `target` on, by those from `source` on.

        `turned`: rotates the keys of a layer to the other positions. Shapes: (1, kv heads, count, width) to the same.
        """
        rows, old, new = (slice(at, at + size) for at, size in ((number, 1), (source, count), (target, count)))
        for n, table in self.keys.items():
            keys = turned(n, _read(table[rows, :, old], self.key_type)).contiguous()
            table[rows, :, new] = _stored(keys, self.key_type)
        for table in self.values.values():
            table[rows, :, new] = table[rows, :, old].contiguous()

    def copy_states(self, source: Any, target: Any) -> None:
        """Replace the states of a row by those of another: rows are numbers of sequences, kept ones behind."""
        for layer in self.states.values():
            for table in layer:
                table[target : target + 1] = table[source : source + 1].contiguous()

    def write(self, layer: int, positions: Positions, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of new tokens; return those of the layer up to `positions.end`.

        Shapes: keys and values (sequences, kv heads, tokens, width); the results the same with `end` tokens.
        Dtypes: the results float32.
        """
        if layer not in self.keys:
            if self.passed is not None:
                self.passed[layer] = keys, values
            return keys, values
        count = keys.shape[2]
        found: list[Tensor] = []
        for old, new, type in (
            (self.keys[layer], keys, self.key_type),
            (self.values[layer], values, self.value_type),
        ):
            stored = _stored(new, type)
            for n, p in enumerate(positions.first):
                row = positions.row(n)
                old[row : row + 1, :, p : p + count] = stored[n : n + 1]
            found.append(_read(positions.cached(old), type))
        return found[0], found[1]

    def read(self, layer: int, positions: Positions) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer up to `positions.end`, those of this pass included. See `write`."""
        if layer not in self.keys:
            assert self.passed is not None
            return self.passed[layer]
        keys, values = positions.cached(self.keys[layer]), positions.cached(self.values[layer])
        return _read(keys, self.key_type), _read(values, self.value_type)


def _stored(x: Tensor, type: str) -> Tensor:
    """Convert floats to the cache's type."""
    return x if type in _FLOATS else _TYPES[type].encode(x.unflatten(-1, (-1, _BLOCK)))


def _read(kept: Tensor, type: str) -> Tensor:
    """Convert cached values to floats."""
    return kept.float() if type in _FLOATS else _TYPES[type].decode(kept).flatten(-2)
