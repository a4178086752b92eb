"""Random numbers: Threefry-2x32 with 20 rounds, a counter-based generator, written in uint32 ops.

The number at position i of the n-th call is a function of (seed, n, i) alone: equal on every device and for any number
of threads. Seed and n are in a small buffer that the kernels read. Each call adds its count to n in the graph; the next
realize() writes the new n back, whatever it realizes, as an ASSIGN among its roots. A captured graph therefore contains
that ASSIGN and draws new numbers in each replay.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Sequence
from math import prod
from typing import Any, Self, TypeGuard

from kernmill.ir import (
    DTypeError,
    DTypeLike,
    SettingError,
    ShapeError,
    UOp,
    as_dtype,
    assign,
    at_fork,
    dtypes,
    expand,
    iota,
    is_helper_fork,
    process_lock,
    reshape,
    setting,
    show_shape,
    shrink,
)
from kernmill.runtime import Device, get_device, upload

from ..arguments import with_sentences
from ..lazy import device_name
from .convolution import Convolution
from .elementwise import choose
from .movement import flat_sizes
from .searching import Searching
from .segments import looked_up

__all__ = ["Random", "manual_seed", "threefry"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF
_ODD = 0x9E3779B1  # scatters the seeds of children
_NO_DISTRIBUTION = (
    "multinomial: the weights of a row are not a distribution. Each must be 0 or more and finite, and at least {} "
    "above 0."
)


def threefry(key: tuple[UOp, UOp], counter: tuple[UOp, UOp]) -> tuple[UOp, UOp]:
    """Two random uint32 words for a counter of two words under a key of two words."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for step in range(5):
        for turn in _ROTATIONS[step % 2]:
            x = x + y
            y = ((y << turn) | (y >> (32 - turn))) ^ x
        x = x + keys[(step + 1) % 3]
        y = y + keys[(step + 2) % 3] + (step + 1)
    return x, y


class _Generator:
    """The state on one device: the words (seed, number of the next call), and how many calls are not yet in it."""

    def __init__(self, state: Random, home: Device) -> None:
        self.state, self.home = state, home
        self.pending = 0

    def words(self, shape: Sequence[int]) -> tuple[UOp, UOp]:
        """Return two uint32 words for each element of a shape; counts as one call."""
        count = prod(shape)
        seed, call = (shrink(self.state.uop, [(i, i + 1)]) for i in (0, 1))
        index = iota(count)
        low, high = index.cast(dtypes.uint32), (index >> 32).cast(dtypes.uint32)
        if self.pending:  # as data: layers that are equal share their kernels
            import numpy as np

            call = call + upload(np.array([self.pending], np.uint32), dtypes.uint32, self.state.device)
        x, y = threefry((expand(seed, (count,)), high), (low, expand(call, (count,))))
        self.pending += 1
        return reshape(x, shape), reshape(y, shape)

    def advance(self) -> Random:
        """The state with the calls made so far written into it."""
        if self.pending:
            old = self.state.uop
            self.state._put(assign(old, old + iota(2).cast(dtypes.uint32) * self.pending))
            self.pending = 0
        return self.state


_generators: dict[str, _Generator] = {}
_lock = process_lock()
_seed: int | None = None
_forks = 0  # children so far


@with_sentences
def manual_seed(seed: int) -> None:
    """Restart the random numbers of every device from a seed (its low 32 bits). Forked children get others.

    Uniform numbers, ints and permutations are the same bits everywhere. The last bits of normal numbers depend on the
    instructions of the machine (docs/how-to/dtypes.md).
    """
    global _seed, _forks
    with _lock:
        _seed, _forks = int(seed), 0
        _generators.clear()


def _seed_now() -> int:
    return int(setting("SEED")) if _seed is None else _seed


def _before_fork() -> None:
    global _forks
    _forks += not is_helper_fork()


def _after_fork() -> None:
    """Reseed in a forked child: its seed depends on its parent's, and on the number of the child."""
    manual_seed((_seed_now() * _ODD + _forks) * _ODD & _WORD)


at_fork(before=_before_fork, after_in_child=_after_fork)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _is_finite(value: object) -> bool:
    """True if the value is a finite number, or a tensor or another thing that is looked at where it is used."""
    return not _is_number(value) or math.isfinite(value)


class Random(Convolution, Searching):
    """Random tensors."""

    manual_seed = staticmethod(manual_seed)

    @classmethod
    def _words(cls, shape: tuple[int | Sequence[int], ...], device: str | None) -> tuple[Self, Self]:
        sizes = flat_sizes(shape)
        if any(isinstance(s, UOp) or s < 0 for s in sizes):
            raise ShapeError(f"random tensor of shape {show_shape(sizes)}: sizes must be integers >= 0, none symbolic.")
        name = device_name(device)
        with _lock:
            x, y = cls._generator(name).words(sizes)
            return cls._make(x, name), cls._make(y, name)

    @classmethod
    def _generator(cls, name: str) -> _Generator:
        if name not in _generators or _generators[name].home.lost:
            import numpy as np

            node = upload(np.array([_seed_now() & _WORD, 0], np.uint32), dtypes.uint32, name)
            _generators[name] = _Generator(cls._make(node, name), get_device(name))
        return _generators[name]

    @classmethod
    def random_state(cls, *, device: str | None = None) -> Self:
        """Return the state of a device's random numbers: two uint32, which a checkpoint can store with the weights."""
        with _lock:
            generator = cls._generator(device_name(device))
            return cls._make(generator.advance().uop, generator.state.device)

    @classmethod
    def _go_on(cls, device: str | None, words: Sequence[int]) -> None:
        """The state of a device from now on, written by the next realize()."""
        global _seed
        import numpy as np

        name = device_name(device)
        with _lock:
            own = cls._generator(name).advance()
            own._put(assign(own.uop, upload(np.array(words, np.uint32), dtypes.uint32, name)))
            _seed = words[0]

    @classmethod
    def _states(cls) -> list[Random]:
        """Return the states that every realize() updates: the number of calls on each device."""
        if not _generators:
            return []
        with _lock:
            there = [generator for generator in _generators.values() if not generator.home.lost]
            waiting = [g for g in there if g.pending or g.state.uop.storage is None]
            return [generator.advance() for generator in waiting]

    # --- distributions
    @classmethod
    def _unit(cls, words: tuple[Self, Self], dtype: DTypeLike, *, above_zero: bool = False) -> Self:
        """Convert words to floats in [0, 1), or in (0, 1]: as many bits as the dtype has, so that nothing rounds up
        to 1."""
        dtype = as_dtype(dtype)
        if not dtype.is_float:
            raise DTypeError(f"random numbers between 0 and 1 in {dtype.name}: use a float dtype, or randint.")
        if dtype is dtypes.float64:
            high, low = (w.cast(dtypes.uint64) for w in words)
            bits, digits = high.mul(1 << 21).bitwise_xor(low.bitwise_right_shift(11)), 53
        else:
            digits = {dtypes.float16: 11, dtypes.bfloat16: 8}.get(dtype, 24)
            bits = words[0].bitwise_right_shift(32 - digits)
        number = bits.cast(dtypes.float64 if digits > 24 else dtypes.float32)
        return (number.add(1.0) if above_zero else number).mul(2.0**-digits).cast(dtype)

    @classmethod
    def rand(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Even numbers in [0, 1)."""
        return cls._unit(cls._words(shape, device), dtype)._as_leaf(requires_grad)

    def _as_leaf(self, requires_grad: bool) -> Self:
        return self.requires_grad_() if requires_grad else self

    @classmethod
    def randn(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Normal numbers of mean 0 and deviation 1, by Box and Muller; half types from float32."""
        if not as_dtype(dtype).is_float:
            raise DTypeError(f"normal numbers in {as_dtype(dtype).name}: use a float dtype, or randint.")
        x, y = cls._words(shape, device)
        wide = dtypes.float64 if as_dtype(dtype) is dtypes.float64 else dtypes.float32
        radius = cls._unit((x, y), wide, above_zero=True).log().mul(-2.0).sqrt()
        angle = cls._unit((y, x), wide).mul(2.0 * math.pi).cos()
        return radius.mul(angle).cast(dtype)._as_leaf(requires_grad)

    @classmethod
    def randint(
        cls,
        low: int,
        high: int | Sequence[int] | None,
        shape: int | Sequence[int] | None = None,
        *,
        dtype: DTypeLike = dtypes.default_int,
        device: str | None = None,
    ) -> Self:
        """Return integers from low to high - 1, uniform to one part in 2^32; with one number or None: 0 to low - 1."""
        given: Any = (low, high, shape) if shape is not None else (0, low, high)
        least, end, sizes = given
        if shape is None and (sizes is None or isinstance(sizes, int)):
            bounds = f"{low}" if sizes is None else f"{low}, {sizes}"
            raise ShapeError(f"randint: no shape. Give one: randint({bounds}, (3,)).")
        if end is None:
            least, end = 0, low
        dtype = as_dtype(dtype)
        if not dtype.is_int or least < dtype.min or end - 1 > dtype.max:
            raise DTypeError(f"randint: {least} to {end} does not fit {dtype.name}. Use a wider int dtype.")
        if not 0 < end - least <= 2**32:
            raise ShapeError(f"randint: from {least} to {end}: give high > low, at most 2^32 apart.")
        words = cls._words((sizes,), device)[0].cast(dtypes.uint64)
        return words.mul(end - least).bitwise_right_shift(32).cast(dtypes.int64).add(least).cast(dtype)

    @classmethod
    def uniform(
        cls,
        *shape: int | Sequence[int],
        low: float = 0.0,
        high: float = 1.0,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Even numbers from low to high.

        Raises:
            SettingError: low is above high, or one of them is not finite.
        """
        if not (_is_finite(low) and _is_finite(high)) or (_is_number(low) and _is_number(high) and low > high):
            raise SettingError(f"uniform: low={low!r}, high={high!r}: low must be at most high, and both finite.")
        return cls.rand(*shape, dtype=dtype, device=device).mul(high - low).add(low)._as_leaf(requires_grad)

    @classmethod
    def normal(
        cls,
        *shape: int | Sequence[int],
        mean: float = 0.0,
        std: float = 1.0,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Normal numbers of this mean and deviation. A tensor of deviations below 0 fails when it is computed.

        Raises:
            SettingError: std is a number below 0, or not finite; so is mean.
        """
        if not (_is_finite(mean) and _is_finite(std)) or (_is_number(std) and std < 0):
            raise SettingError(f"normal: mean={mean!r}, std={std!r}: std must be 0 or more, and both finite.")
        drawn: Any = cls.randn(*shape, dtype=dtype, device=device)
        if not _is_number(std):
            own = drawn._tensor(std)
            std = own._checked(own.ge(0).logical_not(), "normal: a deviation is below 0, or nan. Give std=x.abs().")
        made: Self = drawn.mul(std).add(mean)._as_leaf(requires_grad)
        return made

    @classmethod
    def randperm(cls, n: int, *, device: str | None = None) -> Self:
        """The numbers 0 to n-1 in random order: random keys are put in order, the last bits of each are its number.

        Raises:
            ShapeError: n is below 0, or above 2**31, where a key of 62 bits would have less than 31 random ones.
        """
        if isinstance(n, int) and n > 1 << 31:
            raise ShapeError(f"randperm: n={reprlib.repr(n)}: at most 2**31 numbers. Shuffle parts of them.")
        high, low = (word.cast(dtypes.int64) for word in cls._words((n,), device))
        bits = max(0, n - 1).bit_length()
        chance = high.bitwise_left_shift(30).bitwise_xor(low).bitwise_right_shift(bits).bitwise_left_shift(bits)
        keys = chance.bitwise_or(cls._make(iota(n))).pad([(0, (1 << bits) - n)], value=dtypes.int64.max)
        return keys._merged(n)._first(n).bitwise_and((1 << bits) - 1).clamp(0, max(0, n - 1))

    @classmethod
    def kaiming_uniform(
        cls,
        *shape: int | Sequence[int],
        a: float = 0.0,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """He's initialization for weights of shape (out, in, *kernel) before a leaky ReLU of slope a."""
        sizes = flat_sizes(shape)
        bound = math.sqrt(6.0 / ((1 + a * a) * max(1, prod(sizes[1:]))))
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def kaiming_normal(
        cls,
        *shape: int | Sequence[int],
        a: float = 0.0,
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """He's initialization by normal numbers, for weights of shape (out, in, *kernel)."""
        std = math.sqrt(2.0 / ((1 + a * a) * max(1, prod(flat_sizes(shape)[1:]))))
        return cls.normal(*shape, std=std, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def scaled_uniform(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Even numbers from -1 to 1, divided by the root of the number of elements."""
        bound = 1 / math.sqrt(max(1, prod(flat_sizes(shape))))
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    @classmethod
    def glorot_uniform(
        cls,
        *shape: int | Sequence[int],
        dtype: DTypeLike = dtypes.default_float,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> Self:
        """Glorot's initialization for weights of shape (out, in, *kernel)."""
        sizes = flat_sizes(shape)
        if not sizes:
            raise ShapeError(
                "glorot_uniform: the sizes are missing. Give the shape of the weights, (out, in, *kernel)."
            )
        bound = math.sqrt(6.0 / max(1, sizes[0] * prod(sizes[2:]) + prod(sizes[1:])))
        return cls.uniform(*shape, low=-bound, high=bound, dtype=dtype, device=device, requires_grad=requires_grad)

    def rand_like(self, *, dtype: DTypeLike | None = None) -> Self:
        """Even numbers in [0, 1) in this tensor's shape, dtype and on its device."""
        return self.rand(self.node_shape, dtype=dtype or self.dtype, device=self._device)

    def randn_like(self, *, dtype: DTypeLike | None = None) -> Self:
        """Normal numbers in this tensor's shape, dtype and on its device."""
        return self.randn(self.node_shape, dtype=dtype or self.dtype, device=self._device)

    def bernoulli(self) -> Self:
        """1 with the probability that each entry says, else 0. An entry outside 0..1 fails when it is computed."""
        wide = dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32
        own = self.detach()
        bad = own.ge(0).logical_and(own.le(1)).logical_not()  # also nan
        own = own._checked(bad, "bernoulli: a probability is outside 0 to 1. Clamp the tensor.")
        return self.rand(self.node_shape, dtype=wide, device=self._device).lt(own).cast(self.dtype)

    def multinomial(self, num_samples: int, replacement: bool = False) -> Self:
        """Draw class numbers with the weights in the last axis; without replacement by an exponential race.

        Invalid weights fail when they are computed: negative, nan or infinite ones, only zeros, and without replacement
        fewer above 0 than `num_samples`.

        Raises:
            ShapeError: no classes, or without replacement fewer than `num_samples`.
        """
        num_samples = operator.index(num_samples)
        classes = self.node_shape[-1] if self.ndim else 0
        if num_samples < 1 or not isinstance(classes, int) or classes < (1 if replacement else num_samples):
            least = "1 or more classes" if replacement else f"{max(1, num_samples)} or more classes"
            raise ShapeError(
                f"multinomial: num_samples={num_samples} of weights of shape {show_shape(self.uop.shape)}: the last "
                f"axis must be {least}, and num_samples 1 or more."
            )
        weights = self.detach()._float_wide()
        is_weight = weights.ge(0).logical_and(weights.lt(math.inf))
        some = weights.gt(0)
        needed = 1 if replacement else num_samples
        too_few = some.sum(-1, keepdim=True).lt(needed)
        weights = weights._checked(is_weight.logical_not().logical_or(too_few), _NO_DISTRIBUTION.format(needed))
        if replacement:
            return weights._drawn(num_samples)
        x, y = self._words((self.node_shape,), self._device)
        race = self._unit((x, y), dtypes.float32, above_zero=True).log().neg().div(weights)
        return choose(some, race, race._filled(math.inf)).topk(num_samples, largest=False)[1]

    def _drawn(self, count: int) -> Self:
        """Draw `count` classes for each row of weights, by a binary search in their prefix sums."""
        lead, classes = self.node_shape[:-1], self.node_shape[-1]
        sums = self.reshape((prod(lead), classes)).cumsum(-1)
        # a class of weight 0 has the prefix sum of the class before it, so that no draw ends there
        sums = choose(self.reshape(sums.node_shape).gt(0), sums, sums._filled(0)).cummax(-1).values._stored()
        total = sums.shrink([None, (classes - 1, classes)])
        drawn = self.rand(*lead, count, dtype=self.dtype, device=self._device).reshape((prod(lead), count)).mul(total)
        index = self._make(iota(1)).expand((prod(lead), count))
        step = 1 << classes.bit_length() - 1
        while step:  # `index` classes have prefix sums up to the draw, and that is less than `total`
            last = index.add(step - 1)
            seen = looked_up(sums, last.minimum(classes - 1))
            is_below = seen.le(drawn).logical_and(seen.lt(total)).logical_and(last.lt(classes))
            index, step = choose(is_below, index.add(step), index), step >> 1
        return index.reshape((*lead, count))

    def _float_wide(self) -> Self:
        """Half types and ints as float32."""
        return self if self.dtype in (dtypes.float32, dtypes.float64) else self.cast(dtypes.float32)
