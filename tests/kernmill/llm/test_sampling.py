from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernmill import FormatError, SettingError
from kernmill.llm.sampling import Sampler
from kernmill.llm.sampling_steps import best as best_of
from kernmill.llm.sampling_steps import repetitions


def by_hand(logits: Sequence[float], recent: Sequence[int], s: Sampler) -> dict[int, float]:
    """Token by token, with lists and plain sums."""
    window = recent[len(recent) - s.repeat_last :] if 0 <= s.repeat_last < len(recent) else recent
    scores = {}
    for token, logit in enumerate(logits):
        if token in window:
            logit = logit / s.repeat_penalty if logit > 0 else logit * s.repeat_penalty
        scores[token] = logit
    order = sorted(scores, key=lambda token: (-scores[token], token))
    if s.top_k:
        order = order[: s.top_k]
    total = math.fsum(math.exp(scores[token] - scores[order[0]]) for token in order)
    kept: list[int] = []
    reached = 0.0
    for token in order:
        chance = math.exp(scores[token] - scores[order[0]]) / total
        if not kept or (reached < s.top_p and chance >= s.min_p / total):
            kept.append(token)
        reached += chance
    weights = {token: math.exp((scores[token] - scores[order[0]]) / s.temperature) for token in kept}
    return {token: weight / math.fsum(weights.values()) for token, weight in weights.items()}


logits_of = st.lists(st.integers(-24, 24).map(lambda n: n / 4 + 1 / 64), min_size=1, max_size=12)


@settings(deadline=None, max_examples=300)
@given(
    logits=logits_of,
    recent=st.lists(st.integers(0, 11), max_size=8),
    temperature=st.sampled_from([0.25, 0.8, 1.0, 3.0]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.03, 0.31, 0.77, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.41, 1.0]),
    penalty=st.sampled_from([1.0, 1.3, 0.7]),
    last=st.sampled_from([-1, 0, 2, 64]),
)
def test_the_distribution_is_the_one_by_hand(
    logits: list[float], recent: list[int], last: int, penalty: float, **named: Any
) -> None:
    sampler = Sampler(repeat_penalty=penalty, repeat_last=last, **named)
    ids, chances = sampler.distribution(np.array(logits, np.float32), recent)
    expected = by_hand(logits, recent, sampler)
    assert ids.tolist() == list(expected)
    np.testing.assert_allclose(chances, list(expected.values()), rtol=1e-9)


def test_draws_follow_the_distribution() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    sampler = Sampler(temperature=1, top_k=0, top_p=1, min_p=0, seed=3)
    counts = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_a_seed_repeats() -> None:
    logits = np.zeros(50)
    draws = [[sampler.choose(logits) for _ in range(20)] for sampler in (Sampler(seed=5), Sampler(seed=5))]
    assert draws[0] == draws[1]
    other = Sampler(seed=6)
    assert [other.choose(logits) for _ in range(20)] != draws[0]


def test_temperature_0_takes_the_best_and_the_first_of_equals() -> None:
    greedy = Sampler(temperature=0)
    assert greedy.choose(np.array([1.0, 3.0, 3.0, 2.0])) == 1
    assert [a.tolist() for a in greedy.distribution(np.array([1.0, 3.0, 3.0, 2.0]))] == [[1], [1.0]]
    assert Sampler(temperature=0, repeat_penalty=2).choose(np.array([1.0, 3.0, -4.0, 2.0]), [1]) == 3


def test_who_takes_the_best_makes_no_random_numbers() -> None:
    greedy = Sampler(temperature=0)
    greedy.choose(np.array([1.0, 3.0]))
    assert "_random" not in vars(greedy)


@pytest.mark.parametrize("size", [41, 1023, 1024, 1025, 5000, 40_000])
@pytest.mark.parametrize("top_k", [1, 40, 1023, 2000])
def test_the_best_of_a_large_vocabulary(size: int, top_k: int) -> None:
    """Most logits are only compared with what enough of them reach: the same tokens, of equals the first."""
    random = np.random.default_rng(size + top_k)
    logits = np.round(random.standard_normal(size) * 8).astype(np.float32) / 2
    logits[random.random(size) < 0.3] = -np.inf
    logits.flags.writeable = False
    for penalty in (1.0, 1.5):
        sampler = Sampler(temperature=1, top_k=top_k, top_p=1, min_p=0, repeat_penalty=penalty)
        recent = random.integers(0, size, 20).tolist()
        scores = logits.astype(np.float64)
        scores[recent] = np.where(scores[recent] > 0, scores[recent] / penalty, scores[recent] * penalty)
        best = best_of(sampler._penalized(logits, recent), min(top_k, size))
        assert best.tolist() == np.argsort(-scores, kind="stable")[:top_k].tolist()
        ids, chances = sampler.distribution(logits, recent)
        assert (ids == best[: len(ids)]).all()
        np.testing.assert_allclose(chances, np.exp(scores[ids]) / np.exp(scores[ids]).sum(), rtol=1e-12)


def test_a_token_that_cannot_be() -> None:
    sampler = Sampler(seed=1)
    assert {sampler.choose(np.array([-np.inf, 0.0, -np.inf])) for _ in range(20)} == {1}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("logits", [[np.nan, 0.0], [-np.inf, -np.inf], [], [np.inf, 0.0]])
def test_logits_that_are_no_numbers(logits: list[float], temperature: float) -> None:
    with pytest.raises(FormatError, match=r"^sampling: the logits are NaN or infinite\."):
        Sampler(temperature).choose(np.array(logits))


@pytest.mark.parametrize("temperature", [1e-310, 5e-324, 1e-100])
def test_a_temperature_of_almost_nothing_takes_the_best(temperature: float) -> None:
    """It divided to infinity, and the draw was past the last token."""
    assert Sampler(temperature, seed=1).choose(np.array([1.0, 3.0, 2.0])) == 1
    assert Sampler(temperature, seed=1).choose(np.array([-1.0, -3.0, -2.0])) == 0


def test_top_p_1_keeps_all() -> None:
    """What sums to almost 1 rounded to 1, and hid tokens that a high temperature lets through."""
    for seed in range(20):
        logits = np.random.default_rng(seed).standard_normal(300) * 20
        assert len(Sampler(100, top_k=0, top_p=1, min_p=0).distribution(logits)[0]) == 300


def test_values_outside_their_range() -> None:
    with pytest.raises(SettingError, match=r"^Sampler: min_p=1\.5: must be from -1e\+06 to 1\.$"):
        Sampler(min_p=1.5)
    with pytest.raises(SettingError, match=r"^Sampler: repeat_last=-2: must be from -1 to 2\.14748e\+09\.$"):
        Sampler(repeat_last=-2)
    with pytest.raises(SettingError, match=r"^Sampler: temperature=nan: must be from -1e\+06 to 1e\+06\.$"):
        Sampler(temperature=math.nan)
    with pytest.raises(SettingError, match=r"^Sampler: repeat_penalty=0 would divide by 0\. 1 disables it\.$"):
        Sampler(repeat_penalty=0)


OFF: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"top_k": value}, {"top_k": 0}) for value in (-1, -40)),
    *(({"top_p": value}, {"top_p": 1.0}) for value in (1.5, 2)),
    *(({"min_p": value}, {"min_p": 0.0}) for value in (-0.1, -1)),
    ({"repeat_penalty": 2.0, "repeat_last": 0}, {"repeat_penalty": 1.0}),
    ({"top_p": -1}, {"top_p": 0.0}),  # llama.cpp keeps one token
]


@pytest.mark.parametrize(("given", "same"), OFF, ids=str)
def test_values_that_llama_cpp_reads_as_off(given: dict[str, Any], same: dict[str, Any]) -> None:
    """M6: the command line took --top-k -1, and Sampler(top_k=-1) raised."""
    logits, recent = np.random.default_rng(2).standard_normal(60) * 4, [3, 5, 5, 40]
    found, expected = (Sampler(**values).distribution(logits, recent) for values in (given, same))
    np.testing.assert_array_equal(found, expected)


def test_a_negative_temperature_is_greedy() -> None:
    assert Sampler(temperature=-1).choose(np.array([1.0, 3.0, 2.0])) == 1


def test_seeds_that_mean_a_random_one() -> None:
    logits = np.zeros(1000)
    for seed in (None, -1, 2**32 - 1):
        draws = [[Sampler(1, 0, 1, 0, seed=seed).choose(logits) for _ in range(8)] for _ in range(2)]
        assert draws[0] != draws[1]


def test_penalties_and_bias_are_those_of_llama_cpp() -> None:
    """bias first; then logit / repeat, less count * frequency, less presence."""
    logits = np.array([2.0, -2.0, 1.0, 0.5])
    sampler = Sampler(1, 0, 1, 0, 2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 4.0, 9: 1.0})
    ids, chances = sampler.distribution(logits, [0, 0, 1])
    scores = {0: 2 / 2 - 2 * 0.25 - 0.5, 1: -2 * 2 - 0.25 - 0.5, 2: 1.0, 3: 4.5}
    expected = {token: math.exp(score) for token, score in scores.items()}
    total = sum(expected.values())
    for token, chance in zip(ids.tolist(), chances.tolist(), strict=True):
        assert chance == pytest.approx(expected[token] / total)
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.5]


def test_a_bias_of_minus_infinity_forbids_a_token() -> None:
    never = {1: -math.inf}
    assert Sampler(0, logit_bias=never).choose(np.array([1.0, 3.0, 2.0])) == 2
    with pytest.raises(SettingError, match=r"^sampling: logit_bias leaves no token to choose\."):
        Sampler(0, logit_bias=never | {0: -math.inf}).choose(np.array([1.0, 3.0]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_k": 40.0}, "top_k=40.0: must be an integer from -2.14748e+09 to 2.14748e+09."),
        ({"repeat_last": None}, "repeat_last=None: must be an integer from -1 to 2.14748e+09."),
        ({"top_k": True}, "top_k=True: must be an integer from -2.14748e+09 to 2.14748e+09."),
        ({"temperature": False}, "temperature=False: must be a number from -1e+06 to 1e+06."),
        ({"presence_penalty": "1"}, "presence_penalty='1': must be a number from -1e+06 to 1e+06."),
        ({"seed": True}, "seed=True: must be an integer >= 0, or -1 or None for a random one."),
        ({"temperature": "0.8"}, "temperature='0.8': must be a number from -1e+06 to 1e+06."),
        ({"seed": -2}, "seed=-2: must be an integer >= 0, or -1 or None for a random one."),
        ({"seed": 1.5}, "seed=1.5: must be an integer >= 0, or -1 or None for a random one."),
        ({"logit_bias": [1]}, "logit_bias=[1]: must be a dict of token ids and numbers."),
        ({"logit_bias": {1: math.inf}}, "logit_bias={1: inf}: must be token ids >= 0 and numbers below infinity."),
        ({"logit_bias": {"a": 1.0}}, "logit_bias={'a': 1.0}: must be token ids >= 0 and numbers below infinity."),
    ],
    ids=str,
)
def test_values_of_another_kind(values: dict[str, Any], message: str) -> None:
    """NumPy said so at the first token, in its own words."""
    with pytest.raises(SettingError) as caught:
        Sampler(**values)
    assert str(caught.value) == f"Sampler: {message}"


def test_values_of_numpy() -> None:
    sampler = Sampler(np.float32(0.5), np.int64(3), np.float64(0.5), seed=np.uint8(4))  # type: ignore[arg-type]
    assert sampler.choose(np.array([9.0, 0.0])) == 0


# --- further steps, each by its definition, in float64
def left(logits: Sequence[float], recent: Sequence[int] = (), **options: Any) -> dict[int, float]:
    """Of a sampler with this step alone."""
    named = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options}
    ids, chances = Sampler(**named).distribution(np.array(logits, np.float64), recent)
    return dict(zip(ids.tolist(), chances.tolist(), strict=True))


def shares(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


@settings(deadline=None, max_examples=200)
@given(logits=logits_of, part=st.sampled_from([0.05, 0.3, 0.6, 0.9, 0.999]))
def test_typical(logits: list[float], part: float) -> None:
    chances = shares(logits)
    entropy = -math.fsum(chance * math.log(chance) for chance in chances)
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))
    order = sorted(order, key=lambda n: round(abs(-math.log(chances[n]) - entropy), 9))
    kept, reached = [], 0.0
    for token in order:
        kept.append(token)
        reached += chances[token]
        if reached > part:
            break
    found = left(logits, typical_p=part)
    if len({round(abs(-math.log(c) - entropy), 9) for c in chances}) == len(logits):  # of ties others may be kept
        assert set(found) == set(kept)
    assert len(found) == len(kept)


@settings(deadline=None, max_examples=100)
@given(logits=logits_of, count=st.sampled_from([0.5, 1.0, 2.0]))
def test_top_n_sigma(logits: list[float], count: float) -> None:
    mean = math.fsum(logits) / len(logits)
    spread = math.sqrt(math.fsum((logit - mean) ** 2 for logit in logits) / len(logits))
    kept = {n for n, logit in enumerate(logits) if logit >= max(logits) - count * spread - 1e-9}
    assert set(left(logits, top_n_sigma=count)) in (kept, {n for n in kept if logits[n] > max(logits) - count * spread})


def test_xtc_leaves_out_the_best_but_the_least_above_the_threshold() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert set(left(logits, xtc_probability=1.0, xtc_threshold=0.15)) == {2, 3}
    assert set(left(logits, xtc_probability=1.0, xtc_threshold=0.35)) == {0, 1, 2, 3}
    assert set(left(logits, xtc_probability=0.0, xtc_threshold=0.15)) == {0, 1, 2, 3}
    sampler = Sampler(1, 0, 1, 0, seed=2, xtc_probability=0.25, xtc_threshold=0.15)
    times = sum(len(sampler.distribution(np.array(logits))[0]) == 2 for _ in range(2000))
    assert abs(times / 2000 - 0.25) < 0.04


@pytest.mark.parametrize(
    ("recent", "wanted"),
    [
        ([1, 2, 3, 1, 2], {3: 2}),  # 1 2 came before, and 3 followed
        ([1, 2, 3, 9, 1, 2, 4, 1, 2], {3: 2, 4: 2}),
        ([5, 1, 2, 3, 5, 1, 2, 8, 5, 1, 2], {3: 3, 8: 3}),
        ([1, 1, 1, 1], {1: 3}),
        ([1, 2, 7, 1, 2], {}),  # 7 is a breaker, and cannot be penalized itself
        ([1, 2, 3, 1, 7, 2], {3: 1}),  # nothing reaches over it
        ([1, 2, 3, 7], {}),
    ],
)
def test_repetitions(recent: list[int], wanted: dict[int, int]) -> None:
    assert repetitions(np.array(recent), frozenset([7])) == wanted


@settings(deadline=None, max_examples=200)
@given(recent=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_repetitions_by_hand(recent: list[int]) -> None:
    wanted: dict[int, int] = {}
    limit = next((n for n, token in enumerate(reversed(recent)) if token == 3), len(recent))
    for place in range(1, len(recent)):
        length = 0
        while length < min(place, limit) and recent[place - 1 - length] == recent[-1 - length]:
            length += 1
        if length and recent[place] != 3:
            wanted[recent[place]] = max(length, wanted.get(recent[place], 0))
    assert repetitions(np.array(recent), frozenset([3])) == wanted


def test_dry_lowers_what_continues_a_repetition() -> None:
    plain = left([0.0] * 6)
    found = left([0.0] * 6, [1, 2, 3, 4, 1, 2, 3], dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=2)
    np.testing.assert_allclose(math.log(found[0] / found[4]), 0.5 * 2.0)
    assert len({round(chance, 12) for token, chance in found.items() if token != 4}) == 1
    assert left([0.0] * 6, [1, 2, 3, 4, 1, 2, 3], dry_multiplier=0.5, dry_allowed_length=4) == plain
    assert left([0.0] * 6, [1, 2, 3, 4, 1, 2, 3], dry_multiplier=0.5, dry_penalty_last_n=4) == plain


@settings(deadline=None, max_examples=100)
@given(logits=logits_of, power=st.sampled_from([0.5, 1.0, 2.0]))
def test_dynamic_temperature(logits: list[float], power: float) -> None:
    chances = shares(logits)
    entropy = -math.fsum(chance * math.log(chance) for chance in chances)
    heat = 1.0
    if len(logits) > 1:
        heat = 0.5 + (1.5 - 0.5) * (entropy / math.log(len(logits))) ** power
    wanted = shares([logit / heat for logit in logits])
    found = left(logits, dynatemp_range=0.5, dynatemp_exponent=power)
    np.testing.assert_allclose([found[n] for n in range(len(logits))], wanted, rtol=1e-9)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("target", [2.0, 4.0])
def test_mirostat_reaches_its_surprise(version: int, target: float) -> None:
    logits = np.log(1 / np.arange(1, 3001) ** 1.1)  # as words are distributed
    chances = np.exp(logits) / np.exp(logits).sum()
    sampler = Sampler(1.0, mirostat=version, mirostat_tau=target, mirostat_eta=0.1, seed=7)
    seen = []
    for _ in range(1500):
        ids, kept = sampler.distribution(logits)
        token = sampler.choose(logits)
        seen.append(-math.log2(kept[ids.tolist().index(token)] if token in ids else chances[token]))
    assert abs(np.mean(seen[300:]) - target) < 0.3


def test_the_order_of_steps() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert len(left(logits, temperature=3.0, top_p=0.7)) == 2
    late = left(logits, temperature=3.0, top_p=0.7, samplers=("temperature", "top-p"))
    assert len(late) == 3  # the temperature comes first, and makes the rest more probable
    assert left(logits, top_k=1, samplers=("temp",)) == left(logits)
    assert set(left(logits, [0], repeat_penalty=1.5, top_k=1, samplers=("top_k", "penalties"))) == {0}
    found = left([3.0, 2.0, 1.0], [0], presence_penalty=2.5, top_k=2, samplers=("top_k", "penalties", "temperature"))
    assert [*found] == [1, 0]


def test_a_greedy_sampler_without_what_is_typical() -> None:
    """A best token that the steps leave out is not chosen, as in llama.cpp."""
    logits = np.log([0.9, 0.05, 0.03, 0.02])
    assert Sampler(0.0).choose(logits) == 0
    assert Sampler(0.0, xtc_probability=1.0, xtc_threshold=0.04).choose(logits) == 1


def test_bad_steps() -> None:
    with pytest.raises(SettingError, match=r"^Sampler: samplers: 'top_z' is unknown\. Names are penalties, dry, "):
        Sampler(samplers=("top_k", "top_z"))
    with pytest.raises(SettingError, match=r"^Sampler: mirostat=3: must be from 0 to 2\.$"):
        Sampler(mirostat=3)
    with pytest.raises(SettingError, match=r"^Sampler: dry_sequence_breakers=\('',\): must be strings"):
        Sampler(dry_sequence_breakers=("",))
