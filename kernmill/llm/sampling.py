"""Sampling: from the logits of the next token to one token, on the host.

The logit bias comes first, then the steps of `samplers` in their order, by default llama.cpp's, then one draw. Steps
that leave out tokens by probability take it at temperature 1 if they are before "temperature".
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeAlias

import numpy as np

from kernmill.ir import FormatError, SettingError, cached_property

from ..arguments import is_whole
from .sampling_steps import STEPS, Candidates, mirostat, softmax, temperature
from .tokenizer import Tokenizer

__all__ = ["SAMPLERS", "Chooser", "Sampler", "SamplingOptions"]

Array: TypeAlias = "np.ndarray[Any, Any]"
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
BREAKERS = ("\n", ":", '"', "*")


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or (isinstance(value, numbers.Real) and not isinstance(value, bool))


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
    typical_p          only tokens of the most typical information that reach this probability; 1 or more: all.
    top_n_sigma        only logits within n standard deviations of the best one; 0 or less: all.
    xtc_probability    how often all tokens above `xtc_threshold` but the least are left out; 0: never.
    dynatemp_range     the temperature varies by this much with the model's uncertainty, to `dynatemp_exponent`.
    dry_multiplier     penalty for continuing a repetition; 0: off. It grows with `dry_base` to the power of the
                       tokens beyond `dry_allowed_length`; `dry_penalty_last_n` tokens are searched, -1: all.
                       Tokens with one of `dry_sequence_breakers` end repetitions.
    mirostat           1 or 2 instead of the other steps: keeps the surprise near `mirostat_tau` bits, at the rate
                       `mirostat_eta`; 0: off.
    samplers           the steps and their order, by llama.cpp's names.

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
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: tuple[str, ...] = SAMPLERS

    def __post_init__(self) -> None:
        name = type(self).__name__
        for key, low, high in _RANGES:
            value = getattr(self, key)
            word, fits = ("an integer", is_whole(value)) if isinstance(low, int) else ("a number", _is_number(value))
            if not fits:
                raise SettingError(f"{name}: {key}={value!r}: must be {word} from {low:g} to {high:g}.")
            if not low <= value <= high:
                raise SettingError(f"{name}: {key}={value}: must be from {low:g} to {high:g}.")
        if self.repeat_penalty == 0:
            raise SettingError(f"{name}: repeat_penalty=0 would divide by 0. 1 disables it.")
        if self.seed is not None and not is_whole(self.seed, -1):
            raise SettingError(f"{name}: seed={self.seed!r}: must be an integer >= 0, or -1 or None for a random one.")
        self._check_bias(name)
        self.samplers = _known_samplers(self.samplers, name)
        breakers: Any = self.dry_sequence_breakers
        if not isinstance(breakers, (list, tuple)) or not all(isinstance(one, str) and one for one in breakers):
            raise SettingError(f"{name}: dry_sequence_breakers={breakers!r}: must be strings, none of them empty.")

    def _check_bias(self, name: str) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise SettingError(f"{name}: logit_bias={self.logit_bias!r}: must be a dict of token ids and numbers.")
        for token, bias in self.logit_bias.items():
            if not is_whole(token, 0) or not _is_number(bias) or not -np.inf <= bias < np.inf:
                raise SettingError(
                    f"{name}: logit_bias={{{token!r}: {bias!r}}}: must be token ids >= 0 and numbers below infinity."
                )

    def sampler(self, tokenizer: Tokenizer | None = None) -> Sampler:
        """Return a new sampler with these options. With a tokenizer it knows which tokens end repetitions."""
        made = Sampler(**{one.name: getattr(self, one.name) for one in fields(SamplingOptions)})
        if tokenizer is not None and self.dry_multiplier:
            made.breakers = tokenizer.tokens_with(self.dry_sequence_breakers)
        return made


class Chooser(Protocol):
    """A chooser of tokens: a Sampler, or anything with this method."""

    def choose(self, logits: Array, recent: Sequence[int], /) -> int:
        """Return the id of the next token after `recent`. Shapes: logits (vocabulary,)."""
        ...


@dataclass
class Sampler(SamplingOptions):
    """A token sampler with these options; with a seed it always chooses the same tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.breakers = frozenset[int]()  # tokens that end repetitions
        self._mu = 2 * self.mirostat_tau

    @cached_property
    def _random(self) -> np.random.Generator:  # greedy decoding needs no generator, nor its import
        return np.random.default_rng(None if self.seed in _RANDOM_SEEDS else self.seed)

    def random(self) -> float:
        """Draw a number from 0 to 1."""
        return self._random.random()

    def choose(self, logits: Array, recent: Sequence[int] = ()) -> int:
        """The id of the next token. Shapes: logits (vocabulary,).

        Raises:
            FormatError: logits that are nan or inf, or none above -inf.
        """
        if self._is_greedy:
            return int(np.argmax(self._penalized(logits, recent)))
        ids, chances = self.distribution(logits, recent)
        index = self._drawn(chances)
        if self.mirostat:
            self._mu -= self.mirostat_eta * (-np.log2(chances[index]) - self.mirostat_tau)
        return int(ids[index])

    def _drawn(self, chances: Array) -> int:
        sums = np.cumsum(chances)
        return int(np.searchsorted(sums, self.random() * sums[-1], side="right"))

    def distribution(self, logits: Array, recent: Sequence[int] = ()) -> tuple[Array, Array]:
        """The tokens that can be drawn, best first, and the probability of each."""
        candidates = Candidates(self._biased(logits))
        if self.mirostat:
            temperature(candidates, self)
            mirostat(candidates, self, self._mu)
        else:
            for name in self.samplers:
                STEPS[name](candidates, self, recent)
        scores = candidates.sort()
        assert candidates.ids is not None
        return candidates.ids, softmax(scores)

    @property
    def _is_greedy(self) -> bool:
        """True if the best token is chosen, whatever the other steps leave out."""
        return (
            self.temperature <= 0
            and not self.mirostat
            and self.dynatemp_range <= 0
            and self.typical_p >= 1
            and self.xtc_probability <= 0
            and "temperature" in self.samplers
        )

    def _biased(self, logits: Array) -> Array:
        scores = np.asarray(logits).reshape(-1)
        if not scores.size or not -np.inf < scores.max() < np.inf:  # nan if there is one
            raise FormatError("sampling: the logits are NaN or infinite. The model's weights are damaged, or overflow.")
        if not self.logit_bias:
            return scores
        # -inf is exact in float32, and a vocabulary in float64 costs more than all else
        is_exact = all(bias == -np.inf for bias in self.logit_bias.values())
        scores = scores.copy() if is_exact else scores.astype(np.float64)
        for token, bias in self.logit_bias.items():
            if token < scores.size:
                scores[token] += bias
        if scores.max() == -np.inf:
            raise SettingError("sampling: logit_bias leaves no token to choose. Give a bias of -inf to fewer tokens.")
        return scores

    def _penalized(self, logits: Array, recent: Sequence[int]) -> Array:
        """Returns the logits with bias and penalties, in float64 if there are some."""
        candidates = Candidates(self._biased(logits))
        for name in ("penalties", "dry"):
            if name in self.samplers:
                STEPS[name](candidates, self, recent)
        return candidates.scores


_RANDOM_SEEDS = (None, -1, 2**32 - 1)  # llama.cpp's, and ours
_RANGES = (
    ("temperature", -1e6, 1e6), ("top_k", -(2**31), 2**31), ("top_p", -1e6, 1e6), ("min_p", -1e6, 1.0),
    ("repeat_penalty", 0.0, 1e6), ("repeat_last", -1, 2**31), ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6), ("typical_p", 0.0, 1e6), ("top_n_sigma", -1e6, 1e6),
    ("xtc_probability", 0.0, 1.0), ("xtc_threshold", 0.0, 1.0), ("dynatemp_range", 0.0, 1e6),
    ("dynatemp_exponent", 0.0, 1e6), ("dry_multiplier", 0.0, 1e6), ("dry_base", 0.0, 1e6),
    ("dry_allowed_length", 0, 2**31), ("dry_penalty_last_n", -1, 2**31), ("mirostat", 0, 2),
    ("mirostat_tau", 0.0, 1e6), ("mirostat_eta", 0.0, 1e6),
)  # fmt: skip
_OTHER_NAMES = {
    "top-k": "top_k", "top-p": "top_p", "min-p": "min_p", "nucleus": "top_p", "typical": "typ_p", "typical_p": "typ_p",
    "typical-p": "typ_p", "typ-p": "typ_p", "typ": "typ_p", "temp": "temperature", "top-n-sigma": "top_n_sigma",
}  # fmt: skip


def _known_samplers(names: object, call: str) -> tuple[str, ...]:
    """The names of steps, of which several have other spellings."""
    if not isinstance(names, (list, tuple)):
        raise SettingError(f"{call}: samplers={names!r}: must be a list of names.")
    found = tuple(_OTHER_NAMES.get(name, name) if isinstance(name, str) else name for name in names)
    bad = next((name for name in found if not isinstance(name, str) or name not in STEPS), None)
    if bad is not None:
        raise SettingError(f"{call}: samplers: {bad!r} is unknown. Names are {', '.join(SAMPLERS)}.")
    return found
