"""Tensor methods: loss functions, under PyTorch's names. `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from typing import Self

from kernmill.ir import DTypeError, SettingError, ShapeError, show_shape

from .attention import Attention
from .elementwise import choose
from .functions import in_float32

__all__ = ["Losses"]


def _positive(call: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise SettingError(f"{call}: {name}={value}. Give a number above 0.")


class Losses(Attention):
    """Losses of predictions (self) against targets."""

    def _reduced(self, reduction: str) -> Self:
        if reduction not in ("mean", "sum", "none"):
            raise SettingError(f"reduction={reduction!r}: must be 'mean', 'sum' or 'none'.")
        return self.mean() if reduction == "mean" else self.sum() if reduction == "sum" else self

    @in_float32
    def mse_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The square of the difference."""
        return self._floating().sub(target).square()._reduced(reduction)

    @in_float32
    def l1_loss(self, target: Self, reduction: str = "mean") -> Self:
        """The size of the difference."""
        return self._floating().sub(target).abs()._reduced(reduction)

    @in_float32
    def huber_loss(self, target: Self, reduction: str = "mean", delta: float = 1.0) -> Self:
        """Half the square of the difference up to delta, linear beyond."""
        _positive("huber_loss", delta=delta)
        size = self._floating().sub(target).abs()
        return choose(size.le(delta), size.square().mul(0.5), size.sub(0.5 * delta).mul(delta))._reduced(reduction)

    @in_float32
    def smooth_l1_loss(self, target: Self, reduction: str = "mean", beta: float = 1.0) -> Self:
        """The Huber loss divided by its delta; with 0 the size of the difference."""
        if beta == 0:
            return self.l1_loss(target, reduction)
        return self.huber_loss(target, reduction, beta).div(beta)

    @in_float32
    def binary_cross_entropy(self, target: Self, weight: Self | None = None, reduction: str = "mean") -> Self:
        """-(y log p + (1-y) log(1-p)) of probabilities p (self); logarithms are clamped at -100, as in PyTorch."""
        p = self._floating()
        yes, no = p._cut_log(), p.sub(1.0, reverse=True)._cut_log()
        loss = target.mul(yes).add(target.sub(1.0, reverse=True).mul(no)).neg()
        return (loss if weight is None else loss.mul(weight))._reduced(reduction)

    def _cut_log(self) -> Self:
        """Return log(self), clamped at -100; its gradient at 0 is 0."""
        is_zero = self.eq(0.0)
        return choose(is_zero, self._filled(-100.0), choose(is_zero, self._filled(1.0), self).log().clamp(min=-100.0))

    @in_float32
    def binary_cross_entropy_with_logits(
        self, target: Self, weight: Self | None = None, reduction: str = "mean", pos_weight: Self | None = None
    ) -> Self:
        """binary_cross_entropy of sigmoid(self), without overflow."""
        log_p, log_q = self.logsigmoid(), self.neg().logsigmoid()
        positive = target.mul(log_p) if pos_weight is None else target.mul(log_p).mul(pos_weight)
        loss = positive.add(target.sub(1.0, reverse=True).mul(log_q)).neg()
        return (loss if weight is None else loss.mul(weight))._reduced(reduction)

    @in_float32
    def kl_div(self, target: Self, reduction: str = "mean", log_target: bool = False) -> Self:
        """target * (log(target) - self), self being log-probabilities; 0 where the target is 0. Also "batchmean"."""
        if log_target:
            loss = target.exp().mul(target.sub(self))
        else:
            is_positive = target.gt(0)
            safe = choose(is_positive, target, target._filled(1))
            loss = target.mul(safe.log().sub(self))
        if reduction == "batchmean":
            return loss.sum().div(self.node_shape[0] if self.ndim else 1)
        return loss._reduced(reduction)

    @in_float32
    def nll_loss(
        self, target: Self, weight: Self | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> Self:
        """Return the negative log-probability of the target classes; self (batch, classes, ..) has log-probabilities.

        Targets equal to ignore_index are ignored. Any other target outside 0..classes-1 fails when realized.

        Raises:
            ShapeError: target's shape is not that of self without the class axis.
            DTypeError: the target is not an int tensor.
        """
        return self._nll(target, weight, ignore_index, reduction, "nll_loss")

    def _nll(self, target: Self, weight: Self | None, ignore_index: int, reduction: str, call: str) -> Self:
        axis = self._class_axis(target, call)
        kept = target.ne(ignore_index)
        classes = choose(kept, target, target._filled(0))
        hit = self._hit(classes, axis, call)
        picked = choose(hit, self, self._filled(0)).sum(axis)
        factor = kept.cast(self.dtype)
        if weight is not None:
            shaped = self._for_classes(weight, axis, call)
            factor = factor.mul(choose(hit, shaped, shaped._filled(0)).sum(axis))
        return picked.neg()._weighted(factor, kept, reduction)

    def _weighted(self, factor: Self, kept: Self, reduction: str) -> Self:
        loss = choose(kept, self.mul(factor), self._filled(0))
        return loss.sum().div(factor.sum()) if reduction == "mean" else loss._reduced(reduction)

    def _class_axis(self, target: Self, call: str) -> int:
        axis = 1 if self.ndim > 1 else 0
        if not target.dtype.is_int:
            raise DTypeError(f"{call}: a target of dtype {target.dtype.name}. Class indices must be ints.")
        if not self.ndim or target.uop.shape != (*self.uop.shape[:axis], *self.uop.shape[axis + 1 :]):
            raise ShapeError(
                f"{call}: predictions {show_shape(self.uop.shape)}, target {show_shape(target.uop.shape)}: the "
                "target must have the shape of the predictions without their class axis. Reshape one of them."
            )
        return axis

    def _for_classes(self, weight: Self, axis: int, call: str) -> Self:
        """One weight a class, along the axis of the classes."""
        count = self.node_shape[axis] if self.ndim else 1
        if weight.uop.shape != (count,):
            raise ShapeError(
                f"{call}: predictions {show_shape(self.uop.shape)}, weight {show_shape(weight.uop.shape)}: "
                "must be one weight per class. Reshape it."
            )
        return weight.reshape([count if a == axis else 1 for a in range(self.ndim)])

    def _hit(self, classes: Self, axis: int, call: str) -> Self:
        """Return True at the index of each class along the axis; an invalid class fails when realized."""
        size = self.node_shape[axis]
        positions = self._positions(axis).reshape([size if a == axis else 1 for a in range(self.ndim)])
        return classes._classes(call, self.uop.shape[axis], axis).unsqueeze(axis).eq(positions)

    def sparse_categorical_crossentropy(
        self, target: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """The cross entropy of softmax(self) over the last axis against classes, as in tinygrad."""
        x = self.movedim(-1, 1) if self.ndim > 1 else self
        return x.cross_entropy(target, None, ignore_index, reduction, label_smoothing)

    @in_float32
    def cross_entropy(
        self,
        target: Self,
        weight: Self | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Self:
        """The cross entropy of softmax(self) over axis 1 (0 of a vector) against classes or probabilities.

        `label_smoothing` moves that share of the weight from the target to all classes evenly.
        """
        axis = 1 if self.ndim > 1 else 0
        log_p = self.log_softmax(axis)
        count = self.node_shape[axis] if self.ndim else 1
        shaped = None if weight is None else self._for_classes(weight, axis, "cross_entropy")
        if not 0 <= label_smoothing <= 1:
            raise SettingError(f"cross_entropy: label_smoothing={label_smoothing}. Give a number from 0 to 1.")
        if target.uop.shape == self.uop.shape and target.dtype.is_float:
            smooth = target.mul(1 - label_smoothing).add(label_smoothing / count)
            loss = (log_p if shaped is None else log_p.mul(shaped)).mul(smooth).sum(axis).neg()
            return loss.mean() if reduction == "mean" else loss._reduced(reduction)
        exact = log_p._nll(target, weight, ignore_index, reduction, "cross_entropy")
        if not label_smoothing:
            return exact
        kept = target.ne(ignore_index)
        even = (log_p if shaped is None else log_p.mul(shaped)).sum(axis).neg().div(count)
        even = choose(kept, even, even._filled(0))
        if reduction == "mean":
            factor = kept.cast(self.dtype)
            if shaped is not None:
                hit = self._hit(choose(kept, target, target._filled(0)), axis, "cross_entropy")
                factor = factor.mul(choose(hit, shaped, shaped._filled(0)).sum(axis))
            even = even.sum().div(factor.sum())
        else:
            even = even._reduced(reduction)
        return exact.mul(1 - label_smoothing).add(even.mul(label_smoothing))
