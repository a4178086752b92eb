"""Realizing: assignments in place, several threads, forks, lower levels of the CPU, checks."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.ir import (
    IndexRangeError,
    Ops,
    OutOfMemoryError,
    SettingError,
    UOp,
    const,
    dtypes,
    elementwise,
    permute,
    rebuilt,
    reduce_axes,
    reshape,
    substitute,
)
from kernmill.runtime import download, get_device, host, plan, realize, rehearsal, upload
from tests.runtime.processes import run


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


def test_a_borrowing_upload_asks_for_no_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from a file of the system, which takes longer than the rest."""
    device = get_device("LLVM")
    assert device.limits.wraps_host_memory
    monkeypatch.setattr(type(device), "props", lambda _: pytest.fail("props was asked for"))
    assert Tensor.from_numpy(np.arange(3)).tolist() == [0, 1, 2]


def fenced(values: Any) -> Any:
    """The values in memory right before a page that nobody may read."""
    pages = -(-values.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    fence = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + pages * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    array = np.frombuffer(memory, values.dtype, values.size, pages * mmap.PAGESIZE - values.nbytes)
    array = array.reshape(values.shape)
    array[...] = values
    return array


@pytest.mark.skipif(os.name != "posix", reason="another system's way to close a page")
@pytest.mark.parametrize("target", ["", "avx2"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_kernels_read_nothing_behind_the_end(dtype: str, target: str, device: str) -> None:
    with Context(DEVICE=device, TARGET=target if device == "LLVM" else ""):
        for rows, columns in ((3, 17), (31, 33)):
            values = np.random.default_rng(rows).integers(0, 9, (rows, columns)).astype(dtype)
            x, right = Tensor.from_numpy(fenced(values)), values.astype(np.float32)
            for got, want in (
                (x + 1, right + 1),
                (x.cast("float32").sum(0), right.sum(0)),
                (x.cast("float32").sum(1), right.sum(1)),
                (x[:, ::3], right[:, ::3]),
                (x.flip(1).T.contiguous(), right[:, ::-1].T),
                (x.cast("float32") @ x.T.cast("float32"), right @ right.T),
            ):
                np.testing.assert_array_equal(got.numpy().astype(np.float32), want)


def written(x: Tensor, value: float) -> Tensor:
    x[1] = value
    return x


GRAPHS: list[Callable[[Tensor, Tensor], Sequence[Tensor]]] = [
    lambda x, y: [x + 1],
    lambda x, y: [x + 2],
    lambda x, y: [x + 0.0],
    lambda x, y: [x + -0.0],
    lambda x, y: [x + float("nan")],
    lambda x, y: [x + y],
    lambda x, y: [y + x],
    lambda x, y: [x + x],
    lambda x, y: [(x + y) * x],
    lambda x, y: [(x + y) * y],
    lambda x, y: [x + 1, y + 2],
    lambda x, y: [y + 2, x + 1],
    lambda x, y: [x.sum(0)],
    lambda x, y: [x.sum(1)],
    lambda x, y: [x[1] * 2],
    lambda x, y: [x[2] * 2],
    lambda x, y: [x[1:3] * 2],
    lambda x, y: [x[:, 1:3] * 2],
    lambda x, y: [x[:, 2:4] * 2],
    lambda x, y: [x[1] + x[2]],
    lambda x, y: [x[1] + y[2]],
    lambda x, y: [x.reshape(5, 4).flip(0)],
    lambda x, y: [x.reshape(2, 10).flip(0)],
    lambda x, y: [x.long() + 1],
    lambda x, y: [written(x, 1.0)],
    lambda x, y: [written(x, 2.0)],
    lambda x, y: [written(x + y, 1.0)],
    lambda x, y: [written(Tensor.ones(4, 5), 1.0) + 1],
    lambda x, y: [(x + 1).requires_grad_()],
    lambda x, y: [(a := (x + 1).requires_grad_()) * a],
    lambda x, y: [(x + 1).requires_grad_() * (x + 1).requires_grad_()],
    lambda x, y: [(x + 1).requires_grad_().detach() * 2],
    lambda x, y: [Tensor.arange(5) + 1],
]


def test_the_structure_of_a_graph_tells_what_its_closed_graph_tells() -> None:
    """Plans are found by it, and graphs made of it: equal where the graph is, whatever memory is read."""
    start: Any = importlib.import_module("kernmill.runtime.execute").Run
    found: list[tuple[Any, UOp]] = []
    for make in GRAPHS * 2:
        x, y = (Tensor(np.arange(20.0, dtype=np.float32).reshape(4, 5)).realize() for _ in range(2))
        with rehearsal():  # where numbers stay what they are
            one = start([tensor.uop for tensor in make(x, y)], tuple, {}, 1).walk
        closed = plan.closed(one.structure, [node.origin for node in one.order])
        assert closed is over_params(one)
        found.append((one.structure, closed))
    for structure, closed in found:
        assert [structure == other for other, _ in found] == [closed is other for _, other in found]
    for (first, _), (again, _) in zip(found[: len(GRAPHS)], found[len(GRAPHS) :], strict=True):
        assert hash(first) == hash(again)


def over_params(one: Any) -> UOp:
    """The graph of a run with its leaves replaced, and counted."""
    opened: Any = importlib.import_module("kernmill.runtime.plans.views").opened
    sizes = enumerate([storage.numel for storage in one.storages])
    memory = [(leaf, UOp(Ops.PARAM, leaf.dtype, (), size)) for leaf, size in zip(one.leaves, sizes, strict=True)]
    params = {leaf: opened(leaf, param) for leaf, param in memory}
    number = itertools.count(1)

    def change(old: UOp, new: UOp) -> UOp:
        if old.op is Ops.ASSIGN and old in one.order:  # of constants: a tensor's own node
            return new.replace(src=(UOp(Ops.DETACH, new.dtype, new.src[:1], 0), *new.src[1:]))
        if new.op is Ops.RESHAPE:  # nodes that are one tensor's own are interned and joined
            return reshape(new.src[0], new.arg)
        if new.op is Ops.PERMUTE:
            return permute(new.src[0], new.arg)
        return new.replace(arg=next(number)) if new.op is Ops.DETACH and new.arg else new.replace()

    return rebuilt(substitute(UOp(Ops.SINK, dtypes.void, tuple(one.roots)), params), change)


def test_a_known_structure_holds_no_memory() -> None:
    """What plans are found by stays as long as they do."""
    x = Tensor(np.ones((4, 5), np.float32)).realize()
    memory = weakref.ref(buffer_of(x))
    ((x[1:3] * 7.0).sum() + x.sum()).realize()
    x[2] = 3.0
    x.realize()
    del x
    assert memory() is None


def buffer_of(tensor: Tensor) -> Any:
    """The Buffer of a realized tensor."""
    node = tensor.uop
    while node.storage is None:
        node = node.src[0]
    return node.storage


# --- threads, forks, targets -----------------------------------------------------------------------------------------
def test_several_threads_at_once(device: str) -> None:
    """New graphs, equal graphs and shared inputs, in eight threads."""
    rng = np.random.default_rng(0)
    array = rng.normal(size=(9, 17)).astype(np.float32)
    shared = reshape(upload(array.reshape(-1), dtypes.float32, device), array.shape)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(6):
                factor = float((number + turn) % 3 + 1)
                root = reduce_axes(elementwise(Ops.MUL, shared, shared) * factor + float(turn), Ops.ADD, (1,))
                realize([root])
                want = (array.astype(np.float64) ** 2 * factor + turn).sum(1)
                np.testing.assert_allclose(download(root), want, rtol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


FORK = """
import os
a = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
def work():
    return float(value(reduce_axes(leaf(a) * 2.0, Ops.ADD, (0, 1))).sum())
first = work()
child = os.fork()
if child == 0:
    os._exit(0 if work() == first and float(value(leaf(a) + 1.0).sum()) else 3)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), work() == first)
"""


BUSY = """
import faulthandler, os, threading
is_over = threading.Event()
def others():
    size = 1
    while not is_over.is_set():
        size += 1
        Tensor.ones(size, 3).exp().sum(1).realize()  # a new kernel each time
busy = threading.Thread(target=others)
busy.start()
codes = []
for number in range(8):
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        os._exit(int(Tensor.ones(5 + number, 7).sum().item()) != 7 * (5 + number))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
is_over.set()
busy.join()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_realizes_works(tmp_path: Path) -> None:
    """It once waited for locks that the other thread held, which is not there: ours, and llvmlite's."""
    assert run("from kernmill import Tensor" + BUSY, tmp_path / "cache")[0].strip() == str([0] * 8)


OPENING = """
import faulthandler, os, sys, threading, time
class Slow:
    begun = threading.Event()
    def find_spec(self, name, path, target=None):
        if name.startswith("kernmill.runtime.ops_"):
            self.begun.set()
            time.sleep(0.3)
sys.meta_path.insert(0, Slow())
other = threading.Thread(target=lambda: Tensor.ones(3).sum().item())
other.start()
Slow.begun.wait()
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    os._exit(int(Tensor.ones(5).sum().item()) != 5)
other.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_imports_the_device_works(tmp_path: Path) -> None:
    """It once waited for Python's lock of the module that the other thread was importing."""
    assert run("from kernmill import Tensor" + OPENING, tmp_path / "cache")[0].strip() == "0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_works(tmp_path: Path) -> None:
    """The pool's threads are not copied by a fork; a child makes its own."""
    assert run(FORK, tmp_path / "cache")[0].split() == ["0", "True"]


KERNELS = """
rng = np.random.default_rng(0)
a, b = rng.normal(size=(2, 37, 37)).astype(np.float32)
h = a.astype(np.float16)
x, y = leaf(a), leaf(b)
def near(got, want):
    assert np.allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-4), np.abs(got - want).max()
near(value(elementwise(Ops.MUL, x, y) + 1.0), a * b + 1)
near(value(reduce_axes(x, Ops.ADD, (1,))), a.sum(1, keepdims=True))
near(value(reduce_axes(x, Ops.MAX, (0,))), a.max(0, keepdims=True))
left, right = reshape(x, (37, 1, 37)), reshape(permute(y, (1, 0)), (1, 37, 37))
near(value(reduce_axes(elementwise(Ops.MUL, left, right), Ops.ADD, (2,))), (a @ b)[..., None])
e = elementwise(Ops.SUB, x, reduce_axes(x, Ops.MAX, (1,))).alu(Ops.EXP)
w = np.exp(a - a.max(1, keepdims=True))
near(value(elementwise(Ops.DIV, e, reduce_axes(e, Ops.ADD, (1,)))), w / w.sum(1, keepdims=True))
near(value(pad(x, ((1, 2), (3, 0))).alu(Ops.FLOOR)), np.floor(np.pad(a, ((1, 2), (3, 0)))))
near(value(strided(x, (-1, 2)).alu(Ops.SIN)), np.sin(a[::-1, ::2]))
i = leaf((a * 100).astype(np.int32))
near(value(i.alu(Ops.FLOORDIV, 7).cast(dtypes.float32)), ((a * 100).astype(np.int32) // 7).astype(np.float32))
near(value(leaf(h).alu(Ops.ADD, leaf(h)).cast(dtypes.float32)), (h + h).astype(np.float32))
near(value(x.cast(dtypes.float64).cast(dtypes.float16).cast(dtypes.float32)), h.astype(np.float32))
print("ok", get_device().target.vector_bytes)
"""


@pytest.mark.parametrize(("level", "vector_bytes"), [("sse", 16), ("avx2", 32), ("avx512", 64)])
def test_lower_levels_of_the_cpu(level: str, vector_bytes: int, tmp_path: Path) -> None:
    with Context(TARGET=level):
        try:
            host.this_host()
        except SettingError as error:
            pytest.skip(str(error))
    out, _ = run(KERNELS, tmp_path / "cache", TARGET=level, CHECK="0")
    assert out.split() == ["ok", str(vector_bytes)]


def test_stages_are_verified_and_kernels_compared(tmp_path: Path) -> None:
    assert run(KERNELS, tmp_path / "cache", CHECK="1", DUMP=str(tmp_path / "dump"))[0].startswith("ok")


def test_checks_are_raised_after_the_run(device: str) -> None:
    x = upload(np.array([1.0, -2.0], np.float32), dtypes.float32, device)
    bad = reshape(reduce_axes(elementwise(Ops.LT, x, const(dtypes.float32, 0.0)), Ops.OR, (0,)), ())
    root = UOp(Ops.CHECK, dtypes.float32, (x * 2.0, bad), "a value is negative")
    with pytest.raises(IndexRangeError, match="a value is negative"):
        realize([root])
    assert root.storage is None


def test_realizing_again_costs_nothing(device: str) -> None:
    root = upload(np.ones(4, np.float32), dtypes.float32, device) + 1.0
    realize([root])
    storage = root.storage
    realize([root, root])
    assert root.storage is storage


def test_a_result_without_memory_leaves_assignments_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of memory, as a result, got its own when all was done: an assignment in place was lost with it."""
    total, table = Tensor(np.zeros(3, np.float32)).realize(), Tensor(np.arange(8, dtype=np.float32)).realize()
    cls, turns = type(get_device(total.device).allocator), [0]
    allocate = cls.alloc

    def refused(self: Any, size_bytes: int) -> Any:
        turns[0] -= 1
        if not turns[0]:
            raise OutOfMemoryError("none")
        return allocate(self, size_bytes)

    for at in (1, 2, 3):
        total.assign(total + 1)
        part, turns[0] = table[at : at + 2], at
        with monkeypatch.context() as patch, suppress(OutOfMemoryError):
            patch.setattr(cls, "alloc", refused)
            total.realize(part)
        assert (total.tolist(), part.tolist()) == ([at] * 3, [at, at + 1])
