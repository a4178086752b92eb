"""Calls that run out of memory: all is as before, or it is said what is not; the next call is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor, jit
from kernmill.ir import OutOfMemoryError
from kernmill.nn import optim
from kernmill.runtime import get_device


def real(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32)).realize()


def state() -> SimpleNamespace:
    m = SimpleNamespace(a=real(1, 2, 3), b=real(4, 5, 6), parts=[real(7, 8, 9)], count=0)
    m.w = real(1, 1, 2).requires_grad_()
    m.optimizer = optim.Adam([m.w], lr=0.1)
    return m


def _assigns(m: Any, x: Tensor) -> Any:
    m.a.assign(m.a + x)
    return m.a * 2


def _puts(m: Any, x: Tensor) -> Any:
    m.b = m.b + x
    m.parts[0] = m.parts[0] * 0.5 + m.b
    m.parts.append(x * 2)
    m.parts = m.parts[-2:]
    return m.b.sum()


def _swaps(m: Any, x: Tensor) -> Any:
    m.a, m.b = m.b, m.a
    m.a[0] = x[0] + 1
    return m.b + 1


def _argument(m: Any, x: Tensor) -> Any:
    x.assign(x + m.a)
    return x * 2


def _trains(m: Any, x: Tensor) -> Any:
    m.optimizer.zero_grad()
    loss = (m.w * x).square().sum()
    loss.backward()
    m.optimizer.step(loss)
    return loss


def seen(m: Any, x: Tensor) -> list[Any]:
    tensors = [m.a, m.b, *m.parts, m.w, *m.optimizer.state(), x, *([] if m.w.grad is None else [m.w.grad])]
    return [t.numpy().tolist() for t in tensors]


def refuse(patch: pytest.MonkeyPatch, at: int) -> None:
    """No memory for one request, counted from 0."""
    cls, left = type(get_device().allocator), [at]
    allocate = cls.alloc

    def refused(self: Any, size_bytes: int) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise OutOfMemoryError("no room")
        return allocate(self, size_bytes)

    patch.setattr(cls, "alloc", refused)


@pytest.mark.parametrize("step", [_assigns, _puts, _swaps, _argument, _trains])
@pytest.mark.parametrize("before", [0, 1, 2, 4])
def test_a_call_without_memory_has_not_happened(
    step: Callable[..., Any], before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was done when it was read, and a second time when it was called again."""
    for at in range(20):
        (m, x), (plain, y) = (state(), real(1, 2, 3)), (state(), real(1, 2, 3))
        captured = jit(step)
        for _ in range(before):
            captured(m, x)
            step(plain, y)
        kept = [m.a.detach(), m.b.detach(), m.w.detach()]
        was = seen(m, x)
        with monkeypatch.context() as patch:
            refuse(patch, at)
            notes = None
            try:
                captured(m, x)
            except OutOfMemoryError as error:
                notes = getattr(error, "__notes__", [])
        if notes is None:
            assert at > 0 or before > 1
            return
        is_released = (
            step is _trains and before == 1 and m.w.grad is None
        )  # a capture frees gradients that the step drops
        exception = ", but not the gradients that it had dropped" if is_released else ""
        assert notes == [f"jit: the state before this call of {step.__name__} is restored{exception}."] * (before < 2)
        was = was[:-1] if is_released else was
        if at % 2:
            assert seen(m, x) == was
        assert captured(m, x).tolist() == pytest.approx(step(plain, y).tolist())
        assert [*map(np.ravel, seen(m, x))] == [pytest.approx(np.ravel(values)) for values in seen(plain, y)]
        del kept
    raise AssertionError("each request was refused")


def test_what_is_not_put_back_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that Python counts, and tensors that the function itself has realized."""

    m = state()

    def counts(x: Tensor) -> Any:
        m.count += 1
        return m.a + x

    def realizes(x: Tensor) -> Any:
        m.a.assign(m.a + x).realize()
        return m.b + x

    for function, note in (
        (counts, "jit: the state before this call of {} is restored, but 'm.count'."),
        (realizes, "jit: {} had already realized some of its assignments: these remain, the others are still pending."),
    ):
        captured = jit(function)
        notes: list[str] = []
        for at in range(4):
            with monkeypatch.context() as patch:
                refuse(patch, at)
                try:
                    captured(real(1, 1, 1))
                except OutOfMemoryError as error:
                    notes += getattr(error, "__notes__", [])
        assert note.format(captured._name) in notes, notes


@dataclass(frozen=True)
class Fixed:
    a: Tensor


def test_who_lets_nobody_write_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the place could not be written was raised in place of the error."""
    fixed, x = Fixed(real(1, 2, 3)), real(1, 1, 1)
    step = jit(lambda x: fixed.a * 2 + x)
    refuse(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError) as caught:
        step(x)
    assert caught.value.__notes__ == [f"jit: the state before this call of {step._name} is restored."]
    assert step(x).tolist() == [3, 5, 7]


def test_what_cannot_be_written_again_is_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, x = Fixed(real(1, 2, 3)), real(1, 1, 1)

    def step(x: Tensor) -> Any:
        object.__setattr__(fixed, "a", fixed.a + x)
        return fixed.a * 2

    refuse(monkeypatch, 0)
    with pytest.raises(OutOfMemoryError):
        jit(step)(x)
    assert fixed.a.tolist() == [2, 3, 4]
