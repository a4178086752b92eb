"""The steps of a sampler: each lowers scores, or leaves tokens out, as the sampler of that name in llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["STEPS", "Candidates", "mirostat", "softmax", "temperature"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Sampler: TypeAlias = Any  # the class of that name, whose file imports this one

_COLUMNS = 1024  # of a vocabulary, each of which has one best token
_LEAST_TEMPERATURE = 1e-100  # below it only the best token is left, and quotients overflow
_ESTIMATED = 100  # tokens by which mirostat 1 estimates how fast probabilities fall


class Candidates:
    """Tokens that may be chosen, and their scores. `ids` None: every token, in the order of its id."""

    def __init__(self, scores: Array) -> None:
        self.scores = scores
        self.ids: Array | None = None
        self.is_sorted = False

    def sort(self, count: int | None = None) -> Array:
        """Put the best first, of equals the first one, and keep up to `count`; returns the scores, in float64."""
        count = self.scores.size if count is None else min(count, self.scores.size)
        if not self.is_sorted:
            order = best(self.scores, count)
            self.ids = order if self.ids is None else self.ids[order]
            self.scores, self.is_sorted = self.scores[order].astype(np.float64), True
        self.keep(slice(0, count))
        return self.scores

    def keep(self, which: Any) -> None:
        """Leave out the others; the first one stays."""
        kept = np.arange(self.scores.size)[which]
        if not kept.size:
            kept = np.zeros(1, np.int64)
        self.ids = kept if self.ids is None else self.ids[kept]
        self.scores = self.scores[kept]

    def change(self, tokens: Array, value: Callable[[Array, Array], Array]) -> None:
        """Give tokens other scores: value(which of these tokens, their scores)."""
        if self.ids is None:
            which = np.flatnonzero((tokens >= 0) & (tokens < self.scores.size))
            indices = tokens[which]
        else:
            _, indices, which = np.intersect1d(self.ids, tokens, assume_unique=True, return_indices=True)
        if indices.size:
            self.scores = self.scores.astype(np.float64)
            self.scores[indices] = value(which, self.scores[indices])
            self.is_sorted = False


def best(scores: Array, count: int) -> Array:
    """The indices of the best scores, best first; of equals the first."""
    limit = -np.inf
    # at least `count` tokens reach the value that this many columns reach: most are below it
    if count < _COLUMNS < scores.size:
        limit = _reached(scores[: scores.size // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).max(0), count)
    found: Array = np.flatnonzero(scores >= limit)
    found = found[scores[found] >= _reached(scores[found], count)]
    order = np.argsort(-scores[found], kind="stable")
    return found[order[:count]]


def _reached(scores: Array, count: int) -> float:
    """Return a lower bound of the `count` best scores."""
    return float(np.partition(scores, scores.size - count)[scores.size - count])


def softmax(scores: Array) -> Array:
    """Probabilities of scores. Shapes: (tokens,)."""
    weights: Array = np.exp(scores - scores.max())
    total: Array = weights / weights.sum()
    return total


# --- penalties
def _penalties(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    penalizes = s.repeat_penalty != 1 or s.presence_penalty or s.frequency_penalty
    if not penalizes or not s.repeat_last:
        return
    ids, counts = np.unique(_last(recent, s.repeat_last), return_counts=True)

    def lower(which: Array, kept: Array) -> Array:
        kept = np.where(kept > 0, kept / s.repeat_penalty, kept * s.repeat_penalty)
        lowered: Array = kept - counts[which] * s.frequency_penalty - s.presence_penalty
        return lowered

    c.change(ids, lower)


def _last(recent: Sequence[int], count: int) -> Array:
    return np.asarray(recent[-count:] if count > 0 else recent, np.int64)


def _dry(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    """Lower the tokens that would continue a repetition, by how long it is already."""
    if s.dry_multiplier == 0 or s.dry_base < 1 or not s.dry_penalty_last_n:
        return
    lengths = repetitions(_last(recent, s.dry_penalty_last_n), s.breakers)
    lengths = {token: length for token, length in lengths.items() if length >= s.dry_allowed_length}
    if not lengths:
        return
    beyond = np.array([*lengths.values()], np.float64) - s.dry_allowed_length
    with np.errstate(over="ignore"):
        amount = np.minimum(s.dry_multiplier * np.power(s.dry_base, beyond), np.finfo(np.float32).max)
    c.change(np.array([*lengths], np.int64), lambda which, kept: kept - amount[which])


def repetitions(tokens: Array, breakers: frozenset[int]) -> dict[int, int]:
    """For each token that would repeat what followed before: how many tokens before it are the same.

    No repetition reaches over a breaker. Shapes: tokens (length,).
    """
    back = tokens[::-1]
    limit = next((distance for distance, token in enumerate(back.tolist()) if token in breakers), back.size)
    starts = np.flatnonzero(back[1:] == back[0]) + 1 if limit else np.zeros(0, np.int64)
    found: dict[int, int] = {}
    length = 1
    while starts.size:
        for token in back[starts - 1].tolist():
            found[token] = length
        if length >= limit:
            break
        starts = starts[starts + length < back.size]
        starts = starts[back[starts + length] == back[length]]
        length += 1
    return {token: length for token, length in found.items() if token not in breakers}


# --- which tokens stay
def _top_n_sigma(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    if s.top_n_sigma > 0 and c.scores.size > 1:
        possible = c.scores[c.scores > -np.inf].astype(np.float64)
        c.keep(c.scores >= possible.max() - s.top_n_sigma * possible.std())


def _top_k(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    if s.top_k > 0:
        c.sort(s.top_k)


def _typical(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    """Keep the tokens whose information is nearest to the expected one."""
    if s.typical_p >= 1:
        return
    chances = softmax(c.sort())
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(chances)
        entropy = np.where(chances > 0, chances * information, 0).sum()
    order = np.argsort(np.abs(information - entropy), kind="stable")
    count = int(np.searchsorted(np.cumsum(chances[order]), s.typical_p, side="right")) + 1
    c.keep(np.sort(order[:count]))


def _top_p(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    if s.top_p < 1:
        chances = softmax(c.sort())
        before = np.cumsum(chances) - chances  # total probability of better tokens
        c.keep(before < s.top_p)


def _min_p(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    if s.min_p > 0:
        chances = softmax(c.sort())
        c.keep(chances >= s.min_p * chances[0])


def _xtc(c: Candidates, s: Sampler, recent: Sequence[int]) -> None:
    """At times leave out all tokens above a probability but the least of them."""
    if s.xtc_probability <= 0 or s.xtc_threshold > 0.5 or c.scores.size < 2 or s.random() > s.xtc_probability:
        return
    above = int((softmax(c.sort()) >= s.xtc_threshold).sum())
    if above > 1:
        c.keep(slice(above - 1, None))


def temperature(c: Candidates, s: Sampler, recent: Sequence[int] = ()) -> None:
    """Divide by the temperature: of a dynamic one by more, the less certain the model is."""
    scores = c.sort()
    heat = s.temperature
    if s.dynatemp_range > 0:
        if scores.size < 2:
            return
        chances = softmax(scores)
        entropy = -(chances[chances > 0] * np.log(chances[chances > 0])).sum() / math.log(scores.size)
        low = max(0.0, heat - s.dynatemp_range)
        heat = low + (heat + s.dynatemp_range - low) * max(0.0, float(entropy)) ** s.dynatemp_exponent
    if heat <= 0:
        c.keep(slice(0, 1))
        return
    c.scores = (scores - scores[0]) / max(heat, _LEAST_TEMPERATURE)


def mirostat(c: Candidates, s: Sampler, mu: float) -> None:
    """Keep the tokens that surprise by at most about `mu` bits."""
    size = c.scores.size
    chances = softmax(c.sort())
    if s.mirostat == 2:
        with np.errstate(divide="ignore"):
            c.keep(slice(0, max(1, int((-np.log2(chances) <= mu).sum()))))
        return
    count = min(_ESTIMATED, size) - 1
    ranks = np.arange(count)
    steps = np.log((ranks + 2) / (ranks + 1))
    shown = np.maximum(chances[: count + 1], np.finfo(np.float64).tiny)
    falls = np.log(shown[:-1] / shown[1:])
    slope = float((steps * falls).sum() / (steps * steps).sum()) if count else 1.0
    beyond = slope - 1
    if slope <= 0 or abs(beyond) < 1e-9:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        many = np.power(beyond * np.float64(2.0) ** mu / (1 - np.float64(size) ** -beyond), 1 / slope)
    if np.isfinite(many):
        c.keep(slice(0, max(1, int(many))))


Step = Callable[[Candidates, Sampler, Sequence[int]], None]
STEPS: dict[str, Step] = {
    "penalties": _penalties, "dry": _dry, "top_n_sigma": _top_n_sigma, "top_k": _top_k, "typ_p": _typical,
    "top_p": _top_p, "min_p": _min_p, "xtc": _xtc, "temperature": temperature,
}  # fmt: skip
