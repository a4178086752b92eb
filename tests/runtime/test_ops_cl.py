"""CL: host memory without copies, memory of the driver, replays, several devices, forks, errors."""

from __future__ import annotations

import importlib
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernmill import Context, Tensor, jit
from kernmill.ir import CompileError, DeviceError, DTypeError, Ops, OutOfMemoryError, Target, UOp, dtypes
from kernmill.renderers import MMA_UNITS, OpenCLRenderer
from kernmill.runtime import Buffer, allocate_buffer, cl_driver, get_device, ops_cl, upload
from tests.compiler.kernels import data, matmul, softmax
from tests.renderers.language import has, lacks, render_with
from tests.renderers.mma_stand_in import put_in
from tests.runtime.processes import run, start

F32 = np.float32


def opened(name: str) -> Any:
    return get_device(name)


@pytest.fixture(params=["cpu", "gpu", "igpu"])
def driver_memory(
    request: pytest.FixtureRequest, opencl: str, monkeypatch: pytest.MonkeyPatch, closed_devices: None
) -> Any:
    """The device, taken for one with memory of its own; as a GPU also with kernels that are grids of work-items, and
    with memory that the host sees while it is mapped."""
    real = cl_driver.facts_of
    changed = {"is_unified": request.param == "igpu", "kind": request.param}
    monkeypatch.setattr(ops_cl, "facts_of", lambda handle: replace(real(handle), **changed))
    device = opened("CL")
    monkeypatch.setattr(device.memory, "facts", device.facts)  # of the session, which is older
    return device


# --- memory ----------------------------------------------------------------------------------------------------------
def test_kernels_work_on_the_hosts_own_memory(opencl: str) -> None:
    device = opened(opencl)
    if not device.facts.is_host_memory:
        pytest.skip("this device has memory of its own")
    array = np.arange(4096, dtype=F32)
    node = upload(array, dtypes.float32, opencl, borrow=True)
    assert node.storage.address == array.ctypes.data
    assert device.place(node.storage)[0] is device.place(node.storage)[0]
    buffer = allocate_buffer(opencl, dtypes.float32, 64)
    memory, offset = device.place(buffer)
    assert (offset, device.place(buffer)[0]) == (0, memory)


def test_memory_of_the_driver(driver_memory: Any) -> None:
    assert not driver_memory.props().is_host_visible
    rng = np.random.default_rng(0)
    x = rng.standard_normal((33, 47), F32)
    with Context(DEVICE="CL"):
        tensor = Tensor(x)
        many = ((tensor.softmax(1) @ tensor.T).relu() + 1.0).sum(0)  # intermediates lie in one arena
        soft = np.exp(x - x.max(1, keepdims=True))
        soft /= soft.sum(1, keepdims=True)
        np.testing.assert_allclose(many.numpy(), (np.maximum(soft @ x.T, 0) + 1).sum(0), rtol=1e-5)
        state = Tensor.zeros(5).contiguous().realize()
        state.assign(state + 2).realize()
        assert state.tolist() == [2] * 5
    assert driver_memory.memory.held_bytes()[0] > 0


def test_a_device_opened_for_another_target_waits_for_the_same_copies(driver_memory: Any) -> None:
    for turn in range(8):
        with Context(DEVICE="CL"):
            x = Tensor(np.full(1 << 20, turn, F32))
            with Context(TARGET="gpu" if driver_memory.kind == "cpu" else "cpu"):
                other = opened("CL")
                y, target = (x + 1).realize(), other.target
            assert float(y.max().item()) == turn + 1
    assert other is not driver_memory
    assert target != driver_memory.target
    assert (other.memory, other.lock) == (driver_memory.memory, driver_memory.lock)


def test_a_replay_on_memory_of_the_driver(driver_memory: Any) -> None:
    with Context(DEVICE="CL"):
        step = jit(lambda a, b: ((a * b).sum(1), (a - b).relu()))
        for turn in range(5):
            a, b = (np.full((8, 16), turn + n, F32) for n in (1, 2))
            total, rest = step(Tensor(a), Tensor(b))
            np.testing.assert_array_equal(total.numpy(), (a * b).sum(1))
            np.testing.assert_array_equal(rest.numpy(), np.maximum(a - b, 0))


def test_a_buffer_above_the_limit_is_refused_by_its_size(opencl: str) -> None:
    device = opened(opencl)
    with pytest.raises(OutOfMemoryError, match=r"CL: a buffer of .* bytes exceeds the largest allocation"):
        device.allocator.alloc(device.facts.max_alloc_bytes + 1)
    if device.facts.is_host_memory:  # an array of the host's as well
        large = Buffer("CL", dtypes.uint8, device.facts.max_alloc_bytes + 1, np.zeros(1), 4096, is_borrowed=True)
        with pytest.raises(OutOfMemoryError, match=r"exceeds the largest allocation .* Use smaller tensors"):
            device.place(large)
    with Context(DEVICE=opencl):
        assert Tensor([1.0]).add(1).tolist() == [2]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_an_arena_above_the_limit_is_many_buffers(
    kind: str, opencl: str, monkeypatch: pytest.MonkeyPatch, closed_devices: None
) -> None:
    """What lies in it is smaller; in a capture as well."""
    real = cl_driver.facts_of
    changed: dict[str, Any] = {"kind": kind, "is_unified": kind == "cpu", "max_alloc_bytes": 40_000}
    monkeypatch.setattr(ops_cl, "facts_of", lambda handle: replace(real(handle), **changed))
    x = np.random.default_rng(3).standard_normal((90, 90), F32) / 10  # 32,400 bytes

    def chain(a: Any) -> Any:
        b = a @ a
        return (b @ a) @ (b @ b) + b

    with Context(DEVICE="CL"):
        asked: list[int] = []
        device = opened("CL")
        allocate = device.allocator.alloc

        def noted(size: int) -> Any:
            asked.append(size)
            return allocate(size)

        monkeypatch.setattr(device.allocator, "alloc", noted)
        monkeypatch.setattr(device.allocator, "most_bytes", 40_000)  # one for all that are opened of a device
        step = jit(lambda a: chain(a).sum(0))
        for turn in range(4):
            given = x + F32(turn)
            np.testing.assert_allclose(step(Tensor(given)).numpy(), chain(given.astype(float)).sum(0), rtol=1e-4)
        assert max(asked) == x.nbytes
        with pytest.raises(
            OutOfMemoryError, match=r"a buffer of 64,800 bytes exceeds the largest allocation \(40,000 bytes\)"
        ):
            Tensor.cat(Tensor(x), Tensor(x)).realize()
        assert Tensor([1.0]).add(1).tolist() == [2]


SMALL = """
from kernmill import Tensor
rng = np.random.default_rng(1)
def check(got, want):
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
a, b = rng.standard_normal((37, 29)).astype(np.float32), rng.standard_normal((29, 53)).astype(np.float32)
x, y = Tensor(a), Tensor(b)
"""
GROUPED = {
    "product": "check(x @ y, a @ b)",
    "sums": "check(x.sum(0), a.sum(0)); check(Tensor(b.reshape(-1)).sum(), b.sum()); check(y.max(1), b.max(1))",
    "rows": "e = np.exp(b - b.max(1, keepdims=True)); check(y.softmax(1), e / e.sum(1, keepdims=True))",
    "turned": "z = Tensor(b.T.copy()); check(x.T.contiguous(), a.T); check(y + z.T, b + b)",
    "attention": """
q = rng.standard_normal((1, 2, 20, 8)).astype(np.float32)
s = q @ q.swapaxes(2, 3) / 8**0.5
w = np.exp(s - s.max(-1, keepdims=True))
check(Tensor(q).scaled_dot_product_attention(Tensor(q), Tensor(q)), w / w.sum(-1, keepdims=True) @ q)
""",
    "captured": """
from kernmill import jit
step = jit(lambda a, b: ((a @ b).sum(1), (a @ b).softmax(0)))
for turn in range(4):
    total, soft = step(Tensor(a + turn), Tensor(b))
    check(total, ((a + turn) @ b).sum(1))
    check(soft.sum(0), np.ones(53))
""",
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_work_items(name: str, opencl: str) -> None:
    """Each in a process of its own with a limit: drivers for CPUs have been seen to hang on barriers, or to end."""
    code = f"{SMALL}{GROUPED[name]}\nprint(get_device().target.name)"
    assert run(code, DEVICE="CL", TARGET="gpu", POCL_CACHE_DIR=os.environ["POCL_CACHE_DIR"])[0].startswith(
        "opencl-gpu-"
    )


def test_a_group_that_the_driver_finds_too_large_is_made_smaller(opencl: str) -> None:
    """As drivers do that run out of registers: refused when loaded, then when launched."""
    code = f"""{SMALL}
device = get_device()
kernel = type(device.load("k", device.compile("k", "__kernel void k(long n) {{}}")).handle)
ops_cl, real, enqueued = sys.modules[kernel.__module__], kernel.__init__, sys.modules[kernel.__module__]._Launch.enqueue
refused = []
def load(self, device, program, name):
    real(self, device, program, name)
    if self.group[0] > 64:
        refused.append(self.group[0])
        raise ops_cl.GroupTooLarge("too many")
def launch(self, *is_timed):
    if self.group[0] > 16:
        refused.append(-self.group[0])
        raise device.cl.RuntimeError("out of resources") from None
    return enqueued(self, *is_timed)
device.cl.RuntimeError.code = -5
kernel.__init__, ops_cl._Launch.enqueue = load, launch
big = rng.standard_normal((3, 2000)).astype(np.float32)
check(Tensor(big).sum(1), big.sum(1))
check(Tensor(big).sum(1), big.sum(1))
print(refused)
"""
    assert run(code, DEVICE="CL", TARGET="gpu", CACHE="0")[0] == "[256, 128, -64, -32]\n"


def test_too_many_arguments_are_a_sentence(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened(opencl)
    stored = device.compile("k", "__kernel void k(long a, long b, long c) {}")
    assert device.load("k", stored)
    limited = replace(device.facts, parameter_bytes=16, platform="Boards")
    monkeypatch.setattr(device, "facts", limited)
    with pytest.raises(CompileError, match=r"its arguments have 24 bytes, and .* takes 16\. Realize some"):
        device.load("k", stored)


def test_what_is_on_its_way_to_the_device_is_a_copy(driver_memory: Any) -> None:
    with Context(DEVICE="CL"):
        array = np.zeros(1000, F32)
        for turn in range(20):
            array[:] = turn
            tensor = Tensor(array).realize()
            array[:] = -1
            assert (tensor + 1).numpy().tolist() == [turn + 1] * 1000


def test_a_copy_to_the_device_goes_beside_its_kernels(driver_memory: Any) -> None:
    """Kernels are held up by an event of ours: what is fresh is copied nevertheless, what they use is not."""
    cl, memory = driver_memory.cl, driver_memory.memory
    gate = cl.UserEvent(driver_memory.context)
    done = cl.command_execution_status.COMPLETE
    with Context(DEVICE="CL"):
        used = Tensor(np.zeros(5000, F32)).realize()
        (used + 1).realize()
        memory.last = cl.enqueue_barrier(driver_memory.queue, wait_for=[gate])
        (used + 2).realize()
        fresh = Tensor(np.arange(70_000, dtype=F32)).realize()
        if driver_memory.facts.is_unified:  # the host writes, and waits until it may
            opened: list[bool] = []

            def release() -> None:
                opened.append(True)
                gate.set_status(done)

            threading.Timer(0.2, release).start()
        else:
            memory.waits[-1].wait()
        driver_memory.copy_in(used.uop.storage, memoryview(bytearray(20_000)))
        if driver_memory.facts.is_unified:
            assert opened
        else:
            assert memory.waits[-1].command_execution_status != done
            gate.set_status(done)
        assert (fresh + 1).numpy()[:3].tolist() == [1, 2, 3]
        del used, fresh


def test_memory_that_is_given_back_is_not_overwritten_under_its_last_kernel(driver_memory: Any) -> None:
    """A block goes from hand to hand while kernels are held up; the copy into it waits for them."""
    cl, memory = driver_memory.cl, driver_memory.memory
    gate = cl.UserEvent(driver_memory.context)
    with Context(DEVICE="CL"):
        first = Tensor(np.full(7777, 3, F32)).realize()
        block = first.uop.storage.block
        memory.last = cl.enqueue_barrier(driver_memory.queue, wait_for=[gate])
        result = (first * 2).realize()
        del first
        release = threading.Timer(0.2, gate.set_status, [cl.command_execution_status.COMPLETE])
        release.start()
        again = Tensor(np.full(7777, 5, F32)).realize()
        assert again.uop.storage.block is block
        release.join()
        assert result.numpy().tolist() == [6] * 7777
        assert again.numpy().tolist() == [5] * 7777


def test_what_was_enqueued_before_a_failure_is_waited_for(driver_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is given back after it remembers the kernels that run."""
    from kernmill.runtime import recording

    with Context(DEVICE="CL"):
        x = Tensor(np.ones(40, F32)).realize()
        with recording() as recorded:
            (x * 2).realize()
        step: Any = recorded.steps[0]
        done: list[Any] = []
        real = driver_memory.launch

        def launch(call: Any, is_timed: bool) -> Any:
            if done:
                raise driver_memory.cl.LogicError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")
            done.append(real(call, is_timed))
            return done[0]

        monkeypatch.setattr(driver_memory, "launch", launch)
        with pytest.raises(DeviceError, match="restart the program"):
            driver_memory.run(step.calls * 2)
        assert driver_memory.memory.last is done[0]


@pytest.fixture
def shared_memory(driver_memory: Any) -> Any:
    """The device, taken for a GPU that works on the host's memory."""
    if not driver_memory.facts.is_unified:
        pytest.skip("its memory is its own")
    return driver_memory


def test_shared_memory_is_mapped_and_not_copied(shared_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy has is read where it lies; a result is seen where it lies, as long as a view of it lives."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(shared_memory.cl, "enqueue_copy", refuse)
    array = np.arange(5000, dtype=F32)
    with Context(DEVICE="CL"):
        lent, taken = Tensor.from_numpy(array), Tensor(array)
        assert lent.uop.storage.address == array.ctypes.data
        result = (lent + taken).realize()
        seen, again = result.numpy(), result.numpy()
        assert np.shares_memory(seen, again)
        assert result.uop.storage.is_exported
        np.testing.assert_array_equal(seen, array * 2)
        total = result.sum()  # kernels read what the host looks at
        result.assign(result + 1).realize()  # and do not write it
        np.testing.assert_array_equal(seen, array * 2)
        np.testing.assert_array_equal(result.numpy(), array * 2 + 1)
        assert total.item() == (array * 2).sum()
        np.testing.assert_array_equal(lent.numpy(), array)
        assert Tensor.zeros(0).numpy().shape == (0,)
        np.testing.assert_array_equal(taken.to("LLVM").numpy(), Tensor(array, device="LLVM").to("CL").numpy())


def test_memory_that_was_seen_is_given_back_before_it_is_written(shared_memory: Any) -> None:
    memory = shared_memory.memory
    with Context(DEVICE="CL"):
        state = Tensor.zeros(3000).contiguous().realize()
        block = state.uop.storage.block
        for turn in range(5):
            assert state.numpy().tolist() == [turn] * 3000
            assert memory.unseen
            state.assign(state + 1).realize()  # in place: nobody looks any more
            assert not memory.seen
            assert state.uop.storage.block is block
        view = state.numpy()
        del state
        assert view.tolist() == [5] * 3000
        del view
        fresh = Tensor(np.full(3000, 7, F32))
        assert fresh.uop.storage.block is block
        assert fresh.numpy().tolist() == [7] * 3000


def test_a_copy_into_memory_of_the_host(driver_memory: Any) -> None:
    """What the device did not allocate has no block of its own: the copy waits for all kernels."""
    block, array = get_device("LLVM").allocate(64), np.zeros(64, np.uint8)
    for owner, address in ((SimpleNamespace(block=block), block.address), (array, array.ctypes.data)):
        whole = Buffer("CL", dtypes.int32, 16, owner, address)
        for buffer in (whole, Buffer("CL", dtypes.int32, 8, whole, address + 32)):
            values = np.arange(buffer.numel, dtype=np.int32)
            driver_memory.copy_in(buffer, values.data.cast("B"))
            read = np.empty_like(values)
            driver_memory.copy_out(read.data.cast("B"), buffer)
            assert read.tolist() == values.tolist()


def test_opening_it_loads_nothing_of_llvm(opencl: str) -> None:
    code = """
get_device("CL").details()
print(sorted(m for m in sys.modules if "llvmlite" in m or m.endswith(("amx_trial", "ops_llvm", "renderers.llvm"))))
"""
    assert run(code)[0] == "[]\n"


def on_two_devices(code: str) -> str:
    """What a program prints for which the CPU is two devices."""
    both = {"POCL_DEVICES": "pthread pthread"}
    if run("from kernmill.runtime import device_indices; print(len(device_indices('CL')))", None, **both)[0] != "2\n":
        pytest.skip("the driver does not offer the CPU twice")
    return run(code, None, DEVICE="CL", **both)[0]


def test_devices_of_one_driver_copy_without_the_host(opencl: str) -> None:
    """Two devices with memory of their own, as GPUs are; the source is given back and used again at once."""
    code = """
from dataclasses import replace
from kernmill import Context, Tensor, jit
from kernmill.runtime import cl_driver, ops_cl
real = cl_driver.facts_of
ops_cl.facts_of = lambda handle: replace(real(handle), is_unified=False)
first, second = get_device("CL"), get_device("CL:1")
assert first.context is second.context and first.queue is not second.queue
def refuse(*_):
    raise AssertionError("by way of the host")
reads, writes = first.memory.read, second.memory.write
first.memory.read = second.memory.write = refuse
good = []
for turn in range(8):
    a = Tensor(np.full(3000, turn, np.float32), device="CL") * 2
    b = a.to("CL:1") + 1
    b.realize()
    del a
    c = Tensor(np.full(3000, -1, np.float32), device="CL").realize()
    good.append(b.numpy().tolist() == [2 * turn + 1] * 3000)
step = jit(lambda a: (a * 3).to("CL:1") + 1)
for turn in range(4):
    good.append(step(Tensor(np.full(30, turn, np.float32), device="CL")).numpy().tolist() == [3 * turn + 1] * 30)
first.memory.read, second.memory.write = reads, writes
good.append((b.to("CL") + 1).numpy().tolist() == [2 * 7 + 2] * 3000)
good.append((b.to("LLVM") + 1).numpy().tolist() == [2 * 7 + 2] * 3000)
print(all(good))
"""
    assert on_two_devices(code) == "True\n"


def test_a_copy_reads_a_device_whose_memory_is_mapped_no_more(opencl: str) -> None:
    """What was written to the source by the host is given back first; views of one tensor are one map."""
    code = """
import weakref
from dataclasses import replace
from kernmill import Tensor
from kernmill.runtime import cl_driver, ops_cl
real = cl_driver.facts_of
ops_cl.facts_of = lambda handle: replace(real(handle), is_unified=True, kind="igpu")
first, second = get_device("CL"), get_device("CL:1")
mapped, copy = [], second.cl.enqueue_copy
def enqueue_copy(queue, *arguments, **options):
    mapped.append(len(first.memory.seen))
    return copy(queue, *arguments, **options)
second.cl.enqueue_copy = enqueue_copy
source = Tensor(np.arange(3000, dtype=np.float32), device="CL").realize()
good = source.to("CL:1").numpy().tolist() == list(range(3000))
second.cl.enqueue_copy = copy
held, before = source.numpy(), len(weakref.finalize._registry)
good &= all(source.numpy()[7] == 7 for _ in range(20)) and len(weakref.finalize._registry) == before
print(good, mapped)
"""
    assert on_two_devices(code) == "True [0]\n"


# --- programs --------------------------------------------------------------------------------------------------------
def test_a_build_that_fails_shows_its_line(opencl: str) -> None:
    with pytest.raises(CompileError, match=r"(?s)kernel k: the driver of .*\n +2 \| +b\[0\] = nothing;\n +\^"):
        opened(opencl).compile("k", "__kernel void k(__global float *b) {\n  b[0] = nothing;\n}\n")


def test_a_warm_start_takes_the_stored_program(opencl: str, tmp_path: Path) -> None:
    code = """
x = leaf(np.arange(40, dtype=np.float32))
print(value(x * 3.0)[:3].tolist(), counters.compiled, counters.from_disk)
"""
    assert run(code, tmp_path, DEVICE="CL")[0] == "[0.0, 3.0, 6.0] 1 0\n"
    assert run(code, tmp_path, DEVICE="CL")[0] == "[0.0, 3.0, 6.0] 0 1\n"


def test_assembly_is_text_or_nothing(opencl: str) -> None:
    text = opened(opencl).assembly("__kernel void k(__global float *b, long o, long chunk) { b[0] = 1.0f; }")
    assert text.isascii()
    assert opened(opencl).facts.platform != "Portable Computing Language" or text == ""


def test_the_drivers_version_is_part_of_the_key(opencl: str) -> None:
    device = opened(opencl)
    for part in (device.facts.version, device.facts.name, device.facts.platform):
        assert part in device.cache_tag()


def test_the_bindings_own_cache_is_off(opencl: str) -> None:
    code = "get_device('CL'); import pyopencl; print(pyopencl._PYOPENCL_NO_CACHE)"
    assert run(code)[0] == "True\n"


# --- running ---------------------------------------------------------------------------------------------------------
def test_kernels_are_timed_by_events(opencl: str) -> None:
    with Context(DEVICE=opencl):
        x = Tensor(np.ones(1 << 16, F32)).realize()
        with Context(DEBUG=0):
            from kernmill.runtime import recording

            with recording() as recorded:
                (x * 2).realize()
    step: Any = recorded.steps[0]
    (time_ns,) = get_device(opencl).run(step.calls, is_timed=True)
    assert 0 < time_ns < 1_000_000_000


def test_several_threads_share_a_program(opencl: str) -> None:
    import threading

    wrong: list[int] = []

    def work(number: int) -> None:
        with Context(DEVICE=opencl):
            for turn in range(10):
                array = np.full(300, number * 10 + turn, F32)
                if (Tensor(array) * 2 + 1).numpy().tolist() != (array * 2 + 1).tolist():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_devices_of_one_driver(opencl: str) -> None:
    code = """
from kernmill import Tensor
a = Tensor(np.arange(6, dtype=np.float32), device="CL") * 2
b = a.to("CL:1") + 1
print(b.numpy().tolist(), b.device)
"""
    assert on_two_devices(code) == "[1.0, 3.0, 5.0, 7.0, 9.0, 11.0] CL:1\n"


def test_a_forked_child_is_told_what_to_do(opencl: str) -> None:
    code = """
import os
from kernmill import Tensor
from kernmill.ir import DeviceError
x = Tensor([1.0, 2.0], device="CL").realize()
child = os.fork()
if not child:
    try:
        (x + 1).realize()
    except DeviceError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print((x + 1).tolist())
"""
    process = start(code)
    out, err = process.communicate(timeout=120)
    assert 'set_start_method("spawn")' in out, err
    assert out.endswith("[2.0, 3.0]\n")


def test_a_lost_device_is_a_sentence(opencl: str) -> None:
    device = opened(opencl)
    with pytest.raises(DeviceError, match="restart the program"), device.told():
        raise device.cl.LogicError("clFinish failed: INVALID_COMMAND_QUEUE")


def test_a_driver_error_in_a_copy_is_a_sentence(driver_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(DEVICE="CL"):
        x = Tensor(np.zeros(5, F32)).realize()

        def fail(*_: Any, **__: Any) -> None:
            raise driver_memory.cl.LogicError("clEnqueueReadBuffer failed: DEVICE_NOT_AVAILABLE")

        with monkeypatch.context() as patch:
            patch.setattr(driver_memory.memory, "read", fail)
            patch.setattr(driver_memory.memory, "map", fail)
            with pytest.raises(DeviceError, match=r"CL: .* failed \(clEnqueueReadBuffer.*restart the program"):
                x.numpy()
        assert x.tolist() == [0] * 5


def test_a_device_that_cannot_be_opened_is_a_sentence(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened(opencl)

    def fail(*_: Any) -> None:
        raise device.cl.LogicError("clCreateContext failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(ops_cl, "_session", fail)
    with pytest.raises(DeviceError, match=r"CL: .* cannot be opened \(clCreateContext failed.*Choose another"):
        ops_cl.ClDevice("CL", 0)


def test_bytes_that_lie_apart(opencl: str) -> None:
    """Named regression: a vector of 32 bytes was read whole, and the language has 16 lanes at most."""
    x = np.arange(3 * 33, dtype=np.int8).reshape(3, 33)
    with Context(DEVICE=opencl):
        for step in (2, 3):
            np.testing.assert_array_equal((Tensor(x)[:, ::step] + 1).numpy(), x[:, ::step] + 1)
            np.testing.assert_array_equal(Tensor(x)[:, ::step].contiguous().numpy(), x[:, ::step])


# --- capabilities ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_without_float64_only_float64_is_refused(
    kind: str, opencl: str, monkeypatch: pytest.MonkeyPatch, closed_devices: None
) -> None:
    """Nor float16, fused products and exact division: what float32 programs need is made of what there is."""
    real, missing = cl_driver.facts_of, ("has_float64", "has_float16", "has_fma", "divides_correctly")
    changed: dict[str, Any] = {"kind": kind, "is_unified": kind == "cpu", **dict.fromkeys(missing, False)}
    monkeypatch.setattr(ops_cl, "facts_of", lambda handle: replace(real(handle), **changed))
    x = np.linspace(-9000, 9000, 60, dtype=F32).reshape(4, 15)
    with Context(DEVICE="CL"):
        np.testing.assert_allclose(Tensor(x).sin().numpy(), np.sin(x.astype(float)), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(Tensor(x).cos().numpy(), np.cos(x.astype(float)), rtol=1e-6, atol=1e-7)
        assert np.isfinite(Tensor.randn(40).numpy()).all()
        half = x.astype(np.float16)
        np.testing.assert_array_equal((Tensor(half) + 1).numpy(), half + np.float16(1))
        np.testing.assert_array_equal((Tensor(x.astype(np.int64)) // 7).numpy(), x.astype(np.int64) // 7)
        assert Tensor([-(2**62), 1, 2**62, 2]).mean().item() == 0.75
        with pytest.raises(DTypeError, match=r"the device has no float64\. Bring float32 to it"):
            (Tensor(x.astype(np.float64)) + 1).numpy()
        assert Tensor([1.0]).add(1).tolist() == [2]


def facts(**changes: Any) -> Any:
    plain = cl_driver.ClFacts(
        name="board", platform="Boards", version="1", kind="cpu", extensions=(), total_bytes=1 << 30,
        max_alloc_bytes=1 << 28, local_bytes=1 << 15, max_group=256,
        parameter_bytes=1024, units=4, float_lanes=16, step_items=0,
        is_unified=True, has_float64=True, has_float16=True, divides_correctly=True, has_fma=True,
    )  # fmt: skip
    return replace(plain, **changes)


def test_capabilities_make_the_target() -> None:
    full: Target = ops_cl.cl_target(facts())
    assert (full.vector_bytes, full.vector_registers, full.name) == (64, 32, "opencl-cpu-512")
    small = ops_cl.cl_target(facts(float_lanes=8, has_float64=False, has_float16=False, has_fma=False))
    assert (small.vector_bytes, small.vector_registers) == (32, 16)
    assert not {dtypes.float64, dtypes.float16} & small.storage_dtypes
    assert Ops.FMA not in small.ops
    assert small.name == "opencl-cpu-256-no-float16-no-float64"
    gpu = ops_cl.cl_target(facts(kind="gpu", max_group=1000))
    assert (gpu.vector_bytes, gpu.group_items, gpu.local_bytes, gpu.has_threads) == (16, 256, 1 << 15, False)
    assert ops_cl.cl_target(facts(max_group=100), "gpu").name == "opencl-gpu-64-32-128"
    assert ops_cl.cl_target(facts(kind="gpu"), "cpu").group_items == 0
    assert (full.most_lanes, full.dots) == (16, frozenset())
    dots = ops_cl.cl_target(facts(), plain=("dots",))
    assert (dots.most_lanes, dots.dots, dots.dot_most) == (64, frozenset({(dtypes.uint8, dtypes.int8)}), 127)
    plain = ops_cl.cl_target(facts(), plain=("load", "fma"))
    assert (plain.name, plain.plain) == ("opencl-cpu-512-fma-load", frozenset({"fma", "load"}))


PRODUCT = matmul(data(0, 256, 256), data(1, 256, 256))
HALVES = data(0, 4096, dtype=dtypes.float16) + 1.0
ROWS = softmax(data(0, 64, 2048))
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], UOp, str, str]] = {
    "float16": ({}, {"has_float16": False}, HALVES, "__global half *", "__global ushort *"),
    "float32 fma": ({}, {"has_fma": False}, PRODUCT, "= fma(", "#pragma OPENCL FP_CONTRACT OFF"),
    "vector width": ({"float_lanes": 16}, {"float_lanes": 8}, PRODUCT, "float16 ", "float8 "),
    "type": ({}, {"kind": "gpu"}, PRODUCT, "get_global_id", "__local float "),
    "items of a group": ({"kind": "gpu"}, {"kind": "gpu", "max_group": 16}, PRODUCT, "size(64,", "size(16,"),
    "local memory": ({"kind": "gpu"}, {"kind": "gpu", "local_bytes": 8192}, ROWS, "__local float", "get_global_id"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_capability_changes_the_code(name: str) -> None:
    """With it and without: a part of the text that only the one has, and one that the other has."""
    before, after, graph, one, other = CHANGES[name]
    texts = [render_with(OpenCLRenderer, graph, None, ops_cl.cl_target(facts(**fact))) for fact in (before, after)]
    has(texts[0], one)
    lacks(texts[1], one)
    has(texts[1], other)


# --- a matrix unit ----------------------------------------------------------------------------------------------------
NVIDIAS: dict[str, Any] = {"step_items": 32, "kind": "gpu", "is_unified": False}
NVIDIAS["extensions"] = ("cl_nv_device_attribute_query",)


def test_a_product_of_each_kind_is_right(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the trial but NVIDIA's instruction."""
    put_in(monkeypatch)
    assert {opened("CL").unit_fault(unit) for unit in MMA_UNITS} == {""}


def test_wrong_products_are_noticed(opencl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held = importlib.import_module("kernmill.renderers.opencl").HELD
    put_in(monkeypatch)
    monkeypatch.setattr(
        importlib.import_module("kernmill.renderers.opencl"),
        "HELD",
        (held[0], held[1]._replace(others=(32, 0)), held[2]),
    )
    assert opened("CL").unit_fault(MMA_UNITS[0]) == "its products are wrong"


def test_a_driver_that_refuses_the_instruction_gets_plain_kernels(
    opencl: str, monkeypatch: pytest.MonkeyPatch, closed_devices: None
) -> None:
    """And `kernmill info` says so."""
    real = cl_driver.facts_of
    monkeypatch.setattr(ops_cl, "facts_of", lambda handle: replace(real(handle), **NVIDIAS))
    device = opened("CL")
    assert device.target.units == ()
    said = next(line for line in device.details() if "matrix unit" in line)
    assert said.startswith("matrix unit: not used, the driver rejects its instruction: kernel check: the driver of")
    a = np.arange(32 * 32, dtype=F32).reshape(32, 32) % 7
    with Context(DEVICE="CL"):
        half = Tensor(a.astype(np.float16))
        np.testing.assert_array_equal((half.float() @ half.float()).numpy(), a @ a)


def test_a_unit_that_works_is_used(opencl: str, monkeypatch: pytest.MonkeyPatch, closed_devices: None) -> None:
    real = cl_driver.facts_of
    monkeypatch.setattr(ops_cl, "facts_of", lambda handle: replace(real(handle), name="another", **NVIDIAS))
    monkeypatch.setattr(ops_cl.ClDevice, "unit_fault", lambda *_: "")
    device = opened("CL")
    assert device.target.units == MMA_UNITS
    assert "-mma-" in device.target.name
    assert "matrix unit: float16, bfloat16" in device.details()
    assert "subgroups of 32" in device.details()[0]


def test_a_driver_that_warns_prints_nothing(opencl: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Clang counts its warnings on stderr, past the binding: ints compared with themselves are such a one."""
    device: Any = get_device(opencl)
    device.build("warned", "__kernel void warned(__global int *b) { int x = b[0]; b[1] = x == x; }")
    assert capfd.readouterr().err == ""
