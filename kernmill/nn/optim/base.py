"""Optimizers: SGD, Adam, AdamW, RMSprop, Adagrad, and clipping of gradients. Their numbers are PyTorch's.

Everything a step changes lives in tensors made by the constructor, also the learning rate and the number of steps, and
a step computes parameters and state in one realize. A captured step therefore advances them at each replay.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

from kernmill.ir import DType, GradientError, IndexRangeError, SettingError, UOp, current_origin, dtypes, show_shape
from kernmill.runtime import is_to_be_recorded

from ...arguments import with_sentences, with_sentences_at_init
from ...captures import jit
from ...lazy import no_grad, tracked_tensors
from ...methods.elementwise import where
from ...methods.other_names import OPTIMIZER, no_attribute
from ...tensor import Tensor
from ..module import give_values, pending_updates

__all__ = [
    "SGD", "Adagrad", "Adam", "AdamW", "Group", "Optimizer", "Parameters", "RMSprop", "at_least_zero", "clip_grad_norm",
    "decayed", "numbered", "one_minus_power",
]  # fmt: skip

_ORDINARY = 3  # steps, the last of which is captured, so that a program of one step captures nothing
_MOST_CAPTURES = 3  # of an update; a program in which something else changes each time has no use for more

_ordinary: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
"""Steps outside of `jit` that moved every parameter, up to `_ORDINARY`. No attribute: captures of others look at it."""

Parameters = Iterable[Tensor | Mapping[str, Any]]  # all of them, or groups


class Group:
    """Some of an optimizer's parameters, with a separate rate. `weight_decay` None: the optimizer's."""

    def __init__(self, name: str, parameters: list[Tensor], lr: float | Tensor, weight_decay: float | None = None):
        self._name = name
        self._is_shared = False  # the tensor of the rate, with other groups
        if not isinstance(lr, Tensor):
            at_least_zero(name, lr=lr)
        self._first_rate: float | None = None  # before the first schedule (schedules.py)
        self._lr = _rate(name, lr) if isinstance(lr, Tensor) else Tensor([float(lr)], dtypes.float32).reshape(())
        if weight_decay is not None:
            at_least_zero(name, weight_decay=weight_decay)
        self.parameters, self.weight_decay = parameters, weight_decay

    @property
    def lr(self) -> Tensor:
        """The learning rate, a tensor of one element; give it a number to change it, also between replays."""
        return self._lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        if self._is_shared:
            self._lr, self._is_shared = self._lr.clone().realize(), False
        if isinstance(value, Tensor):
            self._lr.assign(_rate(self._name, value).reshape(self._lr.shape)).realize()
            return
        at_least_zero(self._name, lr=value)
        # in memory: a number would be part of the kernel, and each rate a different kernel
        self._lr.replace(Tensor([float(value)], self._lr.dtype, self._lr.device).reshape(self._lr.shape))


@contextmanager
def _updating(parameter: Tensor, number: int) -> Generator[None]:
    """Name the parameter in the origins of its update."""
    suffix, current_origin.suffix = current_origin.suffix, f", update of {parameter._path or f'parameter {number}'}"
    try:
        yield
    finally:
        current_origin.suffix = suffix


class Optimizer:
    """The base of optimizers. Subclasses create their state and define the step of one parameter.

    `parameters`: tensors; or groups of them, dicts with `params` and different options for these: `lr`, `weight_decay`.
    They are `optimizer.groups`, each with its `lr`.
    """

    weight_decay: float = 0.0
    _is_unscaled = False  # a GradScaler has divided the gradients (scaler.py)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_sentences_at_init(cls)

    def __init__(self, parameters: Parameters, lr: float | Tensor) -> None:
        name = type(self).__name__
        self.groups = _groups(name, parameters, lr)
        self.parameters = _checked(name, [p for group in self.groups for p in group.parameters])
        self._group = [group for group in self.groups for _ in group.parameters]  # of each parameter
        self._once: dict[Any, Any] = {}  # during a step: values that several parameters need
        self.parameters[0].realize(*self.parameters[1:], *self._rates().values())

    @property
    def lr(self) -> Tensor:
        """The learning rate, a tensor of one element; give it a number to change it, also between replays.

        Raises:
            SettingError: there are several groups.
        """
        return self._only().lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        self._only().lr = value

    def _only(self) -> Group:
        if len(self.groups) > 1:
            raise SettingError(
                f"{type(self).__name__}.lr: there are {len(self.groups)} groups, each with its own rate. Write "
                "optimizer.groups[0].lr, and so on."
            )
        return self.groups[0]

    if not TYPE_CHECKING:  # to a checker it would be every name that there could be

        def __getattr__(self, name: str) -> Any:
            """Raise the error for an unknown attribute, with the replacement of another library's name."""
            raise no_attribute(self, name, OPTIMIZER)

    @with_sentences
    def zero_grad(self) -> None:
        """Clear the gradients, so that backward() starts at zero."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, *also: Tensor, only_if: Tensor | None = None) -> None:
        """Update each parameter that has a gradient.

        The loss of backward() is computed together with the step, and so is `also`. So are intermediates of the loss
        and of the gradients, such as the output of the model and the norm of clipping. Pass other tensors that you want
        to read: computed later, they would need the old parameters. Where `only_if`, a bool tensor, is False, nothing
        changes.

        Raises:
            GradientError: no parameter has a gradient.
        """
        moving = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not moving:
            raise GradientError(
                f"{type(self).__name__}.step: no parameter has a gradient. Call backward() on the loss first."
            )
        roots = {id(root): root for i in moving for ref in self.parameters[i]._roots if (root := ref()) is not None}
        grads = [grad for i in moving if (grad := self.parameters[i].grad) is not None]
        along = _on_the_way(self.parameters, [*roots.values(), *grads])
        for parameter in self.parameters:
            parameter._roots = ()
        everything = [*grads, *pending_updates(), *along, *roots.values(), *also]
        is_captured = only_if is None and self._is_repeated(moving)
        if is_captured:
            try:
                everything[0].realize(*everything[1:])
            except IndexRangeError:  # is raised again, after the same writes as in an ordinary or captured step
                is_captured = False
        if is_captured:
            self._captured([grad.detach() for grad in grads])
        else:
            everything = [*self._updated(moving, grads, only_if), *everything]
            everything[0].realize(*everything[1:])
        for root in roots.values():
            root._let_go(self.parameters)

    def _is_repeated(self, moving: Sequence[int]) -> bool:
        """True for a step like several before it, outside of `jit`: its update is captured, since a graph of every
        parameter takes longer to build than to compute. Subclasses from elsewhere may do more than compute."""
        if (
            not type(self).__module__.startswith(str(__package__))
            or is_to_be_recorded()
            or len(moving) < len(self.parameters)
        ):
            return False
        count = _ordinary[self] = min(_ordinary.get(self, 0) + 1, _ORDINARY)
        return count == _ORDINARY and self._captured.cache_info().captures <= _MOST_CAPTURES

    @jit
    def _captured(self, grads: list[Tensor]) -> None:
        """Update all parameters."""
        self._updated(range(len(grads)), grads)

    def _updated(self, moving: Sequence[int], grads: Sequence[Tensor], only_if: Tensor | None = None) -> list[Tensor]:
        """Assign these parameters their next values; return all tensors that change."""
        self._once.clear()
        before = [] if only_if is None else [(t, Tensor._make(t.uop, t._device)) for t in self._changing(moving)]
        with no_grad():
            changed = self._before(moving)
            for i, grad in zip(moving, grads, strict=True):
                with _updating(self.parameters[i], i):
                    changed += self._move(i, self.parameters[i], grad.detach())
            for tensor, old in before:
                assert only_if is not None
                flag = only_if.to(tensor.device).expand(tensor.shape)
                tensor.assign(where(flag, tensor.detach(), old))
        self._once.clear()
        return [*changed, *(self.parameters[i] for i in moving)]

    def _changing(self, moving: Sequence[int]) -> list[Tensor]:
        """The tensors that a step changes."""
        return [*(self.parameters[i] for i in moving), *self.state()]

    def state(self) -> list[Tensor]:
        """Return every tensor that a step changes in addition to the parameters."""
        return []

    def state_dict(self) -> dict[str, Tensor]:
        """Return the learning rate and the state that steps change, by name, to continue training.

        They are the optimizer's own tensors, as a module's are: later steps change them. Momentum, betas and the like
        are arguments of the constructor, and not included.
        """
        return {**self._rates(), **self._named_state()}

    @with_sentences
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of an optimizer of the same class, with the same parameters in the same order.

        Values are cast to the dtypes and moved to the devices here. Captured steps use the new state too. Nothing
        changes if anything does not fit.

        Raises:
            FormatError: names that are missing or unknown, shapes that differ.
        """
        own = self.state_dict()
        given = dict(state)
        for name, own_rate in self._rates().items():
            if name in given and math.prod((rate := Tensor(given[name])).shape) == 1:
                given[name] = rate.reshape(own_rate.shape)  # a rate may be of shape () or (1,)
        remedy = "Make the optimizer with the options of the saved one, and the same parameters in the same order."
        give_values(self, own, given, remedy)

    def _named_state(self) -> dict[str, Tensor]:
        """Return the tensors of `state` by name; the number of steps once, for any number of devices."""
        return {}

    def _before(self, moving: Sequence[int]) -> list[Tensor]:
        """Return updates that a step makes once, for all parameters."""
        return []

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        """Assign the parameter its next value; gives the state that changed."""
        raise NotImplementedError

    def _rates(self) -> dict[str, Tensor]:
        """The rates by name."""
        return {f"lr.{i}" if len(self.groups) > 1 else "lr": group.lr for i, group in enumerate(self.groups)}

    def _rate(self, i: int) -> Tensor:
        parameter = self.parameters[i]
        return self._group[i].lr.reshape(()).cast(parameter.dtype).to(parameter.device)

    def _decay(self, i: int) -> float:
        own = self._group[i].weight_decay
        return self.weight_decay if own is None else own

    def _zeros(self) -> list[Tensor]:
        """Return a tensor of zeros for each parameter, in a separate buffer."""
        return [zeros(p.shape, p.dtype, p.device) for p in self.parameters]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, Nesterov momentum, and weight decay (added to the gradient)."""

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-3, momentum: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        at_least_zero("SGD", momentum=momentum, weight_decay=weight_decay)
        if nesterov and not momentum:
            raise SettingError("SGD: nesterov=True without momentum. Give a momentum, such as 0.9.")
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        self.velocity = self._zeros() if momentum else []

    def state(self) -> list[Tensor]:
        """The velocities."""
        return self.velocity

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(velocity=self.velocity)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now = parameter.detach()
        grad = decayed(grad, now, self._decay(i))
        changed = []
        if self.momentum:
            velocity = self.velocity[i].detach() * self.momentum + grad
            self.velocity[i].assign(velocity)
            changed.append(self.velocity[i])
            grad = grad + velocity * self.momentum if self.nesterov else velocity
        parameter.assign(now - grad * self._rate(i))
        return changed


class Adam(Optimizer):
    """Adam; weight decay is added to the gradient.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
    """

    is_decoupled = False

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        name = type(self).__name__
        at_least_zero(name, eps=eps, weight_decay=weight_decay)
        is_pair = isinstance(betas, Collection) and len(betas) == 2
        if not is_pair or not all(isinstance(beta, (int, float, Real)) and 0 <= beta < 1 for beta in betas):
            raise SettingError(f"{name}: betas={betas!r}. Give two numbers from 0 to below 1, such as (0.9, 0.999).")
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.mean, self.square = self._zeros(), self._zeros()
        self.steps = {
            device: zeros((1,), dtypes.int32, device) for device in dict.fromkeys(p.device for p in self.parameters)
        }
        self.missed: Tensor | None = None  # of each parameter: the number of steps without a gradient, if there are any
        self._late: frozenset[int] = frozenset()  # parameters that missed some

    def state(self) -> list[Tensor]:
        """Return the number of steps, those that parameters missed, the running means of gradients and of their
        squares."""
        return [*self.steps.values(), *self._own_missed().values(), *self.mean, *self.square]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `Optimizer.load_state_dict`; each device counts its steps."""
        if isinstance(state, Mapping) and ("missed" in state or self.missed is not None):
            self.missed = self._counts() if self.missed is None else self.missed
            state = {"missed": self._counts(), **state}
        super().load_state_dict(state)
        first, *others = self.steps.values()
        for steps in others:
            steps.assign(first.to(steps.device)).realize()
        if self.missed is not None:
            self._late = frozenset(i for i, count in enumerate(self.missed.tolist()) if count)

    def _counts(self) -> Tensor:
        return zeros((len(self.parameters),), dtypes.int32, self.parameters[0].device)

    def _own_missed(self) -> dict[str, Tensor]:
        return {} if self.missed is None else {"missed": self.missed}

    def _named_state(self) -> dict[str, Tensor]:
        steps = next(iter(self.steps.values()))
        return {"steps": steps, **self._own_missed(), **numbered(mean=self.mean, square=self.square)}

    def _before(self, moving: Sequence[int]) -> list[Tensor]:
        for steps in self.steps.values():
            steps.assign(steps.detach() + 1)
        changed = [*self.steps.values()]
        if still := {*range(len(self.parameters))}.difference(moving):
            self.missed = self._counts() if self.missed is None else self.missed
            self._late |= still
            more = Tensor([int(i in still) for i in range(len(self.parameters))], dtypes.int32, self.missed.device)
            changed.append(self.missed.assign(self.missed.detach() + more))
        return changed

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now = parameter.detach()
        if self.is_decoupled:
            now = now * (1 - self._rate(i) * self._decay(i)) if self._decay(i) else now
        else:
            grad = decayed(grad, now, self._decay(i))
        first, second = self.betas
        self.mean[i].assign(self.mean[i].detach() * first + grad * (1 - first))
        self.square[i].assign(self.square[i].detach() * second + grad * grad * (1 - second))
        mean, square = self.mean[i].detach(), self.square[i].detach()  # where they were put: one kernel each, no copy
        rate, root = self._corrected(i)
        parameter.assign(now - rate * (mean / (square.sqrt() * root + self.eps)))
        return [self.mean[i], self.square[i]]

    def _steps_of(self, i: int) -> Tensor:
        """The number of steps of a parameter, this one included, as float32."""
        parameter = self.parameters[i]
        steps = self.steps[parameter.device].detach().reshape(())
        if i in self._late and self.missed is not None:  # its own number of steps
            steps = steps - self.missed.detach()[i].to(parameter.device)
        return steps.float()

    def _corrected(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the rate divided by the first correction, and the root of the second's inverse: no element needs a
        division. Both are computed once for all parameters of a group, dtype and device that took every step."""
        parameter, is_late = self.parameters[i], i in self._late
        key = id(self._group[i]), parameter.dtype, parameter.device, i if is_late else -1
        if key not in self._once:
            first, second = self.betas
            steps = self._steps_of(i)
            rate = self._rate(i) / one_minus_power(first, steps).cast(parameter.dtype)
            self._once[key] = rate, one_minus_power(second, steps).rsqrt().cast(parameter.dtype)
        found: tuple[Tensor, Tensor] = self._once[key]
        return found


class AdamW(Adam):
    """Adam with weight decay that shrinks the parameters themselves.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.
    """

    is_decoupled = True

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)


class RMSprop(Optimizer):
    """The gradient divided by the root of the running mean of its square; weight decay is added to the gradient.

    Source: Tieleman and Hinton, Lecture 6.5, COURSERA: Neural Networks for Machine Learning, 2012.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0.0, momentum: float = 0.0) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        at_least_zero("RMSprop", alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        self.alpha, self.eps, self.weight_decay, self.momentum = alpha, eps, weight_decay, momentum
        self.square, self.velocity = self._zeros(), self._zeros() if momentum else []

    def state(self) -> list[Tensor]:
        """The running means of the squares of gradients, and the velocities."""
        return [*self.square, *self.velocity]

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(square=self.square, velocity=self.velocity)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now = parameter.detach()
        grad = decayed(grad, now, self._decay(i))
        changed = [self.square[i].assign(self.square[i].detach() * self.alpha + grad * grad * (1 - self.alpha))]
        move = grad / (self.square[i].detach().sqrt() + self.eps)
        if self.momentum:
            changed.append(self.velocity[i].assign(self.velocity[i].detach() * self.momentum + move))
            move = self.velocity[i].detach()
        parameter.assign(now - move * self._rate(i))
        return changed


class Adagrad(Optimizer):
    """The gradient divided by the root of the sum of its squares so far; weight decay is added to the gradient.

    Source: Duchi, Hazan and Singer, Adaptive Subgradient Methods, JMLR 12, 2011.
    """

    def __init__(self, parameters: Parameters, lr: float | Tensor = 1e-2, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> None:  # fmt: skip
        super().__init__(parameters, lr)
        start = initial_accumulator_value
        at_least_zero("Adagrad", weight_decay=weight_decay, initial_accumulator_value=start, eps=eps)
        self.weight_decay, self.eps = weight_decay, eps
        self.square = self._zeros()
        if start:
            self.square[0].realize(*(square.assign(start) for square in self.square))

    def state(self) -> list[Tensor]:
        """Return the sums of the squares of gradients."""
        return self.square

    def _named_state(self) -> dict[str, Tensor]:
        return numbered(square=self.square)

    def _move(self, i: int, parameter: Tensor, grad: Tensor) -> list[Tensor]:
        now = parameter.detach()
        grad = decayed(grad, now, self._decay(i))
        self.square[i].assign(self.square[i].detach() + grad * grad)
        parameter.assign(now - self._rate(i) * (grad / (self.square[i].detach().sqrt() + self.eps)))
        return [self.square[i]]


def _on_the_way(parameters: Iterable[Tensor], roots: Iterable[Tensor]) -> list[Tensor]:
    """Tensors that are not computed, on the way from parameters to roots."""
    found, seen = {parameter.uop for parameter in parameters}, set[UOp]()
    for root in roots:
        for node in root.uop.toposort(stop=lambda u: u.storage is not None or u in found or u in seen):
            seen.add(node)
            if not found.isdisjoint(node.src):
                found.add(node)
    return [t for _, t in tracked_tensors() if t.uop in found and isinstance(t, Tensor) and not t.is_realized]


def decayed(grad: Tensor, now: Tensor, weight_decay: float) -> Tensor:
    """The gradient with that of a penalty on large parameters."""
    return grad + now * weight_decay if weight_decay else grad


@with_sentences
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale the gradients together so that the norm of all of them is at most max_norm; returns the norm before.

    Raises:
        GradientError: no parameter has a gradient.
    """
    moving = [p for p in parameters if p.grad is not None]
    if not moving:
        raise GradientError("clip_grad_norm: no parameter has a gradient. Call backward() on the loss first.")
    at_least_zero("clip_grad_norm", max_norm=max_norm)
    with no_grad():
        squares = [grad.detach().square().sum().reshape(()) for p in moving if (grad := p.grad) is not None]
        total = squares[0]
        for square in squares[1:]:
            total = total + square.to(total.device)
        norm = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for p in moving:
            if p.grad is not None:
                p.grad = p.grad.detach() * factor.cast(p.grad.dtype).to(p.grad.device)
    return norm


def _rate(name: str, lr: Tensor) -> Tensor:
    """Check a rate that is a tensor.

    Raises:
        SettingError: it does not have exactly one element, or is not a float.
    """
    if not lr.dtype.is_float:
        raise SettingError(f"{name}: lr is {lr.dtype.name}. Give a number, or a tensor of floats.")
    if lr.numel() != 1:
        raise SettingError(
            f"{name}: lr has shape {show_shape(lr.uop.shape)}. Give one number, or make a group for each rate."
        )
    return lr


def numbered(**lists: Sequence[Tensor]) -> dict[str, Tensor]:
    """`name.0`, `name.1`, ...: one for each parameter."""
    return {f"{name}.{i}": tensor for name, tensors in lists.items() for i, tensor in enumerate(tensors)}


def one_minus_power(beta: float, steps: Tensor) -> Tensor:
    """1 - beta ** steps, exact to float32 also where beta ** steps is near 1."""
    return -(steps * math.log(beta)).expm1() if beta else steps * 0 + 1


def zeros(shape: Sequence[int], dtype: DType, device: str) -> Tensor:
    import numpy as np

    return Tensor(np.zeros(tuple(shape), np.float32), dtype, device)


def _groups(name: str, parameters: Parameters, lr: float | Tensor) -> list[Group]:
    """The groups; parameters without any are one."""
    if not isinstance(parameters, Iterable):
        raise SettingError(f"{name}: parameters={parameters!r}. Give model.parameters(), or a list of tensors.")
    given: list[Any] = list(parameters)
    if not any(isinstance(group, Mapping) for group in given):
        return [Group(name, given, lr)]
    groups = []
    for i, group in enumerate(given):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), Iterable):
            raise SettingError(f"{name}: parameter group {i} must be a dict with a list of tensors under 'params'.")
        unknown = [str(key) for key in group if key not in ("params", "lr", "weight_decay")]
        if unknown:
            raise SettingError(
                f"{name}: group {i} has {', '.join(unknown)}. A group has params, lr and weight_decay. Where other "
                "options differ, make two optimizers."
            )
        own = group.get("lr", lr), group.get("weight_decay")
        tensors = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        groups.append(Group(f"{name}: group {i}", tensors, *own))
    for group in groups:
        group._is_shared = [other.lr is group.lr for other in groups].count(True) > 1
    return groups


def _checked(name: str, found: list[Tensor]) -> list[Tensor]:
    """The parameters, distinct tensors that want a gradient."""
    if not found:
        raise SettingError(
            f"{name}: no parameters. Give model.parameters(), or a list of tensors with requires_grad=True."
        )
    for i, p in enumerate(found):
        if not isinstance(p, Tensor):
            raise SettingError(
                f"{name}: parameter {i} is a {type(p).__name__}. Give tensors, such as model.parameters()."
            )
        if not p.requires_grad or not p._is_leaf():
            raise GradientError(
                f"{name}: parameter {i} of shape {p.shape} is not a leaf with requires_grad. "
                "Make it with requires_grad=True."
            )
    if len({id(p) for p in found}) != len(found):
        raise SettingError(f"{name}: a parameter is given twice. Give each once.")
    return found


def at_least_zero(name: str, **values: float) -> None:
    """Raise SettingError for a value that is not a number, or below 0."""
    for word, value in values.items():
        if not isinstance(value, (int, float, Real)) or not 0 <= value < math.inf:
            raise SettingError(f"{name}: {word}={value!r}. Give a number, 0 or more.")
