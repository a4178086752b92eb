"""Importance matrices of a model: a text is computed in chunks, and the inputs of all products are watched."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from kernmill import SettingError, Tensor
from kernmill.ir import Progress

from ..captures import Jit
from ..quant.importance import Columns, Importance
from .arch import Cache, Positions, Weight, kept_by
from .arch.tensors import is_plain
from .arch.weight import Matrix, chosen, linear, nbytes, rows
from .generate import Model
from .perplexity import with_begin
from .sources import check_without_source

__all__ = ["Collector", "importance_of"]

Array = np.ndarray[Any, Any]


class Collector:
    """A list of matrices whose inputs are summed up, for `Model.from_gguf(watcher=..)`.

    `with_output`: also of the matrix that makes logits.
    """

    def __init__(self, *, with_output: bool = False) -> None:
        self.with_output = with_output
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}  # of the pass that is built: sums of squares, and counts

    def watched(self, name: str, weight: Weight) -> Weight:
        """Return a weight that reports its inputs, if it is a matrix of a layer."""
        is_matrix = len(weight.shape) > 1 and name.endswith(".weight") and not is_plain(name)
        is_wanted = name.startswith("blk.") or (self.with_output and name == "output.weight")
        return _Watched(self, name, weight) if is_matrix and is_wanted else weight

    def add(self, name: str, sums: Tensor, counts: Tensor) -> None:
        """Report a product. Shapes: sums (matrices, columns), counts (matrices,)."""
        if name in self.seen:
            sums, counts = sums + self.seen[name][0], counts + self.seen[name][1]
        self.seen[name] = sums, counts


class _Watched(Matrix):
    """A matrix, or a stack of them, that reports the squares of what it is multiplied with."""

    def __init__(self, watcher: Collector, name: str, weight: Weight) -> None:
        self._watcher, self._name, self._weight = watcher, name, weight

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        return tuple(self._weight.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the matrix."""
        return nbytes(self._weight)

    @property
    def device(self) -> str:
        """The device of the matrix."""
        return self._weight.device

    def rows(self, ids: Tensor, /) -> Tensor:
        """Rows by their numbers: nothing is multiplied."""
        return rows(self._weight, ids)

    def linear(self, x: Tensor, /) -> Tensor:
        """x @ self.T. Shapes: (.., in) -> (.., out)."""
        squares = x.reshape(-1, x.shape[-1]).float().square().sum(0, keepdim=True)
        count = prod(x.shape[:-1])
        self._watcher.add(self._name, squares, squares[:, 0]._filled(float(count)))
        return linear(x, self._weight)

    def chosen(self, x: Tensor, ids: Tensor, counts: Tensor | None = None, /) -> Tensor:
        """Rows with the matrix of their tile. Shapes: (tiles, rows, in), (tiles,), (tiles,) -> (tiles, rows, out)."""
        squares, number = x.float().square(), Tensor.arange(x.shape[1])
        is_in = squares[:, :, 0]._filled(1.0) if counts is None else number.lt(counts.unsqueeze(-1)).float()
        squares = (squares * is_in.unsqueeze(-1)).sum(1)  # (tiles, in)
        is_of = ids.unsqueeze(0).eq(Tensor.arange(self.shape[0]).unsqueeze(-1)).float().contiguous()
        self._watcher.add(self._name, is_of.matmul(squares.contiguous()), (is_of * is_in.sum(1)).sum(1))
        return chosen(x, self._weight, ids, counts=counts)


def importance_of(model: Model, watcher: Collector, chunks: Array, text: str = "") -> Importance:
    """Compute chunks of tokens with a model that was opened with the watcher. `text` is the path of the text.

    Shapes: chunks (chunks, tokens).

    Raises:
        SettingError: the model is an encoder, or makes values that are not finite.
    """
    if not model.architecture.is_causal:
        raise SettingError(
            f"imatrix: {model.config.name} is an encoder: it reads no text in order. Use a causal model."
        )
    check_without_source(model.architecture, "imatrix")
    size = chunks.shape[1]
    cache = Cache.empty(kept_by(model.config), size)

    def products(tokens: Tensor, positions: Positions) -> dict[str, tuple[Tensor, Tensor]]:
        watcher.seen = {}
        hidden = model.architecture.forward(tokens, positions, cache)
        if watcher.with_output:
            model.architecture.logits(hidden.flatten(0, 1).contiguous())
        return watcher.seen

    captured = Jit(products, runs_first=False)
    found = Importance({}, [text] if text else [], len(chunks), size)
    with Progress("imatrix", len(chunks), "chunk") as bar:
        for chunk in chunks:
            with model.turn():
                ids = Tensor(np.array([with_begin(model, chunk)], np.int32))
                pairs = captured(ids, Positions.bound([0], size, size))
                new = {name: Columns(*(one.numpy().astype(np.float64) for one in pair)) for name, pair in pairs.items()}
            for name, columns in new.items():
                if not np.isfinite(columns.sums).all():
                    raise SettingError(
                        f"imatrix: the inputs of {name} are inf or nan. The model is damaged, or too large for its "
                        "types; use another file."
                    )
                found.columns.setdefault(name, Columns(np.zeros_like(columns.sums), np.zeros_like(columns.counts)))
                found.columns[name].add(columns)
            bar.advance()
    return found
