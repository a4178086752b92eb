"""Mixed precision: in a block of `autocast`, products take half types and sums of many terms take float32.

Methods of Tensor that are listed here cast their tensors first. What they call runs outside of the block.
Tests: tests/kernmill/test_autocasting.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from kernmill.ir import DType, DTypeError, DTypeLike, as_dtype, dtypes

from .lazy import Lazy

__all__ = ["autocast", "autocast_calls", "autocast_state"]

_dtype: ContextVar[DType | None] = ContextVar("autocast", default=None)
autocast_state = _dtype.get

_HALF = frozenset({"matmul", "mm", "bmm", "dot", "__matmul__", "__rmatmul__", "linear", "outer", "tensordot", "conv2d",
                   "conv_transpose2d", "scaled_dot_product_attention"})  # fmt: skip
_SINGLE = frozenset({
    "softmax", "log_softmax", "logsumexp", "exp", "log", "log2", "log1p", "pow", "sum", "mean", "prod", "cumsum",
    "cumprod", "var", "std", "norm", "cosine_similarity", "cross_entropy", "nll_loss", "mse_loss", "l1_loss",
    "huber_loss", "smooth_l1_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits",
})  # fmt: skip


@contextmanager
def autocast(dtype: DTypeLike = dtypes.bfloat16, enabled: bool = True) -> Generator[None]:
    """In this block, or in a function it decorates, matrix products and convolutions take half types.

    float32 operands of `matmul`, `linear`, `outer`, `tensordot`, `conv2d`, `conv_transpose2d` and attention are cast to
    `dtype`, and so are their results; they add up in float32. Half operands of softmax, losses, exponentials,
    logarithms, powers, norms and sums are cast to float32. Parameters and their gradients stay float32. With
    `enabled=False` an outer block has no effect inside.

    Raises:
        DTypeError: not float16 or bfloat16.
    """
    found = as_dtype(dtype)
    if found not in (dtypes.float16, dtypes.bfloat16):
        raise DTypeError(f"autocast: {found.name}. Give dtypes.bfloat16 or dtypes.float16.")
    token = _dtype.set(found if enabled else None)
    try:
        yield
    finally:
        _dtype.reset(token)


Class = TypeVar("Class", bound=type)


def autocast_calls(cls: Class) -> Class:
    """Class decorator: the methods listed above look whether they are called in a block of `autocast`."""
    for base in cls.__mro__:
        for name in (_HALF | _SINGLE).intersection(vars(base)):
            setattr(base, name, _casting(vars(base)[name], to_half=name in _HALF))
    return cls


def _casting(method: Callable[..., Any], *, to_half: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def cast_first(*args: Any, **kwargs: Any) -> Any:
        dtype = autocast_state()
        if dtype is None:
            return method(*args, **kwargs)
        token = _dtype.set(None)
        try:
            target = dtype if to_half else dtypes.float32
            given = [_as_target(value, target) for value in args]
            return method(*given, **{name: _as_target(value, target) for name, value in kwargs.items()})
        finally:
            _dtype.reset(token)

    inner = getattr(method, "deferring", None)
    if inner is not None:

        def deferring(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs) if autocast_state() is None else cast_first(*args, **kwargs)

        cast_first.deferring = deferring  # type: ignore[attr-defined]
    return cast_first


def _as_target(value: Any, target: DType) -> Any:
    """A tensor of a half type or of float32 in the dtype of a call; all else unchanged."""
    is_cast = isinstance(value, Lazy) and value.dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16)
    return value.cast(target) if is_cast else value
