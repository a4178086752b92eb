"""More optimizers: Adadelta, Adamax, NAdam, RAdam, LAMB, Lion and Muon. PyTorch's numbers where PyTorch has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernmill.ir import SettingError, ShapeError, show_shape

from ...methods.elementwise import where
from ...tensor import Tensor
from .base import Adam, Optimizer, Parameters, at_least_zero, decayed, numbered, one_minus_power

__all__ = ["LAMB", "Adadelta", "Adamax", "Lion", "Muon", "NAdam", "RAdam"]


class Adadelta(Optimizer):
    """Steps scaled by the ratio of running means: of the squares of steps, and of those of gradients.

    Source: Zeiler, ADADELTA: An Adaptive Learning Rate Method, 2012.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1.0, rho: float = 0.9, eps: float = 1e-6,
                 weight_decay: float = 0.0) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        at_least_zero("Adadelta", rho=rho, eps=eps, weight_decay=weight_decay)
        self.rho, self.eps, self.weight_decay = rho, eps, weight_decay
        self.square, self.moved = self._zeros(), self._zeros()

    def state(self) -> list[Tensor]:
        """The running means of the squares of gradients and of steps."""
        return [*self.square, *self.moved]

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(square=self.square, moved=self.moved)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now = parameter.detach()
        grad, rho = decayed(grad, now, self._decay(i)), self.rho
        self.square[i].assign(self.square[i].detach() * rho + grad * grad * (1 - rho))
        before = self.moved[i].detach()
        step = grad * (before + self.eps).sqrt() / (self.square[i].detach() + self.eps).sqrt()
        self.moved[i].assign(before * rho + step * step * (1 - rho))
        parameter.assign(now - step * self._rate(i))
        return [self.square[i], self.moved[i]]


class Adamax(Adam):
    """Adam with the largest gradient, decaying, instead of the root of the mean square.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, section 7.1.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 2e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, (first, second) = parameter.detach(), self.betas
        grad = decayed(grad, now, self._decay(i))
        self.mean[i].assign(self.mean[i].detach() * first + grad * (1 - first))
        self.square[i].assign((self.square[i].detach() * second).maximum(grad.abs() + self.eps))
        rate, _ = self._corrected(i)
        parameter.assign(now - rate * (self.mean[i].detach() / self.square[i].detach()))
        return [self.mean[i], self.square[i]]


class RAdam(Adam):
    """Adam whose first steps, while the variance of the gradients is unknown, are plain momentum.

    Source: Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, ICLR 2020.
    """

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, (first, second) = parameter.detach(), self.betas
        grad = decayed(grad, now, self._decay(i))
        self.mean[i].assign(self.mean[i].detach() * first + grad * (1 - first))
        self.square[i].assign(self.square[i].detach() * second + grad * grad * (1 - second))
        rate, root = self._corrected(i)
        steps, longest = self._steps_of(i), 2 / (1 - second) - 1
        rest = one_minus_power(second, steps)  # 1 - second ** steps
        length = longest - steps * 2 * (1 - rest) / rest
        scale = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)).sqrt()
        is_known = length > 5
        scale = where(is_known, scale, 1).cast(parameter.dtype)
        below = where(is_known.expand(grad.shape), (self.square[i].detach().sqrt() + self.eps) * root, 1)
        parameter.assign(now - rate * scale * (self.mean[i].detach() / below.cast(parameter.dtype)))
        return [self.mean[i], self.square[i]]


class NAdam(Adam):
    """Adam with Nesterov's momentum, which grows towards the first beta.

    Source: Dozat, Incorporating Nesterov Momentum into Adam, ICLR workshop 2016.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 2e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum_decay: float = 4e-3) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)
        at_least_zero("NAdam", momentum_decay=momentum_decay)
        self.momentum_decay = momentum_decay
        self.product = [Tensor([1.0], "float32", p.device).reshape(()) for p in self.parameters]

    def state(self) -> list[Tensor]:
        """As Adam, and the product of the momenta of each parameter so far."""
        return [*super().state(), *self.product]

    def _named_state(self) -> dict[str, Tensor]:
        return {**super()._named_state(), **numbered(product=self.product)}

    def _momentum(self, steps: Tensor) -> Tensor:
        return (1 - (steps * (self.momentum_decay * math.log(0.96))).exp() * 0.5) * self.betas[0]

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, (first, second) = parameter.detach(), self.betas
        grad = decayed(grad, now, self._decay(i))
        self.mean[i].assign(self.mean[i].detach() * first + grad * (1 - first))
        self.square[i].assign(self.square[i].detach() * second + grad * grad * (1 - second))
        steps = self._steps_of(i)
        momentum, following = self._momentum(steps), self._momentum(steps + 1)
        self.product[i].assign(self.product[i].detach() * momentum)
        product = self.product[i].detach()
        _, root = self._corrected(i)
        rate, kind = self._rate(i), parameter.dtype
        of_grad = rate * ((1 - momentum) / (1 - product)).cast(kind)
        of_mean = rate * (following / (1 - product * following)).cast(kind)
        below = self.square[i].detach().sqrt() * root + self.eps
        parameter.assign(now - (grad * of_grad + self.mean[i].detach() * of_mean) / below)
        return [self.mean[i], self.square[i], self.product[i]]


class LAMB(Adam):
    """AdamW with a step of each tensor that is as long, relative to the tensor, as in all others.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.01) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, (first, second) = parameter.detach(), self.betas
        self.mean[i].assign(self.mean[i].detach() * first + grad * (1 - first))
        self.square[i].assign(self.square[i].detach() * second + grad * grad * (1 - second))
        _, root = self._corrected(i)
        mean = self.mean[i].detach() / one_minus_power(first, self._steps_of(i)).cast(parameter.dtype)
        step = decayed(mean / (self.square[i].detach().sqrt() * root + self.eps), now, self._decay(i)).contiguous()
        length, moved = now.square().sum().sqrt(), step.square().sum().sqrt()
        trust = where((length > 0) & (moved > 0), length / moved, 1).cast(parameter.dtype)
        parameter.assign(now - step * (self._rate(i) * trust))
        return [self.mean[i], self.square[i]]


class Lion(Optimizer):
    """Steps of one length: the sign of momentum and gradient. Weight decay shrinks the parameters themselves.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        at_least_zero("Lion", weight_decay=weight_decay)
        self.betas, self.weight_decay = _pair("Lion", betas), weight_decay
        self.mean = self._zeros()

    def state(self) -> list[Tensor]:
        """The running means of gradients."""
        return self.mean

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(mean=self.mean)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, (first, second), mean = parameter.detach(), self.betas, self.mean[i].detach()
        step = decayed((mean * first + grad * (1 - first)).sign(), now, self._decay(i))
        self.mean[i].assign(mean * second + grad * (1 - second))
        parameter.assign(now - step * self._rate(i))
        return [self.mean[i]]


class Muon(Optimizer):
    """Momentum whose singular values are made equal, for matrices; train other parameters with AdamW.

    Five steps of a polynomial do it, in float32. With `adjust_lr="original"` a step of a matrix with more rows is
    scaled by the root of rows / columns. With "match_rms_adamw" it is scaled by 0.2 times the root of the larger size.

    Raises:
        ShapeError: a parameter is not a matrix.

    Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-3, weight_decay: float = 0.1,
                 momentum: float = 0.95, nesterov: bool = True, *, steps: int = 5,
                 adjust_lr: str = "original") -> None:  # fmt: skip
        super().__init__(parameters, lr)
        at_least_zero("Muon", weight_decay=weight_decay, momentum=momentum)
        if adjust_lr not in ("original", "match_rms_adamw"):
            raise SettingError(f"Muon: adjust_lr={adjust_lr!r}. Give 'original' or 'match_rms_adamw'.")
        for number, p in enumerate(self.parameters):
            if p.ndim != 2:
                raise ShapeError(
                    f"Muon: parameter {number} of shape {show_shape(p.uop.shape)} is not a matrix. Give it to AdamW."
                )
        self.weight_decay, self.momentum, self.nesterov = weight_decay, momentum, nesterov
        self.polynomial_steps, self.adjust_lr = steps, adjust_lr
        self.velocity = self._zeros()

    def state(self) -> list[Tensor]:
        """The velocities."""
        return self.velocity

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(velocity=self.velocity)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now, keep = parameter.detach(), self.momentum
        self.velocity[i].assign(self.velocity[i].detach() * keep + grad * (1 - keep))
        velocity = self.velocity[i].detach()
        step = grad * (1 - keep) + velocity * keep if self.nesterov else velocity
        step = _with_equal_singular_values(step, self.polynomial_steps).cast(parameter.dtype)
        rows, columns = parameter.shape
        is_original, rate, decay = self.adjust_lr == "original", self._rate(i), self._decay(i)
        scale = math.sqrt(max(1, rows / columns)) if is_original else 0.2 * math.sqrt(max(rows, columns))
        now = now * (1 - rate * decay) if decay else now
        parameter.assign(now - step * (rate * scale))
        return [self.velocity[i]]


_POLYNOMIAL = (3.4445, -4.775, 2.0315)  # a x + b x**3 + c x**5, of singular values. Source: Jordan et al., Muon, 2024


def _with_equal_singular_values(x: Tensor, steps: int) -> Tensor:
    a, b, c = _POLYNOMIAL
    is_tall = x.shape[0] > x.shape[1]
    x = (x.T if is_tall else x).float()
    x = x / x.square().sum().sqrt().maximum(1e-7)
    for _ in range(steps):
        product = (x @ x.T).contiguous()
        x = (x * a + (product * b + product @ product * c) @ x).contiguous()
    return x.T if is_tall else x


def _pair(name: str, betas: Any) -> tuple[float, float]:
    is_pair = isinstance(betas, Sequence) and len(betas) == 2
    if not is_pair or not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas):
        raise SettingError(f"{name}: betas={betas!r}. Give two numbers from 0 to below 1, such as (0.9, 0.99).")
    return betas[0], betas[1]
