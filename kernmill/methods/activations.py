"""Tensor methods: activation functions, under PyTorch's names and defaults."""

from __future__ import annotations

import math
from typing import Self

from kernmill.ir import Ops, SettingError, UOp, const, elementwise

from ..lazy import KNOWN
from .elementwise import choose
from .functions import Functions, in_float32

__all__ = ["Activations"]


def _where_positive(result: UOp, _: UOp, grad: UOp) -> UOp:
    """Return the gradient of relu; nan passes it on."""
    return elementwise(Ops.WHERE, result.alu(Ops.LE, 0), const(grad.dtype, 0), grad)


class Activations(Functions):
    """Activation functions. nan in, nan out."""

    def relu(self) -> Self:
        """max(x, 0); its gradient at 0 is 0."""
        result = choose(self.le(0), self._filled(0), self)
        if result.requires_grad:  # by the result, which the next layer has in memory anyway: x need not be
            KNOWN[result.uop] = self.uop, _where_positive
        return result

    def relu6(self) -> Self:
        """x between 0 and 6; its gradient at both is 0."""
        return self.hardtanh(0, 6)

    def leaky_relu(self, negative_slope: float = 0.01) -> Self:
        """x where positive, else negative_slope * x."""
        x = self._floating()
        return choose(x.gt(0), x, x.mul(negative_slope))

    @in_float32
    def elu(self, alpha: float = 1.0) -> Self:
        """x where positive, else alpha * (exp(x) - 1)."""
        x = self._floating()
        is_positive = x.gt(0)
        return choose(is_positive, x, choose(is_positive, x._filled(0), x).expm1().mul(alpha))

    @in_float32
    def celu(self, alpha: float = 1.0) -> Self:
        """x where positive, else alpha * (exp(x / alpha) - 1)."""
        return self.div(alpha).elu().mul(alpha)

    @in_float32
    def selu(self) -> Self:
        """elu, scaled so that means and variances survive deep networks."""
        return self.elu(1.6732632423543772).mul(1.0507009873554805)

    @in_float32
    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self.mul(self.sigmoid())

    @in_float32
    def gelu(self, approximate: str = "none") -> Self:
        """x times the normal distribution function of x; `approximate="tanh"` by Hendrycks' formula."""
        x = self._floating()
        if approximate == "tanh":
            inner = x.mul(math.sqrt(2 / math.pi)).mul(x.mul(x).mul(0.044715).add(1.0))
            return x.mul(0.5).mul(inner.tanh().add(1.0))
        if approximate != "none":
            raise SettingError(f"gelu: approximate={approximate!r}: must be 'none' or 'tanh'.")
        return x.mul(0.5).mul(x.mul(math.sqrt(0.5)).erf().add(1.0))

    @in_float32
    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 x)."""
        return self.mul(self.mul(1.702).sigmoid())

    @in_float32
    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Self:
        """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
        x = self._floating()
        scaled = x.mul(beta)
        is_positive = scaled.ge(0.0)
        rest = choose(is_positive, scaled.neg(), scaled).exp().log1p()
        soft = choose(is_positive, scaled.add(rest), rest).div(beta)
        return choose(scaled.gt(threshold), x, soft)

    def logsigmoid(self) -> Self:
        """log(sigmoid(x)), without overflow."""
        x = self._floating()
        return x.neg().softplus(threshold=math.inf).neg()

    @in_float32
    def mish(self) -> Self:
        """x * tanh(softplus(x))."""
        return self.mul(self.softplus().tanh())

    def softsign(self) -> Self:
        """x / (1 + |x|)."""
        return self.div(self.abs().add(1))

    def hardtanh(self, min_val: float = -1.0, max_val: float = 1.0) -> Self:
        """x between min_val and max_val; its gradient at both is 0."""
        x, low, high = self._join(min_val, max_val)
        return choose(x.le(low), low, choose(x.ge(high), high, x))

    def hardsigmoid(self) -> Self:
        """(x + 3) / 6 between 0 and 1."""
        return self.add(3.0).relu6().div(6.0)

    @in_float32
    def hardswish(self) -> Self:
        """x * hardsigmoid(x)."""
        return self.mul(self.add(3.0).relu6()).div(6.0)
