"""Random numbers, from the generator of Tensor: a seed in the file is not another library's stream of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import DType, DTypeError, dtypes

from ...tensor import Tensor
from ..table import operator
from ..values import dtype_of, type_name


def _dtype(code: int | None, x: Tensor | None = None) -> DType:
    found = dtype_of(code) if code is not None else x.dtype if x is not None else dtypes.float32
    if found is None:
        raise DTypeError(f"random numbers of type {type_name(code or 0)} are not supported. Change the model.")
    return found


@operator("RandomUniform", is_random=True)
def random_uniform(
    *, shape: Sequence[int], dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    return Tensor.uniform(*shape, low=low, high=high).cast(_dtype(dtype))


@operator("RandomNormal", is_random=True)
def random_normal(
    *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return Tensor.normal(*shape, mean=mean, std=scale).cast(_dtype(dtype))


@operator("RandomUniformLike", is_random=True)
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    return Tensor.uniform(*x.shape, low=low, high=high).cast(_dtype(dtype, x))


@operator("RandomNormalLike", is_random=True)
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return Tensor.normal(*x.shape, mean=mean, std=scale).cast(_dtype(dtype, x))


@operator("Bernoulli", is_random=True)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return Tensor.rand(*x.shape).lt(x.float()).cast(_dtype(dtype, x))


@operator("Multinomial", is_random=True)
def multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    return x.softmax(-1).multinomial(sample_size, True).cast(_dtype(dtype))
