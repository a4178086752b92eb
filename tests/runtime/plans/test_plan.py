"""Plans from disk: what they save, what makes them others, and that nothing is lost on the way."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, Variable, jit, where
from kernmill.functional import grad
from kernmill.ir import IndexRangeError, Kernel, Ops, elementwise, reduce_axes
from kernmill.runtime import collecting_kernels, counters, families, get_device, plan, planned
from tests.compiler.kernels import data, matmul, softmax
from tests.runtime.processes import run

FACTS = ("ast", "buffers", "outputs", "device", "key", "name", "variables", "origin")
WORK = """
a = leaf(np.arange(48, dtype=np.float32).reshape(6, 8))
result = value(reduce_axes(a * 2.0 + 1.0, Ops.ADD, (1,)))
print(result.sum(), sum(name.startswith("kernmill.compiler") for name in sys.modules) > 0)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache of its own; `forget` makes the next realize one of a new process."""
    with Context(CACHE_DIR=str(tmp_path)):
        yield tmp_path


def forget() -> None:
    plan.plans.clear()
    families.families.clear()


def stored(cache: Path) -> int:
    return sum(path.is_file() for path in (cache / "v2" / "plans").rglob("*"))


def test_a_known_graph_needs_no_compiler(tmp_path: Path) -> None:
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "True"]
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "False"]


def test_a_program_that_is_gone_is_built_again(tmp_path: Path) -> None:
    run(WORK, tmp_path)
    for path in (tmp_path / "v2" / "llvm").rglob("*"):
        if path.is_file():
            path.unlink()
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "True"]
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "False"]


def test_a_damaged_plan_is_made_again(tmp_path: Path) -> None:
    run(WORK, tmp_path)
    (path,) = (path for path in (tmp_path / "v2" / "plans").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "True"]
    assert run(WORK, tmp_path)[0].split() == ["2304.0", "False"]


def test_reports_find_the_kernels_of_a_known_graph(tmp_path: Path) -> None:
    run(WORK, tmp_path)
    shown = run(WORK, tmp_path, DEBUG="4")[1]
    assert "GFLOP/s" in shown
    assert "--- uops of sum_6_k8" in shown


def test_searches_find_the_kernels_of_a_known_graph(cache: Path) -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for _ in range(2):
        forget()
        with collecting_kernels() as seen:
            assert (Tensor(x) * 3.25).sum().item() == 214.5
        assert {ast.op for _, ast in seen} == {Ops.SINK}
        assert all(kernel.origin and kernel.key == kernel.ast.key for kernel, _ in seen.values())


def test_everything_survives_the_way_to_disk_and_back() -> None:
    q, k = data(0, 32, 16), data(1, 16, 24)
    made = planned([softmax(matmul(q, k)), elementwise(Ops.ADD, q, q)], ("LLVM",) * 2, frozenset(), "LLVM")
    schedule, memory = plan._read(plan._written(*made), lambda: made, ((0, 1), ("LLVM",) * 2, frozenset()), "LLVM")
    assert memory == made[1]
    assert (schedule.buffers, schedule.results, schedule.checks) == (made[0].buffers, made[0].results, made[0].checks)
    assert len(schedule.items) == len(made[0].items) > 1
    for read, wanted in zip(schedule.items, made[0].items, strict=True):
        assert isinstance(read, Kernel)
        assert isinstance(wanted, Kernel)
        assert [getattr(read, name) for name in FACTS] == [getattr(wanted, name) for name in FACTS]


def test_what_differs_has_a_plan_of_its_own(cache: Path) -> None:
    x = Tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    wanted = x.numpy()
    made: list[Any] = []
    before = stored(cache)
    for _ in range(2):
        made.clear()  # an expression that is held and computed again is another graph
        made = [(x * 2.0, wanted * 2), (x * 3.0, wanted * 3), (x * -0.0, wanted * -0.0), (x * 0.0, wanted * 0),
                (x.transpose(0, 1) * 2.0, wanted.T * 2), (x.reshape(3, 2) * 2.0, wanted.reshape(3, 2) * 2),
                (x.flip(0) * 2.0, wanted[::-1] * 2), (x.flip(1) * 2.0, wanted[:, ::-1] * 2)]  # fmt: skip
        forget()
        before = stored(cache)
        for number, (lazy, right) in enumerate(made):
            result = (lazy + 0.0 if number == 2 else lazy.clone()).numpy()
            np.testing.assert_array_equal(result, right)
    assert stored(cache) == before


@pytest.mark.parametrize("is_held", [False, True])
def test_an_old_value_that_somebody_holds_is_kept(cache: Path, is_held: bool) -> None:
    for _ in range(2):
        forget()
        x = Tensor([1.0, 2.0, 3.0]).realize()
        old = x * 10.0 if is_held else None
        x.assign(x + 1.0).realize()
        assert x.tolist() == [2.0, 3.0, 4.0]
        if old is not None:
            assert old.tolist() == [10.0, 20.0, 30.0]


def test_a_check_is_part_of_a_plan(cache: Path) -> None:
    table = Tensor(np.arange(12.0, dtype=np.float32).reshape(4, 3))
    for _ in range(2):
        forget()
        assert table[Tensor([1, 3])].tolist() == [[3.0, 4.0, 5.0], [9.0, 10.0, 11.0]]
        with pytest.raises(IndexRangeError):
            table[Tensor([1, 4])].realize()


def test_variables_keep_their_bounds(cache: Path) -> None:
    for _ in range(2):
        forget()
        size = Variable("n", 1, 8)

        @jit
        def total(x: Tensor, n: Any) -> Tensor:
            return x[:n].sum()

        x = Tensor(np.arange(8.0, dtype=np.float32)).realize()
        for n in (3, 8, 1, 5):
            assert total(x, size.bind(n)).item() == sum(range(n))


@pytest.mark.parametrize(("count", "started"), [(3, 0), (8, 1)])
def test_many_sums_are_expected_before_they_are_scheduled(
    cache: Path, monkeypatch: pytest.MonkeyPatch, count: int, started: int
) -> None:
    found: list[str] = []
    monkeypatch.setattr(type(get_device("LLVM")), "expect_many", lambda device: found.append(device.name))
    monkeypatch.setattr(plan, "build_all", lambda wanted: [None for _ in wanted])
    x = data(0, 97)
    sums = [reduce_axes(x + float(number), Ops.ADD, (0,)) for number in range(count)]
    one: Any = importlib.import_module("kernmill.runtime.execute").Run(sums, tuple, {}, 1)
    plan.new_plan(one.walk.structure, one.walk.order, ("LLVM",) * (1 + count), frozenset())
    assert found == ["LLVM"] * started


def test_several_devices(cache: Path) -> None:
    for _ in range(2):
        forget()
        x = Tensor([1.0, 2.0, 3.0], device="PYTHON") * 2.0
        assert (x.to("LLVM") + 1.0).tolist() == [3.0, 5.0, 7.0]


def test_without_a_cache_there_are_plans_in_memory(tmp_path: Path) -> None:
    with Context(CACHE="0", CACHE_DIR=str(tmp_path)):
        forget()
        before = counters.compiled
        for _ in range(2):
            assert (Tensor([1.0, 2.0]) * 7.125).tolist() == [7.125, 14.25]
        assert counters.compiled <= before + 1
        assert len(plan.plans) == 1
    assert not stored(tmp_path)


def test_new_leaves_are_no_other_graph(cache: Path) -> None:
    """The number of a leaf that was not computed before went into the key: each step of a loop was planned anew."""
    x = Tensor.rand(4, 4).realize()
    found = []
    for _ in range(3):
        w, v = (Tensor(np.eye(4, dtype=np.float32) * scale, requires_grad=True) for scale in (1, 2))
        ((x @ w) @ v).sum().backward()
        assert w.grad is not None
        assert v.grad is not None
        Tensor.realize(w.grad, v.grad)
        found.append(stored(cache))
    assert found == found[:1] * 3


def _halved(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 0.9).sin(), x


def _descended(x: Tensor) -> tuple[Tensor, Tensor]:
    slope = x * 3.0 - x.flip(0)
    return x - 0.01 * slope, slope


def _masked(x: Tensor) -> tuple[Tensor, Tensor]:
    mask = x > 0.5
    return (x * 0.9).where(mask, x * 0.8), mask.float()


def _chosen(x: Tensor) -> tuple[Tensor, Tensor]:
    return where(x > 0.5, x * 0.9, x + 0.01), x


def _written(x: Tensor) -> tuple[Tensor, Tensor]:
    x[[0, 2]] = x[[2, 0]] * 0.5
    x[[1]] = 1.0
    return x, x


def _differentiated(x: Tensor) -> tuple[Tensor, Tensor]:
    return x - 0.1 * grad(lambda a: (a * a).sum())(x), x


def _remainders(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 3 + 1) % 7, x


ZERO_TO_1 = np.linspace(0, 1, 5, dtype=np.float32)
STARTS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Callable[[], Tensor]]] = {
    "step": (_halved, lambda: Tensor(ZERO_TO_1)),
    "descent": (_descended, lambda: Tensor(ZERO_TO_1)),
    "mask": (_masked, lambda: Tensor(ZERO_TO_1)),
    "where": (_chosen, lambda: Tensor(ZERO_TO_1)),
    "writes": (_written, lambda: Tensor(ZERO_TO_1)),
    "grad": (_differentiated, lambda: Tensor(ZERO_TO_1)),
    "integers": (_remainders, lambda: Tensor([1, 2, 3])),
    "ones": (_halved, lambda: Tensor.ones(5)),
    "arange": (_descended, lambda: Tensor.arange(5).float()),
    "arange of integers": (_remainders, lambda: Tensor.arange(5)),
}


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("reads_new", [True, False], ids=["reads the new one", "reads what it was made from"])
def test_a_loop_that_reads_a_value_in_each_round_compiles_no_longer_graphs(name: str, reads_new: bool) -> None:
    """Nothing of a round was kept, since its name was gone by the next one: round n computed n rounds, and compiled.
    So it was later: of integers, constants, `where(..)`, writes by indices, and functional.grad."""
    step, start = STARTS[name]
    with Context(DEVICE="NULL", CACHE="0"):
        x = start()
        counts = []
        for _ in range(12):
            x, other = step(x)
            (x if reads_new else other).sum().realize()
            counts.append(counters.compiled)
    assert counts[6] == counts[-1]


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(0),
    "transpose": lambda x: x.T,
    "pad and cut": lambda x: x.pad((1, 0, 0, 1))[:-1, 1:],
    "repeat and cut": lambda x: x.repeat(2, 1)[1:7],
    "permute": lambda x: x.reshape(2, 3, 6).permute(1, 0, 2).reshape(6, 6),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_loop_that_only_moves_values_keeps_the_graph_of_a_round(name: str) -> None:
    """Views of memory were never kept: round n moved each value n times, by an expression of n nodes."""
    x, once = Tensor(np.arange(36, dtype=np.float32).reshape(6, 6)), Tensor(np.arange(36).reshape(6, 6))
    sizes = []
    for _ in range(12):
        x, once = MOVES[name](x), Tensor(MOVES[name](once).numpy())
        x.sum().realize()
        sizes.append(len(x.uop.toposort(stop=lambda u: u.storage is not None)))
    assert max(sizes[6:]) <= max(sizes[:6])
    assert x.tolist() == once.tolist()


def test_a_loop_that_repeats_values_does_not_keep_them() -> None:
    x = Tensor(np.ones((1, 4), np.float32))
    for _ in range(6):
        x = x[:1].expand(1000, 4)
        x[0].sum().realize()
        assert not x.is_realized


@pytest.mark.parametrize("holds_old", [False, True], ids=["one name", "two names"])
def test_a_loop_that_reads_a_value_in_each_round_keeps_the_memory_of_one(holds_old: bool) -> None:
    """Values that were kept for the next round were kept for ever: 4 MB more in each."""
    allocator, held = get_device("LLVM").allocator, []
    x = Tensor(np.ones(4096, np.float32), device="LLVM")
    for _ in range(12):
        new = (x * 0.9).sin()
        if holds_old:
            (new - x).abs().sum().item()
            x = new
        else:
            x = new
            del new
            x.sum().item()
        held.append(allocator.held_bytes()[0])
    assert held[-1] <= held[3]
    assert x[0].item() == pytest.approx(0.1818, abs=0.001)


def test_an_expression_that_is_written_again_is_not_kept_like_a_round_of_a_loop() -> None:
    """The masks of quantized types became memory: later kernels read them, and their schedules did not fit."""

    def lane() -> Tensor:
        return Tensor.arange(4)

    def mask() -> Tensor:
        return lane().eq(3)

    data, held = Tensor(np.arange(4, dtype=np.float32)).realize(), [lane().uop, mask().uop]
    np.testing.assert_array_equal((data + lane()).numpy(), [0, 2, 4, 6])
    np.testing.assert_array_equal(where(mask(), data, 1.0).numpy(), [1, 1, 1, 3])
    with collecting_kernels() as kernels:
        np.testing.assert_array_equal(where(mask(), 2.0, data).numpy(), [0, 1, 2, 2])
    assert held[1] is mask().uop
    assert [len(kernel.outputs) for kernel, _ in kernels.values()] == [1]
