"""How the values of a tensor in a folder become those of a GGUF file, where they differ.

Values are NumPy arrays of the stored dtype: bfloat16 as uint16, since only their order changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "AS_FLOATS",
    "AS_STORED",
    "FLAT",
    "TRANSPOSED",
    "Change",
    "by_pairs",
    "every_second",
    "keys_of_latent",
    "plus_one",
    "queries_first",
    "rows_by_turns",
    "rows_from",
    "swapped",
    "values_of_latent",
]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Change(NamedTuple):
    """`apply` changes the values, and `shape` tells the shape of its result. `is_float`: it takes and gives float32."""

    apply: Callable[[Array], Array]
    shape: Callable[[Shape], Shape] = lambda shape: shape
    is_float: bool = False


def by_pairs(heads: int) -> Change:
    """Rows of queries or keys whose halves of a head were rotated together: neighbours are, in llama's files."""
    return Change(
        lambda rows: rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )  # fmt: skip


def queries_first(heads: int) -> Change:
    """Rows of queries, keys and values, head by head: all queries come first in a GGUF file."""
    return Change(lambda rows: rows.reshape(heads, 3, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape))


def rows_from(first: int) -> Change:
    """The rows from one on."""
    return Change(lambda rows: rows[first:], lambda shape: (max(0, shape[0] - first), *shape[1:]))


def every_second(first: int) -> Change:
    """Every second entry of the last axis."""
    return Change(lambda values: values[..., first::2], lambda shape: (*shape[:-1], (shape[-1] + 1 - first) // 2))


def rows_by_turns(first: int) -> Change:
    """Every second row of each matrix of a stack."""
    return Change(lambda stack: stack[:, first::2], lambda shape: (shape[0], (shape[1] + 1 - first) // 2, *shape[2:]))


def swapped(first: int | None = None) -> Change:
    """A stack of matrices whose rows become columns; only every second one where `first` says."""
    part = slice(first, None, 1 if first is None else 2)
    return Change(
        lambda stack: stack[..., part].swapaxes(-1, -2),
        lambda shape: (*shape[:-2], len(range(shape[-1])[part]), shape[-2]),
    )


def keys_of_latent(heads: int, keys: int, values: int) -> Change:
    """Of a matrix with keys and values of each head, the keys: (rank, keys) of each head."""
    return Change(
        lambda rows: rows.reshape(heads, keys + values, -1)[:, :keys].swapaxes(1, 2),
        lambda shape: (heads, shape[-1], keys),
    )


def values_of_latent(heads: int, keys: int, values: int) -> Change:
    """The values: (values, rank) of each head."""
    return Change(
        lambda rows: rows.reshape(heads, keys + values, -1)[:, keys:], lambda shape: (heads, values, shape[-1])
    )


def plus_one(values: Array) -> Array:
    """Norms by 1 + w."""
    return values + np.float32(1)


AS_STORED = Change(lambda values: values)
AS_FLOATS = Change(lambda values: values, is_float=True)
FLAT = Change(lambda values: values.reshape(-1), lambda shape: (int(np.prod(shape)),))
TRANSPOSED = Change(lambda values: np.ascontiguousarray(values.T), lambda shape: shape[::-1])
