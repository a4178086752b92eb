"""Schedules of the rate, by PyTorch's names: each sets `lr` of every group when it is made, and at each `step()`.

A rate is a tensor, so a captured training step goes on with a new one and is not captured again. A schedule is a
function of the number of steps, of which `rate` gives the value for any of them.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernmill.ir import SettingError

from ...arguments import with_sentences_at_init
from .base import Optimizer

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau",
    "SequentialLR", "StepLR", "WarmupCosineLR",
]  # fmt: skip


class LRScheduler:
    """The base of schedules: subclasses define `rate`, the rate after i steps for the rate that the optimizer has."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_sentences_at_init(cls)

    def __init__(self, optimizer: Optimizer) -> None:
        name = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise SettingError(
                f"{name}: {type(optimizer).__name__} is not an optimizer. Give one of kernmill.nn.optim."
            )
        self.optimizer, self.count = optimizer, 0
        for group in optimizer.groups:
            if group._first_rate is None:
                group._first_rate = float(group.lr.item())
        self.base_lrs = [group._first_rate or 0.0 for group in optimizer.groups]
        self._set_rates()

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps, where `base` is the optimizer's."""
        raise NotImplementedError(f"{type(self).__name__} has no rate(). Write one in the class.")

    def step(self) -> None:
        """Set the rate of the next step; call it after `optimizer.step()`."""
        self.count += 1
        self._set_rates()

    def get_last_lr(self) -> list[float]:
        """The rates of the groups."""
        return [self.rate(self.count, base) for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the first rates, to continue a schedule."""
        return {"count": self.count, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a schedule of the same class and arguments.

        Raises:
            SettingError: it is of another number of groups.
        """
        if len(state.get("base_lrs", ())) != len(self.base_lrs) or "count" not in state:
            raise SettingError(
                f"{type(self).__name__}: the state is not that of a schedule over {len(self.base_lrs)} groups. Give "
                "the state_dict() of one."
            )
        self.count, self.base_lrs = int(state["count"]), [float(rate) for rate in state["base_lrs"]]
        self._set_rates()

    def _set_rates(self) -> None:
        for group, rate in zip(self.optimizer.groups, self.get_last_lr(), strict=True):
            group.lr = rate

    def _at_least(self, least: int = 1, **counts: Any) -> None:
        for word, count in counts.items():
            if not isinstance(count, int) or count < least:
                raise SettingError(f"{type(self).__name__}: {word}={count!r}. Give an integer, {least} or more.")


class LambdaLR(LRScheduler):
    """The rate times a function of the number of steps."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.factor = lr_lambda
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate times the function's value."""
        return base * self.factor(i)


class StepLR(LRScheduler):
    """The rate times gamma after every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self._at_least(step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return base * self.gamma ** (i // self.step_size)


class MultiStepLR(LRScheduler):
    """The rate times gamma at each of the milestones."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        passed = sum(count for milestone, count in self.milestones.items() if i >= milestone)
        return base * self.gamma**passed


class ExponentialLR(LRScheduler):
    """The rate times gamma after each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return base * self.gamma**i


class ConstantLR(LRScheduler):
    """The rate times a factor for the first steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return base * (self.factor if i < self.total_iters else 1)


class LinearLR(LRScheduler):
    """The rate times a factor that goes from one number to another on a line: a warm-up."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5) -> None:  # fmt: skip
        self._at_least(total_iters=total_iters)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        share = min(i, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class PolynomialLR(LRScheduler):
    """The rate to 0 as a power of the share of steps that are left."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        self._at_least(total_iters=total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return float(base * (1 - min(i, self.total_iters) / self.total_iters) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """The rate to `eta_min` along half a cosine of `T_max` steps, and back."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self._at_least(T_max=T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return _on_cosine(base, self.eta_min, i / self.T_max)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines, one after the other, each `T_mult` times as long as the one before.

    Source: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, ICLR 2017.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        self._at_least(T_0=T_0, T_mult=T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        length = self.T_0
        while i >= length:
            i, length = i - length, length * self.T_mult
        return _on_cosine(base, self.eta_min, i / length)


class WarmupCosineLR(LRScheduler):
    """A line from 0 over the first `warmup` steps, then half a cosine to `eta_min` at the last of `total_iters`."""

    def __init__(self, optimizer: Optimizer, warmup: int, total_iters: int, eta_min: float = 0.0) -> None:
        self._at_least(warmup=warmup, least=0)
        self._at_least(total_iters=total_iters, least=warmup + 1)
        self.warmup, self.total_iters, self.eta_min = warmup, total_iters, eta_min
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        if i < self.warmup:
            return base * (i + 1) / self.warmup
        return _on_cosine(base, self.eta_min, min(1.0, (i - self.warmup) / (self.total_iters - self.warmup)))


class OneCycleLR(LRScheduler):
    """A rise from `max_lr / div_factor` over the first share of the steps, then a fall below it. Momentum is unchanged.

    Source: Smith and Topin, Super-Convergence, 2018.
    """

    def __init__(self, optimizer: Optimizer, max_lr: float, total_steps: int, pct_start: float = 0.3, *,
                 div_factor: float = 25.0, final_div_factor: float = 1e4) -> None:  # fmt: skip
        self._at_least(total_steps=total_steps, least=2)
        self.max_lr, self.total_steps, self.pct_start = max_lr, total_steps, pct_start
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps.

        Raises:
            SettingError: after the last one.
        """
        if i > self.total_steps:
            raise SettingError(f"OneCycleLR: step {i} of {self.total_steps}. Make the schedule with more total_steps.")
        first, top = self.max_lr / self.div_factor, self.pct_start * self.total_steps - 1
        if i <= top:
            return _on_cosine(first, self.max_lr, i / top if top else 1.0)
        share = min(1.0, (i - top) / (self.total_steps - 1 - top))
        return _on_cosine(self.max_lr, first / self.final_div_factor, share)


class SequentialLR(LRScheduler):
    """Schedules one after the other: the next one begins at each milestone, with its own first step."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        if len(milestones) != len(schedulers) - 1 or list(milestones) != sorted(milestones):
            raise SettingError(
                f"SequentialLR: {len(schedulers)} schedulers with milestones {list(milestones)}. Give one "
                "less, in order."
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        number = bisect.bisect_right(self.milestones, i)
        return self.schedulers[number].rate(i - (self.milestones[number - 1] if number else 0), base)


class ChainedScheduler(LRScheduler):
    """Several schedules at the same time: the product of their factors."""

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        if not schedulers:
            raise SettingError("ChainedScheduler: no schedulers. Give at least one.")
        self.schedulers = list(schedulers)
        super().__init__(schedulers[0].optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after i steps."""
        return base * math.prod(scheduler.rate(i, base) / base for scheduler in self.schedulers) if base else 0.0


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a number, such as the loss, has not become better for `patience` steps."""

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, *, cooldown: int = 0, min_lr: float = 0.0) -> None:  # fmt: skip
        if mode not in ("min", "max"):
            raise SettingError(f"ReduceLROnPlateau: mode={mode!r}. Give 'min' or 'max'.")
        if not 0 <= factor < 1:
            raise SettingError(f"ReduceLROnPlateau: factor={factor!r}. Give a number from 0 to below 1.")
        self.mode, self.factor, self.patience, self.threshold = mode, factor, patience, threshold
        self.cooldown, self.min_lr = cooldown, min_lr
        self.best, self.bad, self.resting, self.reductions = math.inf, 0, 0, 0
        super().__init__(optimizer)

    def rate(self, i: int, base: float) -> float:
        """The rate after the reductions so far."""
        rate = base
        for _ in range(self.reductions):
            rate = max(rate * self.factor, self.min_lr)
        return rate

    def step(self, metric: Any = None) -> None:
        """Note the number of this step: a float, or a tensor of one element.

        Raises:
            SettingError: there is none.
        """
        if metric is None:
            raise SettingError("ReduceLROnPlateau: step() without a number. Write step(loss).")
        value = float(metric) if self.mode == "min" else -float(metric)
        self.count += 1
        better = self.best - abs(self.best) * self.threshold if math.isfinite(self.best) else self.best
        if value < better:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.resting:
            self.resting, self.bad = self.resting - 1, 0
        if self.bad > self.patience:
            self.reductions, self.bad, self.resting = self.reductions + 1, 0, self.cooldown
            self._set_rates()

    def state_dict(self) -> dict[str, Any]:
        """As other schedules, with the best number and the counts."""
        own = {"best": self.best, "bad": self.bad, "resting": self.resting, "reductions": self.reductions}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As other schedules."""
        self.best, self.bad = float(state.get("best", math.inf)), int(state.get("bad", 0))
        self.resting, self.reductions = int(state.get("resting", 0)), int(state.get("reductions", 0))
        super().load_state_dict(state)


def _on_cosine(start: float, stop: float, share: float) -> float:
    """A number on half a cosine."""
    return stop + (start - stop) * (1 + math.cos(math.pi * share)) / 2
