"""Sampling: from the logits of the next token to one token, on the host.

In this order, as in llama.cpp: logit bias, penalties, top-k, top-p, min-p, temperature, then one draw. Top-p and min-p
go by the probabilities at temperature 1.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from kernmill.ir import FormatError, SettingError

from ..arguments import is_whole

__all__ = ["Sampler", "SamplingOptions"]

Array: TypeAlias = "np.ndarray[Any, Any]"


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass
class SamplingOptions:
    """How tokens are chosen.

    temperature        0 or less takes the best token, 1 draws from the model's own probabilities, more is bolder.
    top_k              only the k best tokens; 0 or less: all.
    top_p              only the best tokens that together reach this probability; 1 or more: all.
    min_p              only tokens that reach this fraction of the best one's probability; 0 or less: all.
    repeat_penalty     divides positive and multiplies negative logits of recent tokens; 1: off.
    repeat_last        number of recent tokens that penalties consider; 0: none, -1: all.
    seed               None, -1 or 4294967295: a random one each time.
    presence_penalty   is subtracted from the logits of recent tokens; 0: off.
    frequency_penalty  is subtracted once for each time that a token is recent; 0: off.
    logit_bias         is added to the logits of these token ids; -inf: never choose the token.

    The limits that switch a step off are those of llama.cpp.

    Raises:
        SettingError: a value outside its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            word, fits = ("an integer", is_whole(value)) if isinstance(low, int) else ("a number", _is_number(value))
            if not fits:
                raise SettingError(f"{type(self).__name__}: {name}={value!r}: must be {word} from {low:g} to {high:g}.")
            if not low <= value <= high:
                raise SettingError(f"{type(self).__name__}: {name}={value}: must be from {low:g} to {high:g}.")
        if self.repeat_penalty == 0:
            raise SettingError(f"{type(self).__name__}: repeat_penalty=0 would divide by 0. 1 disables it.")
        if self.seed is not None and not is_whole(self.seed, -1):
            raise SettingError(
                f"{type(self).__name__}: seed={self.seed!r}: must be an integer >= 0, or -1 or None for a random one."
            )
        self._check_bias()

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise SettingError(
                f"{type(self).__name__}: logit_bias={self.logit_bias!r}: must be a dict of token ids and numbers."
            )
        for token, bias in self.logit_bias.items():
            if not is_whole(token, 0) or not _is_number(bias) or not -np.inf <= bias < np.inf:
                raise SettingError(
                    f"{type(self).__name__}: logit_bias={{{token!r}: {bias!r}}}: must be token ids >= 0 and numbers "
                    "below infinity."
                )

    def sampler(self) -> Sampler:
        """Return a new sampler with these options."""
        return Sampler(**{one.name: getattr(self, one.name) for one in fields(SamplingOptions)})


@dataclass
class Sampler(SamplingOptions):
    """A token sampler with these options; with a seed it always chooses the same tokens."""

    @cached_property
    def _random(self) -> np.random.Generator:  # greedy decoding needs no generator, nor its import
        return np.random.default_rng(None if self.seed in _RANDOM_SEEDS else self.seed)

    def choose(self, logits: Array, recent: Sequence[int] = ()) -> int:
        """The id of the next token. Shapes: logits (vocabulary,).

        Raises:
            FormatError: logits that are nan or inf, or none above -inf.
        """
        if self.temperature <= 0:
            return int(np.argmax(self._penalized(logits, recent)))
        ids, chances = self.distribution(logits, recent)
        sums = np.cumsum(chances)
        return int(ids[np.searchsorted(sums, self._random.random() * sums[-1], side="right")])

    def distribution(self, logits: Array, recent: Sequence[int] = ()) -> tuple[Array, Array]:
        """The tokens that can be drawn, best first, and the probability of each."""
        scores = self._penalized(logits, recent)
        ids = self._best(scores)
        kept = scores[ids].astype(np.float64)
        chances = _softmax(kept)
        before = np.cumsum(chances) - chances  # total probability of better tokens, rounded: it may reach 1 too early
        is_kept = ((before < self.top_p) | (self.top_p >= 1)) & (chances >= self.min_p * chances[0])
        is_kept[0] = True
        ids, kept = ids[is_kept], kept[is_kept]
        if self.temperature <= 0:
            return ids[:1], np.ones(1)
        return ids, _softmax((kept - kept[0]) / max(self.temperature, _LEAST_TEMPERATURE))

    def _penalized(self, logits: Array, recent: Sequence[int]) -> Array:
        """Returns the logits with bias and penalties, in float64 if there are some."""
        scores = np.asarray(logits).reshape(-1)
        if not scores.size or not -np.inf < scores.max() < np.inf:  # nan if there is one
            raise FormatError("sampling: the logits are NaN or infinite. The model's weights are damaged, or overflow.")
        penalizes = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        if not self.logit_bias and not (penalizes and self.repeat_last):
            return scores
        scores = scores.astype(np.float64)
        for token, bias in self.logit_bias.items():
            if token < scores.size:
                scores[token] += bias
        if scores.max() == -np.inf:
            raise SettingError("sampling: logit_bias leaves no token to choose. Give a bias of -inf to fewer tokens.")
        if penalizes and self.repeat_last:
            last = np.asarray(recent[-self.repeat_last :] if self.repeat_last > 0 else recent, np.int64)
            ids, counts = np.unique(last[(last >= 0) & (last < scores.size)], return_counts=True)
            kept = scores[ids]
            kept = np.where(kept > 0, kept / self.repeat_penalty, kept * self.repeat_penalty)
            scores[ids] = kept - counts * self.frequency_penalty - self.presence_penalty
        return scores

    def _best(self, scores: Array) -> Array:
        """The ids of the top_k best scores, best first; of equals the first."""
        count, limit = min(self.top_k if self.top_k > 0 else scores.size, scores.size), -np.inf
        # at least `count` tokens reach the value that this many columns reach: most are below it
        if count < _COLUMNS < scores.size:
            limit = _reached(scores[: scores.size // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).max(0), count)
        found: Array = np.flatnonzero(scores >= limit)
        found = found[scores[found] >= _reached(scores[found], count)]
        order = np.argsort(-scores[found], kind="stable")
        return found[order[:count]]


_COLUMNS = 1024  # of a vocabulary, each of which has one best token
_LEAST_TEMPERATURE = 1e-100  # below it only the best token is left, and quotients overflow
_RANDOM_SEEDS = (None, -1, 2**32 - 1)  # llama.cpp's, and ours
_RANGES = (
    ("temperature", -1e6, 1e6), ("top_k", -(2**31), 2**31), ("top_p", -1e6, 1e6), ("min_p", -1e6, 1.0),
    ("repeat_penalty", 0.0, 1e6), ("repeat_last", -1, 2**31), ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
)  # fmt: skip


def _reached(scores: Array, count: int) -> float:
    """Return a lower bound of the `count` best scores."""
    return float(np.partition(scores, scores.size - count)[scores.size - count])


def _softmax(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max())
    total: Array = weights / weights.sum()
    return total
