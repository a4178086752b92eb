"""class GradScaler: losses times a large number, so that small gradients are not 0 in float16."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernmill.ir import GradientError, SettingError

from ...arguments import with_sentences_at_init
from ...lazy import no_grad
from ...methods.elementwise import where
from ...tensor import Tensor
from .base import Optimizer

__all__ = ["GradScaler"]


class GradScaler:
    """A factor for the loss, for training in float16. bfloat16 has float32's range and needs none.

        scaler.scale(loss).backward()
        scaler.step(optimizer)

    A step whose gradients have an inf or nan changes nothing, and the factor is multiplied by `backoff_factor`. After
    `growth_interval` steps in a row that were made it is multiplied by `growth_factor`. All of that is computed with
    the step, so it works in captured steps.

    Raises:
        SettingError: a number that is out of range.
    """

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True) -> None:  # fmt: skip
        for word, is_right in (
            ("init_scale", init_scale > 0), ("growth_factor", growth_factor > 1),
            ("backoff_factor", 0 < backoff_factor < 1), ("growth_interval", growth_interval >= 1),
        ):  # fmt: skip
            if not is_right:
                raise SettingError(
                    f"GradScaler: {word} is out of range. Its default is a good number for most networks."
                )
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.enabled = growth_interval, enabled
        self.factor = Tensor(np.full((1,), init_scale, np.float32)).reshape(())
        self.good = Tensor(np.zeros((1,), np.int32)).reshape(())  # steps in a row that were made

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the factor, in float32."""
        return loss.float() * self.factor.detach().to(loss.device) if self.enabled else loss

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the factor, to clip them before `step`.

        Raises:
            GradientError: no parameter has a gradient.
        """
        moving = [p for p in optimizer.parameters if p.grad is not None]
        if not moving:
            raise GradientError("GradScaler: no parameter has a gradient. Call backward() on scale(loss) first.")
        if not self.enabled or optimizer._is_unscaled:
            return
        with no_grad():
            for p in moving:
                assert p.grad is not None
                p.grad = p.grad.detach() / self.factor.detach().to(p.grad.device).cast(p.grad.dtype)
        optimizer._is_unscaled = True

    def step(self, optimizer: Optimizer, *also: Tensor) -> None:
        """Make the optimizer's step if all gradients are finite, and change the factor."""
        self.unscale(optimizer)
        optimizer._is_unscaled = False
        if not self.enabled:
            optimizer.step(*also)
            return
        with no_grad():
            finite = [
                p.grad.isfinite().all().to(self.factor.device) for p in optimizer.parameters if p.grad is not None
            ]
            is_finite = functools.reduce(lambda a, b: a & b, finite).reshape(()).contiguous()
            good = where(is_finite, self.good.detach() + 1, 0)
            grows = good >= self.growth_interval
            more = where(grows, self.growth_factor, 1.0)
            self.factor.assign(self.factor.detach() * where(is_finite, more, self.backoff_factor))
            self.good.assign(where(grows, 0, good))
        optimizer.step(self.factor, self.good, *also, only_if=is_finite)

    def state_dict(self) -> dict[str, Tensor]:
        """The factor, and the number of steps in a row that were made."""
        return {"factor": self.factor, "good": self.good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.factor.assign(Tensor(state["factor"]).cast(self.factor.dtype).reshape(())).realize()
        self.good.assign(Tensor(state["good"]).cast(self.good.dtype).reshape(())).realize()


with_sentences_at_init(GradScaler)
