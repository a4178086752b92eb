"""How well a model predicts a text: its perplexity, and how far its predictions are from those of another model.

As in llama.cpp's `llama-perplexity`, a text is cut into chunks of the same number of tokens. The first token of each is
the begin token, where the vocabulary puts one before a text. The tokens of the second half are predicted:

    perplexity = exp(mean of -ln p(token | the tokens of the chunk before it))

The predictions of a base model can be kept in a file of llama.cpp's format, little-endian:

    8 bytes   "_logits_"
    u32       tokens of a chunk
    i32, i32  tokens of the vocabulary, chunks
    i32 ..    the tokens of all chunks
    rows      of each predicted token: f32 step, f32 least log probability, u16 steps of each token above it,
              padded to an even number of them

A logarithm that is more than 16 below the largest one of its row is stored as that bound.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from kernmill import FormatError, SettingError, Tensor
from kernmill.ir import Progress

from ..captures import Jit
from ..formats.disk import Output, mapped, replacing
from .generate import Model
from .sources import check_without_source

__all__ = ["Base", "Predictions", "chunks_of", "predictions"]

Array = np.ndarray[Any, Any]
CONTEXT = 512  # tokens of a chunk, as llama.cpp has it
_MAGIC, _HEAD = b"_logits_", struct.Struct("<Iii")
_REACH, _STEPS = 16.0, 65535  # of a row of the file: from the largest logarithm down, and of how many steps
_TOGETHER = 64  # rows of logits that are in memory at once


class Predictions(NamedTuple):
    """Predictions of tokens, and their differences from those of a base model. Shapes: (tokens,) each.

    `loss` is -ln of the probability p of the token, and `base_loss` that of the base. `divergence` is the KL divergence
    of the distribution from that of the base. `change` is p minus the base's p. `same_top` is true where both find the
    same token most likely. Without a base these four are None.
    """

    loss: Array
    base_loss: Array | None = None
    divergence: Array | None = None
    change: Array | None = None
    same_top: Array | None = None

    def perplexity(self) -> float:
        """Exp of the mean loss."""
        return float(np.exp(self.loss.mean()))


def chunks_of(model: Model, text: str, size: int, most: int | None = None, call: str = "perplexity") -> Array:
    """Cut a text into chunks of `size` tokens, up to `most`. Shapes: (chunks, size). Dtypes: int32.

    Raises:
        SettingError: the model has no tokenizer, the text has fewer than two chunks, or chunks of fewer than 4 tokens.
    """
    if model.tokenizer is None:
        raise SettingError(f"{call}: the model has no tokenizer. Use a file with a vocabulary.")
    if size < 4:
        raise SettingError(f"{call}: a context of {size} tokens is too small. Give at least 4.")
    ids = np.array(model.tokenizer.encode(text), np.int32)
    if len(ids) < 2 * size:
        raise SettingError(
            f"{call}: the text has {len(ids)} tokens, and a context of {size} needs at least {2 * size}. Give a "
            "longer text, or a smaller context: -c N."
        )
    count = len(ids) // size if most is None else min(most, len(ids) // size)
    return ids[: count * size].reshape(count, size)


def first_predicted(size: int) -> int:
    """The token of a chunk from which on the next one is predicted."""
    return size // 2


def with_begin(model: Model, chunk: Array) -> list[int]:
    """The tokens of a chunk, the first one replaced by the begin token if the vocabulary adds one to texts."""
    words = model.tokenizer
    begin = [words.bos_id] if words is not None and words.add_bos and words.bos_id is not None else []
    return [*begin, *map(int, chunk[len(begin) :])]


# --- the file of a base model ----------------------------------------------------------------------------------------
class Base:
    """The predictions of a base model, of a file that `predictions` has written, or llama.cpp.

    Raises:
        FormatError: the file cannot be read, or is not such a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.fspath(path)
        self._data = mapped(path, "log probability")
        start = len(_MAGIC) + _HEAD.size
        if bytes(self._data[: len(_MAGIC)]) != _MAGIC or len(self._data) < start:
            raise FormatError(
                f"{self.where}: it has no log probabilities of a model. Write such a file first: "
                "kernmill perplexity base.gguf -f TEXT --kl-divergence-base FILE."
            )
        size, self.vocabulary, count = _HEAD.unpack_from(self._data, len(_MAGIC))
        self._row_bytes = _row_bytes(self.vocabulary) if self.vocabulary > 0 else 0
        self._rows = size - 1 - first_predicted(size)
        self._start = start + 4 * size * count
        wanted = self._start + count * self._rows * self._row_bytes
        if size < 4 or count < 1 or self.vocabulary < 1 or wanted != len(self._data):
            raise FormatError(
                f"{self.where}: {len(self._data)} bytes for {count} chunks of {size} tokens and a vocabulary of "
                f"{self.vocabulary}, which need {wanted}. The file is not complete; write it again."
            )
        self.chunks: Array = np.frombuffer(self._data[start : self._start], "<i4").reshape(count, size)

    def rows(self, first: int, count: int) -> Array:
        """The log probabilities of predicted tokens, counted over all chunks. Shapes: (count, vocabulary)."""
        begin = self._start + first * self._row_bytes
        raw = np.frombuffer(self._data[begin : begin + count * self._row_bytes], np.uint8).reshape(count, -1)
        step, least = raw[:, :8].copy().view("<f4").T[..., None]
        steps: Array = raw[:, 8:].copy().view("<u2")[:, : self.vocabulary]
        found: Array = steps.astype(np.float32) * step + least
        return found


def _row_bytes(vocabulary: int) -> int:
    return 8 + 2 * (vocabulary + vocabulary % 2)


def _packed(rows: Array) -> bytes:
    """Log probabilities as the file has them. Shapes: (rows, vocabulary)."""
    most = rows.max(1, keepdims=True)
    least = np.maximum(rows.min(1, keepdims=True), most - _REACH)
    step = (most - least) / np.float32(_STEPS)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(step > 0, np.rint((np.maximum(rows, least) - least) / step), 0)
    made = np.zeros((len(rows), _row_bytes(rows.shape[1])), np.uint8)
    made[:, :8] = np.concatenate([step, least], 1).astype("<f4").view(np.uint8)
    made[:, 8 : 8 + 2 * rows.shape[1]] = steps.astype("<u2").view(np.uint8)
    return made.tobytes()


# --- predictions -----------------------------------------------------------------------------------------------------
def predictions(
    model: Model, chunks: Array, *, base: Base | None = None, target: str | os.PathLike[str] | None = None
) -> Predictions:
    """Predict the second half of each chunk; compare with a base, or write the file of one to `target`.

    Shapes: chunks (chunks, tokens).

    Raises:
        SettingError: the model is an encoder, or has another vocabulary than the base.
        FormatError: the target cannot be written.
    """
    if not model.architecture.is_causal:
        raise SettingError(f"perplexity: {model.config.name} is an encoder: it predicts no text. Use a causal model.")
    check_without_source(model.architecture, "perplexity")
    known = _vocabulary(model)
    if base is not None and base.vocabulary != known:
        raise SettingError(
            f"perplexity: the model has {known} tokens, and the base in {base.where} has {base.vocabulary}. Compare "
            "models of one vocabulary."
        )
    found: list[Predictions] = []
    loss = seen = 0.0
    with replacing(target) if target is not None else nullcontext() as file:
        if file is not None:
            file.write(_MAGIC + _HEAD.pack(chunks.shape[1], known, len(chunks)) + chunks.astype("<i4").tobytes())
        with Progress("perplexity", len(chunks), "chunk") as bar:
            for part in _predicted_rows(model, chunks, base, file):
                found.append(part)
                loss, seen = loss + float(part.loss.sum()), seen + len(part.loss)
                if seen % (chunks.shape[1] - 1 - first_predicted(chunks.shape[1])) == 0:
                    bar.advance(text=f"{np.exp(loss / seen):.4f}")
    columns = zip(*found, strict=True)
    return Predictions(*[None if part[0] is None else np.concatenate(part) for part in columns])  # type: ignore[arg-type]


def _vocabulary(model: Model) -> int:
    """How many tokens have a logit that means something: embeddings may be padded."""
    return model.architecture.vocabulary if model.tokenizer is None else len(model.tokenizer)


def _predicted_rows(model: Model, chunks: Array, base: Base | None, file: Output | None) -> Iterator[Predictions]:
    """Yield the predictions of some rows at a time."""
    size, at, known = chunks.shape[1], 0, _vocabulary(model)
    logits = Jit(lambda rows: model.architecture.logits(rows)[:, :known].log_softmax(-1), runs_first=False)
    for chunk in chunks:
        hidden = model.hidden(with_begin(model, chunk)).numpy()
        for first in range(first_predicted(size), size - 1, _TOGETHER):
            stop = min(first + _TOGETHER, size - 1)
            with model.turn():
                rows: Array = logits(Tensor(hidden[first:stop], device=model.architecture.output.device)).numpy()
            if file is not None:
                file.write(_packed(rows))
            theirs = None if base is None else base.rows(at, len(rows))
            yield _compared(rows, chunk[first + 1 : stop + 1], theirs)
            at += len(rows)


def _compared(rows: Array, next_ids: Array, base: Array | None) -> Predictions:
    """Shapes: rows and base (tokens, vocabulary), next_ids (tokens,)."""
    every = np.arange(len(rows))
    loss = -rows[every, next_ids].astype(np.float64)
    if base is None:
        return Predictions(loss)
    base_loss = -base[every, next_ids].astype(np.float64)
    shares = np.where(base > -_REACH, np.exp(base), 0)  # others are not known: the file has no smaller ones
    divergence = (shares * (base - rows)).sum(1, dtype=np.float64)
    change = np.exp(-loss) - np.exp(-base_loss)
    return Predictions(loss, base_loss, divergence, change, rows.argmax(1) == base.argmax(1))
