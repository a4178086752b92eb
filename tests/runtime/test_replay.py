"""What realize launches is recorded, and runs again on other buffers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernmill import Context, Tensor
from kernmill.captures.ownership import buffer_of
from kernmill.ir import IndexRangeError, KernmillError, dtypes
from kernmill.runtime import Buffer, Recording, Replay, allocate_buffer, copy_between, current_recording, recording


def real(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32)).realize()


def memory(tensor: Tensor) -> Buffer:
    found = buffer_of(tensor)
    assert found is not None
    return found


def like(buffer: Buffer) -> Buffer:
    return allocate_buffer(buffer.device, buffer.dtype, buffer.numel)


def test_a_replay_works_on_other_buffers(device: str) -> None:
    with Context(DEVICE=device):
        x = real(1, 2, 3)
        with recording() as recorded:
            y = ((x * 2).realize() + 1).realize()
        assert recorded.kernel_count == 2
        assert id(memory(y)) in recorded.written()
        assert id(memory(x)) not in recorded.written()
        assert {id(memory(x)), id(memory(y))} <= {id(buffer) for buffer in recorded.buffers()}
        replay = Replay(recorded, [memory(x), memory(y)])
        assert replay.kernel_count == 2
        assert replay.kept_bytes >= replay.least_bytes >= 12  # x * 2
        first = y.numpy().copy()
        for start in (10, 20, 20):
            given, out = real(start, start + 1, start + 2), like(memory(y))
            replay.run([memory(given), out])
            np.testing.assert_array_equal(out.host_array(), given.numpy() * 2 + 1)
        np.testing.assert_array_equal(y.numpy(), first)


def test_what_does_not_move_is_kept(device: str) -> None:
    with Context(DEVICE=device):
        x, constant = real(1, 2), real(10, 20)
        with recording() as recorded:
            y = (x * constant).realize()
        replay = Replay(recorded, [memory(x), memory(y)])
        del recorded, constant
        out = like(memory(y))
        replay.run([memory(real(3, 4)), out])
        np.testing.assert_array_equal(out.host_array(), [30, 80])


def test_copies_are_recorded(device: str) -> None:
    other = "PYTHON" if device == "LLVM" else "LLVM"
    with Context(DEVICE=device):
        x = real(1, 2)
        with recording() as recorded:
            y = ((x + 1).to(other) * 2).realize()
        assert (y.device, recorded.kernel_count) == (other, 2)
        assert len(list(recorded.uses())) == 3
        replay = Replay(recorded, [memory(x), memory(y)])
        out = like(memory(y))
        replay.run([memory(real(5, 6)), out])
        np.testing.assert_array_equal(out.host_array(), [12, 14])


def test_a_copy_between_buffers_that_move(device: str) -> None:
    source, target = (allocate_buffer(device, dtypes.float32, 2) for _ in range(2))
    recorded = Recording()
    recorded.add_copy(target, source)
    replay = Replay(recorded, [source, target])
    assert (replay.kernel_count, replay.kept_bytes) == (0, 0)
    given, out = memory(real(7, 8)), like(target)
    replay.run([given, out])
    np.testing.assert_array_equal(out.host_array(), [7, 8])
    empty = allocate_buffer(device, dtypes.float32, 0)
    copy_between(empty, empty)


def test_a_failing_check_raises(device: str) -> None:
    with Context(DEVICE=device):
        x, places = real(1, 2, 3), Tensor([0, 2]).realize()
        with recording() as recorded:
            y = x[places].realize()
        replay = Replay(recorded, [memory(places), memory(y)])
        out = like(memory(y))
        replay.run([memory(Tensor([1, 1]).realize()), out])
        np.testing.assert_array_equal(out.host_array(), [2, 2])
        with pytest.raises(IndexRangeError):
            replay.run([memory(Tensor([1, 3]).realize()), out])
        replay.run([memory(places), out])
        np.testing.assert_array_equal(out.host_array(), [1, 3])


def test_a_recording_belongs_to_one_thread_and_is_not_nested() -> None:
    seen: list[Recording | None] = []
    with recording() as recorded:
        assert current_recording() is recorded
        with pytest.raises(KernmillError, match="already recording"), recording():
            pass
        assert current_recording() is recorded
        thread = threading.Thread(target=lambda: seen.append(current_recording()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert current_recording() is None
    with pytest.raises(ValueError, match="mine"), recording():
        raise ValueError("mine")
    assert current_recording() is None
