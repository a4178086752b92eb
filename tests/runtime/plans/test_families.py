"""One plan for many graphs: what is compiled, what is told, and that a wrong guess is never used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, IndexRangeError, ShapeError, Tensor, jit, stack
from kernmill.runtime import counters, families, plan


@pytest.fixture(autouse=True)
def empty(tmp_path: Path) -> Iterator[None]:
    """No plan and no kernel is known."""
    plan.plans.clear()
    families.families.clear()
    with Context(CACHE_DIR=str(tmp_path)):
        yield
    plan.plans.clear()
    families.families.clear()


def data(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)).realize()


def kernels() -> int:
    return counters.compiled + counters.from_disk


def test_a_hundred_numbers_are_one_compilation(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor([1.0, 2.0]).realize()
        before = kernels()
        for i in range(100):
            np.testing.assert_allclose((x * (0.1 + i / 7)).numpy(), np.array([1, 2]) * (0.1 + i / 7), rtol=1e-6)
        assert kernels() == before + 1


def test_integers_and_exponents_are_arguments_from_the_second_value_on() -> None:
    x = Tensor([3, 5]).realize()
    before = kernels()
    for i in range(2, 30):
        assert (x + i).tolist() == [3 + i, 5 + i]
    assert kernels() == before + 2


def test_two_hundred_lengths_are_at_most_four_compilations() -> None:
    before = kernels()
    for n in range(1, 201):
        assert Tensor.ones(n).exp().sum().item() == pytest.approx(n * np.e, rel=1e-5)
    assert kernels() <= before + 4


def test_a_size_that_no_sum_runs_over_may_be_long() -> None:
    """Regression: any size above 16,384 that changed meant exact kernels, though no sum had that length."""
    before = 0
    for i, n in enumerate((20, 31, 33, 47, 60)):
        before = kernels() if i == 2 else before
        x = data(n, 1000)
        np.testing.assert_allclose(x.exp().sum(0).numpy(), np.exp(x.numpy()).sum(0), rtol=1e-5)
    assert kernels() == before


def test_a_sum_that_becomes_long_is_computed_in_parts() -> None:
    """A plan for many sizes has one accumulator, which would lose digits."""
    for n in (100, 120):
        assert data(n, 1024).square().sum().item() > 0
    before = kernels()
    for n in (110, 130):  # the second one is a sum of 133,120 values
        before = kernels() if n == 130 else before
        y = data(n, 1024)
        want = np.square(y.numpy().astype(np.float64)).sum()
        assert y.square().sum().item() == pytest.approx(want, rel=1e-6)
    assert kernels() > before


def test_a_loop_that_reads_one_number_costs_the_same_in_each_round() -> None:
    """The value that the loop carries is kept, without a realize() by the user."""
    x, c = data(100), Tensor([0.9])
    found: list[int] = []
    for _ in range(12):
        new = c + ((x - c) * 0.1).mean()
        (new - c).abs().item()
        c = new
        before = len(plan.plans)
        found.append(before)
    assert found[3:] == found[3:4] * 9


def test_elements_of_one_result_do_not_compute_it_again() -> None:
    y = data(16, 4).argsort(0)
    int(y[0, 0])
    int(y[1, 0])
    assert y.is_realized


def test_a_slice_of_another_start_is_another_slice(device: str) -> None:
    """The key of a graph with parts of leaves does not tell where they begin."""
    with Context(DEVICE=device):
        for n in range(4, 12):
            a = np.arange(n, dtype=np.float32)
            x = Tensor(a).realize()
            for start in (0, 1, 2):
                for stop in (n, n - 1):
                    assert (x[start:stop] * 2.5).tolist() == (a[start:stop] * 2.5).tolist()


def test_a_wrong_guess_is_not_used() -> None:
    """Two sizes fit a line that the third one is not on."""
    for n, m in ((4, 7), (5, 9), (6, 40), (7, 3), (9, 9), (4, 7)):
        x = data(n, m)
        np.testing.assert_allclose(x.sum(1).numpy(), x.numpy().sum(1), rtol=1e-5, atol=1e-5)


def test_sizes_that_keep_coming_get_exact_kernels() -> None:
    for n in (3, 4, 5):
        (data(n) * 2.5).realize()
    x = data(6)
    before = kernels()
    for _ in range(70):
        (x * 2.5).realize()
    assert kernels() == before + 1


def test_plans_are_dropped_by_their_size() -> None:
    with Context(PLANS_MAX_MB="1"):
        for n in range(60):
            made = data(3)
            for _ in range(n + 1):
                made = made.sin()
            made.realize()
            assert plan.plans.bytes <= 1 << 20


def test_what_cannot_be_shared_is_told_once(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    x = Tensor(np.ones((64, 64), np.float32)).realize()
    with caplog.at_level(logging.WARNING, "kernmill"), Context(DEBUG="1"):
        for n in range(2, 24):
            made = x[:n, : 64 - n] @ x[: 64 - n, : n * n % 60 + 2]
            assert made.numpy()[0, 0] == 64 - n
    assert len(caplog.messages) <= 1
    for text in caplog.messages:
        assert "kernels were compiled 8 times for one expression" in text
        assert "test_families.py" in text
    assert "a new graph" in capsys.readouterr().err


def test_a_captured_function_does_not_take_a_plan_for_many_sizes() -> None:
    """A recording has no values for that plan's variables: its replay failed with `the size size0 is nothing`."""

    def function(x: Tensor) -> Tensor:
        return (x * 2 + 1).sum()

    for size in range(3, 8):
        function(data(size)).item()
    captured = jit(function)
    for size in (6, 6, 6, 4, 6):
        x = data(size)
        assert captured(x).item() == pytest.approx(2 * x.numpy().sum() + size, rel=1e-5)


SIZES = [(3, 5), (4, 7), (9, 4), (11, 13), (5, 5), (20, 31), (8, 6), (17, 4), (30, 3), (12, 12), (13, 50), (7, 9)]


def test_products_of_sizes_in_another_order_are_one_plan(device: str) -> None:
    """`size0 * size1` and `size1 * size0` were two expressions: each pair of sizes was compiled."""
    with Context(DEVICE=device):
        before = kernels()
        for n, m in SIZES:
            x = np.arange(n * m, dtype=np.float32).reshape(n, m)
            assert np.array_equal((Tensor(x).realize().T.reshape(n * m) * 2).numpy(), x.T.reshape(-1) * 2)
        assert kernels() <= before + 3


def test_what_a_check_says_belongs_to_the_call(device: str) -> None:
    """The message names a size, which made each size a graph of another form: a compilation each."""
    with Context(DEVICE=device):
        before = kernels()
        for n, m in SIZES:
            x = np.arange(n * m, dtype=np.float32).reshape(n, m)
            rows = np.arange(n)[::-1].copy()
            assert np.array_equal(Tensor(x)[Tensor(rows)].numpy(), x[rows])
        assert kernels() <= before + 6
        for n in (21, 23):
            with pytest.raises(IndexRangeError, match=f"outside axis 0 of size {n}"):
                Tensor(np.ones((n, 3), np.float32))[Tensor(np.full(n, n))].numpy()
        assert kernels() <= before + 6


INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "take": lambda x, i: x[i], "gather": lambda x, i: x.gather(0, i.reshape(-1, 1)),
    "index_add": lambda x, i: x.index_add(0, i, x), "scatter": lambda x, i: x.scatter(0, i.reshape(-1, 1), x),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_no_index_leaves_the_memory_of_a_shared_plan(name: str) -> None:
    """Indices were clamped to the greatest size of the plan, and a wrong one was read beyond the memory of this size.
    The reference looks at each access."""
    with Context(DEVICE="PYTHON"):
        for n in (3, 4, 5, 6):
            INDEXED[name](Tensor(np.ones((n, 2), np.float32)), Tensor(np.arange(n))).realize()
        for n in (7, 8):
            with pytest.raises(IndexRangeError, match="outside axis 0"):
                INDEXED[name](Tensor(np.ones((n, 2), np.float32)), Tensor(np.full(n, 99))).realize()


def test_the_warning_quotes_no_internal_message(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise ShapeError("reshape: (size0 * 2,) -> (size1,): size0 * 2 elements do not make size1.")

    monkeypatch.setattr(families, "_with_sizes", fails)
    with caplog.at_level(logging.WARNING, "kernmill"):
        for n in range(5, 20):
            (data(n).abs() + 3).sqrt().realize()
    assert len(caplog.messages) == 1
    assert "size0" not in caplog.messages[0]
    assert "cannot be written for sizes that are variables" in caplog.messages[0]


def test_a_line_that_joins_a_growing_list_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each length is another graph, which compiled without a word."""
    rows = []
    with caplog.at_level(logging.WARNING, "kernmill"), Context(DEVICE="NULL", CACHE="0"):
        for number in range(20):
            rows.append(data(7) * (number + 2.5))
            stack(rows).sum().realize()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(__file__)
    assert "each time for a longer graph" in caplog.messages[0]
    assert "out[i] = x" in caplog.messages[0]


def test_lines_of_different_graphs_that_do_not_grow_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kernmill"), Context(DEVICE="NULL", CACHE="0"):
        for number in range(20):
            rows = [data(11 + number) * 2.5] * (1 + 5 * number % 7)
            sum(rows, data(11 + number)).exp().sum().realize()
    assert not caplog.messages
