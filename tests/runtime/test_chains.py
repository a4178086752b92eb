"""Launches that follow each other run part by part, where nobody can see it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.ir import dtypes
from kernmill.runtime import Batch, Buffer, Call, Program, chains, get_device, ops_llvm

ROWS, CACHE = 64, 1 << 20


def buffer(address: int, size: int = 1 << 20) -> Buffer:
    return Buffer("LLVM", dtypes.uint8, size, None, address)


def call(touched: str, *buffers: Buffer, threads: int = ROWS, work_ns: float = 1e6) -> Call:
    return Call(Program("k", None, threads, work_ns, touched=touched), buffers, (), threads)


A, B, C = buffer(1 << 30), buffer(2 << 30), buffer(3 << 30)


def ends(*calls: Call, cache: int = CACHE, threads: int = 1) -> list[tuple[int, int]]:
    found = chains.find_chains(calls, (cache,), threads)
    assert [place for chain in found for place in range(chain.first, chain.end)] == [*range(len(calls) if found else 0)]
    return [(chain.first, chain.end) for chain in found if chain.end > chain.first + 1]


def test_a_chain() -> None:
    """Three buffers of 1 MiB, in a cache of a third of it; or in a larger one, where launches have little to do."""
    for work_ns, together in ((1e6, ROWS // 9), (2e3, ROWS // 3)):
        calls = [call("wr", A, B, work_ns=work_ns)] * 49 + [call("wrr", C, A, B, threads=4 * ROWS, work_ns=work_ns)]
        assert chains.find_chains(calls, (CACHE // 3, CACHE), 1) == [chains.Chain(0, 50, ROWS, together, 50 * work_ns)]


def test_several_chains() -> None:
    other = call("", B, C)
    pair = [call("wr", A, B), call("wr", B, A)]
    assert ends(other, *pair, other, other, *pair, *pair, other) == [(1, 3), (5, 9)]
    assert ends(*pair) == [(0, 2)]


def test_what_is_written_is_read_elsewhere() -> None:
    assert ends(call("wr", A, B), call("ws", C, A)) == []
    assert ends(call("ws", A, B), call("wr", B, A)) == []  # and the other way round
    assert ends(call("ws", A, B), call("wsr", C, B, A), cache=4 << 20) == [(0, 2)]  # nobody writes to it


def test_memory_that_is_shared() -> None:
    """Of two buffers in one place the rows must lie in the same places: they do where both are equally long."""
    half, behind = buffer(A.address, A.nbytes // 2), buffer(A.address + 128)
    assert ends(call("wr", A, B), call("wr", C, A), call("wr", buffer(A.address), C)) == [(0, 3)]
    for other in (half, behind):
        assert ends(call("wr", A, B), call("wr", C, A), call("wr", other, C)) == [(0, 2)]


def test_what_is_bound_later_is_apart() -> None:
    x, y = buffer(0), buffer(0)
    assert ends(call("wr", A, x), call("wr", y, A)) == [(0, 2)]
    assert ends(call("wr", x, A), call("ws", B, x)) == []


def test_what_does_not_pay() -> None:
    x = call("wr", A, B)
    assert ends(x, call("wr", C, buffer(4 << 30))) == []  # nothing in common
    assert ends(x, call("wr", C, A, threads=3)) == []  # no parts in common
    assert ends(x, call("wr", C, A), threads=ROWS) == []  # too few for so many threads
    assert ends(x, call("wrs", C, A, buffer(4 << 30, CACHE))) == []  # for each part a whole cache is read
    assert ends(x, call("wrs", C, B, A), cache=4 << 20) == []  # A is read elsewhere
    shared = buffer(5 << 30, 64)
    assert ends(call("wrs", A, B, shared), call("wrs", C, buffer(4 << 30), shared)) == []  # no rows in common
    assert ends(*[call("wr", A, B, work_ns=6e4, threads=1 << 14)] * 2, cache=1 << 10) == []  # too little at a time
    assert ends(*[call("wr", A, B, work_ns=1e4)] * 2) == []


@pytest.fixture
def eager_chains(monkeypatch: pytest.MonkeyPatch) -> list[chains.Chain]:
    """What is found from here on."""
    seen: list[chains.Chain] = []

    def look(calls: Sequence[Call], caches: Sequence[int], threads: int) -> list[chains.Chain]:
        seen.extend(found := chains.find_chains(calls, caches, threads))
        return found

    monkeypatch.setattr(ops_llvm, "find_chains", look)
    monkeypatch.setattr(chains, "_WORTH_NS", 0.0)
    return seen


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int16", "float64"])
def test_sorted_rows(eager_chains: list[chains.Chain], threads: int, dtype: str) -> None:
    with Context(DEVICE="LLVM", THREADS=threads):
        rng = np.random.default_rng(0)
        sort = jit(lambda x: x.sort(-1)[0])
        for _ in range(4):  # the last ones are replays, on other memory each
            x = (rng.standard_normal((96, 256)) * 1000).astype(dtype)
            np.testing.assert_array_equal(sort(Tensor(x)).numpy(), np.sort(x, -1))
    assert any(chain.end - chain.first > 4 for chain in eager_chains)


def test_equal_with_and_without(eager_chains: list[chains.Chain], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, for rows that go through several kernels."""

    def steps(x: Tensor, w: Tensor) -> Tensor:
        y = x
        for _ in range(4):
            y = ((y.softmax(-1) + w).contiguous().cumsum(-1) - y).contiguous()
        return y.sort(-1)[0]

    with Context(DEVICE="LLVM", THREADS=2):
        x, w = Tensor.randn(256, 320).realize(), Tensor.randn(320).realize()
        chained = steps(x, w).numpy()
        assert eager_chains
        monkeypatch.setattr(ops_llvm, "find_chains", lambda *_: [])
        np.testing.assert_array_equal(steps(x, w).numpy(), chained)


def test_updates_in_place(eager_chains: list[chains.Chain]) -> None:
    """A tensor that is written in place between readers of its rows."""
    with Context(DEVICE="LLVM", THREADS=2):
        state, wanted = Tensor.zeros(128, 256).contiguous().realize(), np.zeros((128, 256), np.float32)
        x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)

        @jit
        def step(given: Tensor) -> Tensor:
            y = (given.sort(-1)[0] + state).contiguous()
            state.assign(y * 2)
            return (state + y.flip(1)).contiguous().sort(-1)[0]

        for _ in range(4):
            y = np.sort(x, -1) + wanted
            wanted = y * 2
            np.testing.assert_array_equal(step(Tensor(x)).numpy(), np.sort(wanted + y[:, ::-1], -1))
            np.testing.assert_array_equal(state.numpy(), wanted)
    assert eager_chains


def test_times_are_those_of_each_kernel(eager_chains: list[chains.Chain]) -> None:
    """Who asks for times has the launches run one after the other."""
    with Context(DEVICE="LLVM"):
        x = Tensor.randn(64, 64).realize()
        seen: list[Batch] = []
        device = get_device("LLVM")
        assert isinstance(device, ops_llvm.LlvmDevice)
        prepare = device.prepare
        try:
            device.prepare = lambda calls: seen.append(prepare(calls)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
            sort = jit(lambda x: x.sort(-1)[0])
            for _ in range(3):
                sort(x)
        finally:
            del device.prepare
        batch = seen[-1]  # of the captured call; eager plans are prepared too, to see whether they have chains
        assert len(batch.run(is_timed=True)) == len(batch.calls) > 4
