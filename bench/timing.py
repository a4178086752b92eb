"""Taking samples: interleaved rounds A B C A B C, long enough samples, no garbage collection inside one.

After a peer's turn its worker threads spin for a while (OpenBLAS some 20 ms), on the core that the next peer needs.
With several threads every sample therefore starts with a pause in which they fall asleep; one call outside the clock
then wakes the peer's own.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from itertools import repeat

from .row import Sampler

__all__ = ["call_sampler", "interleave"]

_SETTLE_S = 0.03
_LEAST_ROUNDS = 5
_LONG_CALL_S = 0.2
_LONG_S, _VERY_LONG_S = 1.5, 4.0  # of a first sample, its warm-up included: kept to 3 rounds, to 1


def timed(call: Callable[[], object], count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of `count` calls. The last result lives until the next is there, as in a user's loop. `clock` is read
    before and after them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in repeat(None, count):
            kept = call()  # noqa: F841 - see above
        return clock() - start
    finally:
        if was_enabled:
            gc.enable()


def calls_for(
    call: Callable[[], object], sample_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, float]:
    """How many calls make a sample of that length, and the seconds that they took."""
    count = 1
    while True:
        spent = timed(call, count, clock)
        if spent >= sample_s:
            return count, spent
        count = max(count + 1, min(count * 10, int(count * 1.2 * sample_s / max(spent, 1e-9))))


def call_sampler(
    call: Callable[[], object], sample_s: float, threads: int, units: float = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Sampler:  # fmt: skip
    """A sampler of seconds per unit of work, `units` of them in a call. Warms up and calibrates at its first sample:
    then `clock` is read more than twice."""
    counts: list[int] = []
    is_long = False  # compared with a sample: no call outside the clock

    def sample() -> float:
        nonlocal is_long
        if threads > 1:
            time.sleep(_SETTLE_S)
        if not is_long:
            call()
        if counts:
            return timed(call, counts[0], clock) / counts[0] / units
        count, spent = calls_for(call, sample_s, clock)
        counts.append(count)
        is_long = spent > _LONG_CALL_S
        return spent / count / units

    return sample


def interleave(
    samplers: Mapping[str, Sampler], rounds: int, warm_up: int = 1, most_s: float = math.inf
) -> dict[str, list[float]]:
    """One sample of each in turn, `rounds` times, after `warm_up` rounds that do not count.

    After `most_s` seconds no other round is begun, if there were five.
    A sampler that took long in the warm-up takes part in the first rounds only, one that took very long in the first
    one: its list is shorter.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    left = dict.fromkeys(samplers, rounds)
    begun = time.perf_counter()
    for number in range(warm_up + rounds):
        if number - warm_up >= _LEAST_ROUNDS and time.perf_counter() - begun > most_s:
            break
        for name, sample in samplers.items():
            start = time.perf_counter()
            if number < warm_up:
                sample()
                spent = time.perf_counter() - start
                left[name] = min(rounds, 1 if spent > _VERY_LONG_S else 3 if spent > _LONG_S else rounds)
            elif number - warm_up < left[name]:
                samples[name].append(sample())
    return samples
