"""Memory of tensors: views, exports, owners, and what an assignment may take over."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from kernmill.ir import KernmillError, assign, dtypes, reshape
from kernmill.runtime import Buffer, allocate_buffer, buffer_node, download, realize, upload

F32 = dtypes.float32


def test_a_view_keeps_the_memory(device: str) -> None:
    node = upload(np.arange(6, dtype=np.float32), F32, device)
    view = download(node)
    del node
    for _ in range(20):
        allocate_buffer(device, F32, 6).host_array()[:] = -1
    np.testing.assert_array_equal(view, np.arange(6))


def test_memory_goes_back_when_nobody_has_it(device: str) -> None:
    buffer = allocate_buffer(device, F32, 100)
    owner = weakref.ref(buffer)
    del buffer
    assert owner() is None


def test_a_piece_of_a_piece_lies_in_the_block_of_the_whole(device: str) -> None:
    whole = allocate_buffer(device, F32, 100)
    part = Buffer(device, F32, 10, whole, whole.address + 40)
    of_part = Buffer(device, F32, 5, part, part.address + 20)
    assert whole.whole is part.whole is of_part.whole is whole
    assert whole.block is not None
    assert whole.block is of_part.block
    assert whole.block.nbytes >= 400


def test_memory_of_others_lies_in_no_block() -> None:
    array = np.zeros(8, np.float32)
    node = upload(array, F32, "PYTHON", borrow=True)
    assert node.storage.block is None
    assert node.storage.whole is node.storage


def test_exported_tells_whether_a_view_is_alive(device: str) -> None:
    buffer = allocate_buffer(device, F32, 4)
    assert not buffer.is_exported
    view = buffer.host_array()
    part = view[1:3]
    assert buffer.is_exported
    del view
    assert buffer.is_exported
    del part
    assert not buffer.is_exported


def test_an_older_view_still_counts() -> None:
    """Two views, the younger one dies: the memory must not be written."""
    buffer = allocate_buffer("LLVM", F32, 4)
    first = buffer.host_array()
    second = buffer.host_array()
    del second
    assert buffer.is_exported
    assert first.size == 4


def test_an_assignment_does_not_write_into_a_view(device: str) -> None:
    x = reshape(upload(np.arange(6, dtype=np.float32), F32, device), (6,))
    view = download(x)
    changed = assign(x, x + 10.0)
    realize([changed])
    np.testing.assert_array_equal(view, np.arange(6))
    np.testing.assert_array_equal(download(changed), np.arange(6) + 10)


def test_an_assignment_writes_in_place_where_nobody_looks(device: str) -> None:
    x = upload(np.arange(6, dtype=np.float32), F32, device)
    address = x.storage.address
    changed = assign(x, x + 10.0)
    realize([changed])
    assert changed.storage.address == address
    np.testing.assert_array_equal(download(changed), np.arange(6) + 10)


def test_borrowed_memory_is_never_written(device: str) -> None:
    array = np.arange(6, dtype=np.float32)
    x = upload(array, F32, device, borrow=True)
    assert x.storage.is_borrowed
    changed = assign(x, x * 2.0)
    realize([changed])
    np.testing.assert_array_equal(array, np.arange(6))
    np.testing.assert_array_equal(download(changed), np.arange(6) * 2)


def test_reading_what_an_assignment_took_over_is_an_error(device: str) -> None:
    x = upload(np.arange(6, dtype=np.float32), F32, device)
    waiting = x * 3.0
    realize([assign(x, x + 1.0)])
    with pytest.raises(KernmillError, match="needs the old value of a tensor that was overwritten in place"):
        realize([waiting])


def test_an_expression_that_is_alive_keeps_the_old_value(device: str) -> None:
    x = upload(np.arange(6, dtype=np.float32), F32, device)
    waiting = x * 3.0
    realize([assign(x, x + 1.0)], lambda: [waiting])
    realize([waiting])
    np.testing.assert_array_equal(download(waiting), np.arange(6) * 3)


def test_buffers_are_told_apart() -> None:
    a, b = (allocate_buffer("PYTHON", F32, 4) for _ in range(2))
    assert buffer_node(a) is not buffer_node(b)
    assert buffer_node(a).storage is a
    assert a.nbytes == 16


@pytest.mark.parametrize("dtype", dtypes.data, ids=str)
def test_every_dtype_has_a_view(dtype: object) -> None:
    buffer = allocate_buffer("LLVM", dtype, 3)  # type: ignore[arg-type]
    assert buffer.host_array().nbytes == buffer.nbytes
    assert buffer.address % 64 == 0
    assert isinstance(buffer, Buffer)
