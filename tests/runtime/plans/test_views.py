"""Parts of memory as memory of their own: right values, one kernel for all of them, and none where that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernmill import Context, Tensor, jit, stack
from kernmill.ir import Kernel, Ops
from kernmill.runtime import Properties, counters, families, get_device, plan

VALUES = np.random.default_rng(0).normal(size=(12, 5, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    plan.plans.clear()
    families.families.clear()
    with Context(CACHE_DIR=str(tmp_path)):
        yield


def made() -> tuple[int, int]:
    """Kernels that were looked for on disk or compiled, and plans that were made."""
    return counters.compiled + counters.from_disk, len(plan.plans)


def test_parts_in_one_piece_are_one_kernel(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor(VALUES).realize()
        for cut in (np.s_[0:3], np.s_[3:6], np.s_[2, 1:4], np.s_[7, 0:3], np.s_[4, 2, 1:3], np.s_[11, 4, 2:4]):
            np.testing.assert_allclose((x[cut] * 2 + 1).numpy(), VALUES[cut] * 2 + 1, rtol=1e-6)
        before = made()
        for begin in range(1, 10):
            np.testing.assert_allclose(
                (x[begin : begin + 3] * 2 + 1).numpy(), VALUES[begin : begin + 3] * 2 + 1, rtol=1e-6
            )
            np.testing.assert_allclose((x[begin].reshape(4, 5)[3] + 1).numpy(), VALUES[begin].reshape(4, 5)[3] + 1)
        kernels, plans = (after - was for after, was in zip(made(), before, strict=True))
        assert kernels <= 1  # of the second expression, if no other test has it; the first one was known
        assert plans == 1


CUTS = [
    np.s_[:, 3:4],
    np.s_[:, 1],
    np.s_[2:6, 1:3],
    np.s_[1:9:1, 2:4, 1],
    np.s_[3, :, 1:3],
    np.s_[:, 4, 3],
    np.s_[11:, 1:],
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16"])
def test_columns(device: str, cut: tuple[slice, ...], dtype: str) -> None:
    array = (VALUES * 3).astype(dtype)
    with Context(DEVICE=device, CHECK=1):
        x = Tensor(array).realize()
        np.testing.assert_array_equal((x[cut] * 1).numpy(), array[cut])
        np.testing.assert_array_equal(x[cut].numpy(), array[cut])


def test_columns_are_one_kernel_wherever_they_begin(device: str) -> None:
    """Each begin was a graph and a kernel of its own."""
    array = VALUES.reshape(12, 20)
    with Context(DEVICE=device):
        x, w = Tensor(array).realize(), Tensor(VALUES[0, 0, :, None]).realize()
        calls = (lambda i: (x[:, i] + 1, array[:, i] + 1), lambda i: (x[2:9, i : i + 3].softmax(0)[1], None),
                 lambda i: (x[:, i : i + 4] @ w, array[:, i : i + 4] @ VALUES[0, 0, :, None]))  # fmt: skip
        for call in calls:
            call(0)[0].realize()
            before = made()
            for begin in range(1, 17):
                found, want = call(begin)
                if want is None:
                    part = np.exp(array[2:9, begin : begin + 3])
                    want = part[1] / part.sum(0)
                np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-5)
            assert made() == before


def test_a_kernel_of_columns_is_that_of_the_first_ones() -> None:
    """What lies behind the last column is no memory of the kernel's, and nothing is compared to see to that."""
    x = Tensor(VALUES.reshape(12, 20)).realize()
    (x[:, 3:11] * 2).realize()
    (found,) = list(plan.plans.values())[-1:]
    (kernel,) = [item for item in found.graph.items if isinstance(item, Kernel)]
    ops = {node.op for node in kernel.ast.toposort()}
    assert not ops & {Ops.WHERE, Ops.LT, Ops.AND}
    assert sorted(node.arg[1] for node in kernel.ast.toposort() if node.op is Ops.PARAM) == [96, 228]


@pytest.mark.parametrize("kind", ["borrowed", "bfloat16", "int8", "leaf"])
def test_of_any_memory(device: str, kind: str) -> None:
    array = np.arange(-60, 60).reshape(12, 10)
    with Context(DEVICE=device):
        if kind == "borrowed":
            x = Tensor(array.astype(np.float32))
        elif kind == "leaf":
            x = Tensor(array.astype(np.float32), requires_grad=True).realize()
        else:
            x = Tensor(array, dtype=kind).realize()
        for row in (0, 3, 11):
            assert (x[row] + x[(row + 1) % 12]).cast("float32").tolist() == (
                array[row] + array[(row + 1) % 12]
            ).tolist()


def test_gradients_of_parts(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor(VALUES, requires_grad=True).realize()
        (x[2:4] * x[5:7]).sum().backward()
        want = np.zeros_like(VALUES)
        want[2:4], want[5:7] = VALUES[5:7], VALUES[2:4]
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), want)


@pytest.mark.parametrize(
    "cuts",
    [
        (np.s_[0:6], np.s_[6:12]),  # beside each other
        (np.s_[0:6], np.s_[3:9]),  # overlapping
        (np.s_[0:6], np.s_[0:6]),  # the same
        (np.s_[:, 0:2], np.s_[:, 2:4]),  # in pieces
        (np.s_[0:0], np.s_[3:3]),  # empty
        (np.s_[0:12:2], np.s_[1:12:2]),
        (np.s_[::-1], np.s_[0:12]),
    ],
)
def test_two_parts(device: str, cuts: tuple[slice, slice]) -> None:
    one, other = cuts
    with Context(DEVICE=device):
        x = Tensor(VALUES).realize()
        np.testing.assert_array_equal((x[one] - x[other]).numpy(), VALUES[one] - VALUES[other])
        np.testing.assert_array_equal((x[one] - x[other] + x.sum() * 0).numpy(), VALUES[one] - VALUES[other])


def test_a_stencil_is_one_kernel_over_one_memory() -> None:
    """Neighbours overlap: what is loaded for one of them serves the next."""
    x = Tensor(VALUES.reshape(-1)).realize()
    (x[2:] + x[1:-1] + x[:-2]).realize()
    (found,) = list(plan.plans.values())[-1:]
    assert [item.buffers for item in found.graph.items if isinstance(item, Kernel)] == [(1, 0)]


def test_more_parts_than_a_kernel_takes_arguments(device: str) -> None:
    array = np.arange(400, dtype=np.float32).reshape(200, 2)
    with Context(DEVICE=device):
        x = Tensor(array).realize()
        rows = [x[row] * float(row) for row in range(200)]
        assert stack(rows).tolist() == (array * np.arange(200)[:, None]).tolist()


def test_parts_of_many_leaves_on_a_device_that_takes_few_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the kernel's, whichever leaves its parts are of."""
    device = get_device("LLVM")
    monkeypatch.setattr(device, "limits", Properties(max_buffers=16))
    with Context(DEVICE="LLVM"):
        leaves = [Tensor(VALUES[:, :, n].copy()).realize() for n in range(4)]
        rows = [x[row] for x in leaves for row in range(3)]
        np.testing.assert_allclose(sum(rows[1:], rows[0]).numpy(), VALUES[:3].sum((0, 2)), rtol=1e-5)
    (found,) = list(plan.plans.values())[-1:]
    assert [len(item.buffers) for item in found.graph.items if isinstance(item, Kernel)] == [1 + 3 + 3 + 1 + 1]


def test_a_result_has_memory_of_its_own(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor(VALUES).clone().realize()
        part, row = x[2:4].clone().realize(), x[1].clone().realize()  # without clone() they would be views
        x.assign(x * 0).realize()
        np.testing.assert_array_equal(part.numpy(), VALUES[2:4])
        np.testing.assert_array_equal(row.numpy(), VALUES[1])


def test_an_assignment_beside_a_part(device: str) -> None:
    with Context(DEVICE=device):
        x = Tensor(VALUES).clone().realize()
        x[0:3] = x[1:4] + x[4:7]
        want = VALUES.copy()
        want[0:3] = VALUES[1:4] + VALUES[4:7]
        np.testing.assert_array_equal(x.numpy(), want)
        total = Tensor.zeros(5, 4).contiguous().realize()
        total.assign(total + x[0]).realize()
        before = made()
        for row in range(1, 12):
            total.assign(total + x[row]).realize()
        np.testing.assert_allclose(total.numpy(), want.sum(0), rtol=1e-5)
        assert made() == before


def test_a_captured_function_compiles_nothing_twice() -> None:
    x, y = Tensor(VALUES).realize(), Tensor(VALUES + 1).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        return x[3:5] * 2 + x[7:9]

    f(x)
    before = counters.compiled
    for given, array in ((x, VALUES), (y, VALUES + 1), (x, VALUES)):
        np.testing.assert_allclose(f(given).numpy(), array[3:5] * 2 + array[7:9])
    assert counters.compiled == before


def test_arguments_of_a_captured_function_are_parts() -> None:
    x = Tensor(VALUES).realize()
    f = jit(lambda part: part.sum(0) * 3)
    for begin in range(3):
        f(x[begin : begin + 2])
    before = made()
    for begin in range(3, 10):
        np.testing.assert_allclose(f(x[begin : begin + 2]).numpy(), VALUES[begin : begin + 2].sum(0) * 3, rtol=1e-5)
    assert made() == before
