"""Comparing with NumPy and, for gradients, with PyTorch; tests of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor

Array = np.ndarray[Any, np.dtype[Any]]


def only_on(device: str, **settings: str) -> Any:
    """The fixture `on_device` of a file whose tests run once, on this device unless they say otherwise."""

    @pytest.fixture(autouse=True, name="on_device")
    def chosen() -> Iterator[None]:
        with Context(DEVICE=device, **settings):
            yield

    return chosen


def values(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """float32 numbers that are the same in each run."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def close(ours: Any, theirs: Any, rtol: float = 2e-6, atol: float = 2e-6) -> None:
    """Equal shapes and values that are near; nan equals nan."""
    own = ours.numpy() if isinstance(ours, Tensor) else np.asarray(ours)
    want = np.asarray(theirs)
    assert own.shape == want.shape
    np.testing.assert_allclose(own, want, rtol=rtol, atol=atol)


def same(ours: Tensor, theirs: Any) -> None:
    """Equal shapes, dtypes and values; nan equals nan, -0 is not 0."""
    own, want = ours.numpy(), np.asarray(theirs)
    assert (own.shape, own.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(own, want)
    if want.dtype.kind == "f":
        np.testing.assert_array_equal(
            np.signbit(own), np.signbit(want) if not np.isnan(want).any() else np.signbit(own)
        )


def with_torch(
    ours: Callable[..., Tensor], theirs: Callable[..., Any], inputs: Sequence[Array], tolerance: float = 5e-6
) -> None:
    """Values and the gradients of all inputs, weighted so that no two outputs look alike, as in PyTorch."""
    torch = pytest.importorskip("torch")
    own = [Tensor(x, requires_grad=True) for x in inputs]
    ref = [torch.tensor(x, requires_grad=True) for x in inputs]
    got, want = ours(*own), theirs(*ref)
    close(got.detach(), want.detach().numpy(), tolerance, tolerance)
    weight = values(*want.shape, seed=99) if want.ndim else np.float32(1.5)
    (got * Tensor(weight)).sum().backward()
    (want * torch.tensor(weight)).sum().backward()
    for a, b in zip(own, ref, strict=True):
        assert a.grad is not None
        assert a.grad.dtype is a.dtype
        close(
            a.grad,
            np.zeros_like(b.detach().numpy()) if b.grad is None else b.grad.numpy(),
            tolerance * 4,
            tolerance * 4,
        )
