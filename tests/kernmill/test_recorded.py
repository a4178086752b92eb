"""Recorded method calls make exactly the nodes that the methods make."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, autocast, cat, dtypes, nn, no_grad, recorded
from kernmill.ir import current_origin

RNG = np.random.default_rng(5)
_NAMES = "add sub mul div maximum minimum matmul mse_loss __add__ __sub__ __mul__ __truediv__ __matmul__"
PAIRS = _NAMES.split()


def leaf(*shape: int) -> Tensor:
    return Tensor(RNG.uniform(0.5, 2, shape).astype(np.float32), requires_grad=True)


def stored(*shape: int) -> Tensor:
    return Tensor(RNG.uniform(0.5, 2, shape).astype(np.float32)).realize()


def computed(*shape: int) -> Tensor:
    return stored(*shape) * 2 + 1


def classes(*shape: int) -> Tensor:
    return Tensor(RNG.integers(0, 3, shape)).realize()


def operands(name: str, make: Callable[..., Tensor]) -> tuple[Any, ...]:
    """Arguments for a recorded method."""
    if name in ("conv2d", "max_pool2d", "avg_pool2d"):
        return (make(2, 3, 5, 5), make(4, 3, 3, 3)) if name == "conv2d" else (make(2, 3, 6, 6), 2)
    if name in ("cross_entropy", "nll_loss"):
        return make(4, 3), classes(4)
    if name == "linear":
        return make(4, 3), make(5, 3), make(5)
    if name == "layer_norm":
        return make(3, 4), (4,), make(4), make(4), 1e-5
    if name == "_attention":
        return make(2, 3, 4), make(2, 3, 4), make(2, 3, 4), True
    if name == "_rows_at":
        return make(3, 4), classes(2), (-5, 5)
    if name == "outer":
        return make(3), make(4)
    return (make(3, 3), make(3, 3)) if name in PAIRS else (make(3, 4),)


@pytest.mark.parametrize("make", [leaf, stored, computed])
@pytest.mark.parametrize("name", sorted(recorded.RECORDED))
def test_a_recorded_call_makes_the_nodes_of_the_method(
    name: str, make: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = getattr(Tensor, name)
    call = call.__wrapped__ if hasattr(call, "is_traced") else call  # below the one that notes the user's line
    monkeypatch.setattr(current_origin, "line", "here:1")  # as inside of that one
    for _ in range(3):
        given = operands(name, make)
        wanted = call.__wrapped__(*given)
        for _ in range(2):
            found = call(*given)
            assert found.uop is wanted.uop
            assert (found.requires_grad, found.device) == (wanted.requires_grad, wanted.device)


@pytest.mark.parametrize("name", sorted(recorded.RECORDED - {"argmax", "argmin"}))
def test_gradients_of_recorded_calls(name: str) -> None:
    results = []
    for _ in range(3):
        RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state
        given = operands(name, leaf)
        getattr(Tensor, name)(*given).sum().backward()
        results.append([one.grad.numpy() for one in given if isinstance(one, Tensor) and one.grad is not None])
    for later in results[1:]:
        for one, other in zip(results[0], later, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_a_key_has_to_tell_apart() -> None:
    x, y = stored(3, 3), stored(3, 3)
    for _ in range(2):
        np.testing.assert_array_equal((x + x).numpy(), 2 * x.numpy())
        np.testing.assert_array_equal((x + y).numpy(), x.numpy() + y.numpy())
        np.testing.assert_array_equal((x.T + x).numpy(), x.numpy().T + x.numpy())
        np.testing.assert_array_equal((x + 1).numpy(), x.numpy() + 1)
        np.testing.assert_array_equal((x + True).numpy(), x.numpy() + 1)
        np.testing.assert_allclose(x.sum(0).numpy(), x.numpy().sum(0), rtol=1e-6)
        np.testing.assert_allclose(x.sum(1).numpy(), x.numpy().sum(1), rtol=1e-6)
        np.testing.assert_allclose(x.sum((0, 1)).numpy(), x.numpy().sum(), rtol=1e-6)
        z = leaf(3, 3)
        assert (z * z).requires_grad
        with no_grad():
            assert not (z * z).requires_grad
        assert not (z.detach() * z.detach()).requires_grad


def test_indices_that_are_known_to_be_inside_are_another_call_than_others() -> None:
    x = stored(3, 4)
    for _ in range(2):
        inside = Tensor([5, 1, 0]).realize() % 3
        assert np.array_equal(x[inside].numpy(), x.numpy()[[2, 1, 0]])
        outside = Tensor([5, 1, 0]).realize() % 6
        with pytest.raises(IndexError, match="outside axis 0 of size 3"):
            x[outside].numpy()


def test_a_block_of_autocast_is_part_of_a_call() -> None:
    x, norm = stored(3, 4).half(), nn.LayerNorm(4)
    found = []
    for _ in range(2):
        found.append(x.std().dtype)
        with autocast("bfloat16"):
            found += [x.std().dtype, norm(x).dtype, x.layer_norm(4).dtype]
    assert found == [dtypes.float16, dtypes.float32, dtypes.float32, dtypes.float16] * 2


def test_errors_come_again() -> None:
    x, y = stored(2, 3), stored(4, 5)
    for _ in range(3):
        with pytest.raises(ValueError, match="matmul"):
            _ = x @ y


def test_a_table_holds_no_memory() -> None:
    x = stored(3, 5)
    for _ in range(2):
        x.exp().numpy()
    ref = weakref.ref(x.uop.src[0].storage)
    del x
    assert ref() is None


def test_integers_and_views_are_operands() -> None:
    table = stored(6, 4)
    for start in range(3):
        rows = table[start : start + 2]
        np.testing.assert_allclose((rows @ table.T).numpy(), rows.numpy() @ table.numpy().T, rtol=1e-6)
        np.testing.assert_allclose(cat([rows, rows]).sum(0).numpy(), 2 * rows.numpy().sum(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_two_views_of_one_memory_are_two_operands(dtype: str) -> None:
    """The memory was counted twice, so the second call took other nodes: a wrong shape, or wrong values."""
    for _ in range(3):
        x = np.arange(12).reshape(3, 4).astype(dtype)
        t = Tensor(x).realize()
        assert np.array_equal((t.unsqueeze(2) * t.unsqueeze(1)).numpy(), x[:, :, None] * x[:, None])
        assert np.array_equal((t.reshape(4, 3) + t.T.reshape(4, 3)).numpy(), x.reshape(4, 3) + x.T.reshape(4, 3))
        assert np.array_equal((t.reshape(2, 6) - t.reshape(12)[:6]).numpy(), x.reshape(2, 6) - x.reshape(12)[:6])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_views_of_one_memory_and_of_two_are_different_calls(dtype: str) -> None:
    for _ in range(2):
        x, y = (np.arange(i, 12 + i).reshape(3, 4).astype(dtype) for i in (0, 5))
        t, u = Tensor(x).realize(), Tensor(y).realize()
        for (a, p), (b, q) in (((t, x), (t, x)), ((t, x), (u, y)), ((u, y), (t, x)), ((t, x), (t, x))):
            got = a.reshape(3, 4, 1) * b.reshape(3, 1, 4)
            assert np.array_equal(got.numpy(), p[:, :, None] * q[:, None])
            assert np.array_equal((a.reshape(12) - b.reshape(12)).numpy(), p.ravel() - q.ravel())
