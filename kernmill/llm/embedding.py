"""Vectors of texts: they are computed as a whole, several together, without a cache.

Texts of similar length share a batch: (texts, tokens), padded to a few sizes, so that few graphs serve all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernmill import SettingError, Tensor, no_grad

from ..captures import Jit
from ..formats.quoting import quoted
from .arch import Architecture, Cache, Positions
from .layer_templates import LayerTemplates
from .tokenizer import Tokenizer

__all__ = ["WholeTexts", "are_several", "paired"]

Array = np.ndarray[Any, Any]
TOGETHER = 512  # tokens of a batch: more do not make it faster
LEAST = 16  # tokens of the smallest size


class WholeTexts:
    """Computes texts without a cache. `pooled`: each becomes a vector; otherwise the states of its tokens."""

    def __init__(self, architecture: Architecture, capacity: int) -> None:
        self._architecture, self._capacity = architecture, capacity
        self._pooled = Jit(lambda ids, lengths: self._vectors(ids, lengths), runs_first=False)
        self._states = Jit(lambda ids, lengths: self._hidden(ids, lengths), runs_first=False)

    def _hidden(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Shapes: ids (texts, tokens), lengths (texts,) -> (texts, tokens, width)."""
        positions = Positions.whole(lengths, ids.shape[1])
        return self._architecture.forward(ids, positions, Cache.none(), LayerTemplates().layer)

    def _vectors(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self._architecture.pooling(self._hidden(ids, lengths), lengths)

    @property
    def captures(self) -> tuple[Jit[..., Tensor], Jit[..., Tensor]]:
        """Its captured functions."""
        return self._pooled, self._states

    def vectors(self, texts: Sequence[Sequence[int]], normalize: bool) -> list[Array]:
        """The vectors of texts, or the scores of their classes; with pooling of type none a row for each token."""
        kind = self._architecture.pooling.kind
        found = self._computed(self._pooled, texts, has_rows=kind == "none")
        if not normalize or kind == "rank":
            return found
        return [one / np.maximum(np.linalg.norm(one, axis=-1, keepdims=True), 1e-12) for one in found]

    def hidden(self, ids: Sequence[int]) -> Array:
        """The last hidden state of each token of a text. Shapes: (tokens, width)."""
        return self._computed(self._states, [ids], has_rows=True)[0]

    def _computed(self, function: Callable[..., Tensor], texts: Sequence[Sequence[int]], has_rows: bool) -> list[Array]:
        found: list[Array] = [np.zeros(0, np.float32)] * len(texts)
        for members, size, rows in _batches([len(text) for text in texts], self._capacity):
            ids, lengths = np.zeros((rows, size), np.int32), np.ones(rows, np.int32)
            for row, n in enumerate(members):
                lengths[row] = len(texts[n])
                ids[row, : lengths[row]] = texts[n]
            with no_grad():
                results = function(Tensor(ids), Tensor(lengths)).numpy()
            for row, n in enumerate(members):
                found[n] = results[row, : lengths[row]] if has_rows else results[row]
        return found


def _batches(lengths: Sequence[int], capacity: int) -> Iterator[tuple[list[int], int, int]]:
    """Yield the numbers of the texts of a batch, its tokens for each text, and its rows."""
    of_size: dict[int, list[int]] = {}
    for n, length in enumerate(lengths):
        size = LEAST
        while size < length:
            size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4  # 16, 24, 32, 48, ..
        of_size.setdefault(min(size, capacity), []).append(n)
    for size, members in sorted(of_size.items()):
        most = 1 << max(0, (TOGETHER // size).bit_length() - 1)
        for start in range(0, len(members), most):
            some = members[start : start + most]
            yield some, size, 1 << (len(some) - 1).bit_length()


def are_several(texts: object) -> bool:
    """True for a list of texts or of lists of token ids; False for one of either.

    Raises:
        SettingError: a list that has both, or a value that is neither.
    """
    if isinstance(texts, str):
        return False
    if not hasattr(texts, "__len__") or not hasattr(texts, "__iter__"):
        raise SettingError(f"embed: {quoted(texts)} is neither a text nor a list of texts or token ids.")
    some: Sequence[object] = texts  # type: ignore[assignment]
    nested = [isinstance(one, str) or hasattr(one, "__len__") for one in some]
    if any(nested) and not all(nested):
        raise SettingError("embed: the list has token ids and texts. Give one of both kinds.")
    if not nested:
        raise SettingError("embed: no texts and no token ids. Give at least one.")
    return all(nested)


def paired(tokenizer: Tokenizer, template: str | None, query: str, document: str) -> list[int]:
    """The tokens of a query and a document for a model that ranks: by the file's template, or one behind the other
    with the tokens that separate them."""
    if template is not None:
        text = template.replace("{query}", query).replace("{document}", document)
        return tokenizer.encode(text, add_special=False, parse_special=True)
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ends = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.separator_id
    end = [ends] if tokenizer.add_eos and ends is not None else []
    between: list[int] = []
    if tokenizer.add_separator and tokenizer.separator_id is not None and tokenizer.kind != "bert":
        between = [tokenizer.separator_id]
    first, second = (tokenizer.encode(text, add_special=False) for text in (query, document))
    return [*begin, *first, *end, *between, *second, *end]
