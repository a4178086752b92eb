"""Assignments write in place only where nobody else reads that memory."""

from __future__ import annotations

from kernmill import Context, Tensor


def test_equal_expressions_realized_apart_do_not_share_changes(device: str) -> None:
    with Context(DEVICE=device):
        one, two = (Tensor.zeros(4).contiguous().realize() for _ in range(2))
        one.assign(one + 1).realize()
        assert two.tolist() == [0, 0, 0, 0]
        assert Tensor.zeros(4).contiguous().tolist() == [0, 0, 0, 0]


def test_an_expression_computed_before_keeps_its_value(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor([1.0, 2.0])
        changed, waiting = x * 3, x * 3
        changed.realize()
        changed.assign(changed + 1).realize()
        assert (changed.tolist(), waiting.tolist(), (x * 3).tolist()) == ([4, 7], [3, 6], [3, 6])
