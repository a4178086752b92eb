"""Reductions: axes are an attribute in early versions, an input in later ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernmill.ir import dtypes

from ...tensor import Tensor
from ..table import operator
from ..values import Host

_Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return x.sum(axes, keep, dtype=x.dtype)


def _log(x: Tensor) -> Tensor:
    return x.log() if x.dtype.is_float else x.double().log().cast(x.dtype)


def _root(x: Tensor) -> Tensor:
    return x.sqrt() if x.dtype.is_float else x.double().sqrt().cast(x.dtype)


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return x.mean(axes, keep) if x.dtype.is_float else x.double().mean(axes, keep).cast(x.dtype)


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if not math.prod(x.shape[a] for a in axes):
        return _sum(x, axes, keep).log()
    return x.logsumexp(axes, keep) if x.dtype.is_float else x.double().logsumexp(axes, keep).cast(x.dtype)


def _bound(method: str, empty: str) -> _Reduce:
    def run(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if x.dtype.is_bool:
            return x.any(axes, keep) if method == "max" else x.all(axes, keep)
        if not math.prod(x.shape[a] for a in axes):  # of nothing: the least or the greatest value
            value = (-math.inf if method == "max" else math.inf) if x.dtype.is_float else getattr(x.dtype, empty)
            return _sum(x, axes, keep) + x._own(value)
        return x.max(axes, keep) if method == "max" else x.min(axes, keep)

    return run


def _register(name: str, function: _Reduce) -> None:
    @operator(name)
    def run(
        x: Tensor, axes_in: Host = None, *, axes: Sequence[int] | None = None, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:  # fmt: skip
        given = [int(a) for a in (axes_in.ravel() if axes_in is not None else axes or ())]
        if not given and noop_with_empty_axes:
            return function(x.unsqueeze(-1), (x.ndim,), False)
        found = tuple(sorted(a + x.ndim if a < 0 else a for a in given)) or tuple(range(x.ndim))
        if not x.ndim:
            return function(x.reshape(1), (0,), False)
        return function(x, found, bool(keepdims))


for _name, _function in {
    "ReduceSum": _sum, "ReduceMean": _mean, "ReduceProd": lambda x, a, k: x.prod(a, k, dtype=x.dtype),
    "ReduceMax": _bound("max", "min"), "ReduceMin": _bound("min", "max"),
    "ReduceL1": lambda x, a, k: _sum(x.abs(), a, k), "ReduceL2": lambda x, a, k: _root(_sum(x * x, a, k)),
    "ReduceLogSum": lambda x, a, k: _log(_sum(x, a, k)), "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, a, k: _sum(x * x, a, k),
}.items():  # fmt: skip
    _register(_name, _function)


@operator("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _index_along(x, axis, bool(keepdims), bool(select_last_index), Tensor.argmax)


@operator("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _index_along(x, axis, bool(keepdims), bool(select_last_index), Tensor.argmin)


def _index_along(x: Tensor, axis: int, keep: bool, last: bool, find: Callable[..., Tensor]) -> Tensor:
    if not last:
        return find(x, axis, keep).cast(dtypes.int64)
    return (x.shape[axis] - 1 - find(x.flip(axis), axis, keep)).cast(dtypes.int64)
