from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, IndexRangeError, ShapeError, Tensor, dtypes
from tests.kernmill.against import close, same

DATA: list[tuple[Any, str]] = [
    (3, "int64"), (2.5, "float32"), (True, "bool"), ([1, 2], "int64"), ([1, 2.5], "float32"), ([True, False], "bool"),
    ([[1], [2]], "int64"), ([], "float32"), (b"\x01\xff", "uint8"), (np.float64(2), "float64"),
    (np.arange(6).reshape(2, 3)[:, ::-2], "int64"), (np.arange(4, dtype=">i4"), "int32"),
    (np.array(5, ">f8"), "float64"),
    (np.asfortranarray(np.ones((2, 3), np.float32)), "float32"), (np.zeros((0, 2), np.int8), "int8"),
    (np.broadcast_to(np.float32(1), (3, 2)), "float32"), (np.array([1, 2], np.float16), "float16"), ([2**63], "uint64"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "dtype"), DATA, ids=str)
def test_data_comes_back(data: Any, dtype: str) -> None:
    t = Tensor(data)
    want = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
    assert t.dtype.name == dtype
    close(t, want.astype(dtype))


def test_data_is_copied() -> None:
    x = np.zeros(2, np.float32)
    t = Tensor(x)
    x[0] = 1
    assert t.tolist() == [0, 0]


def test_from_dlpack_shares_the_memory_and_keeps_it() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    t = Tensor.from_dlpack(theirs)
    assert t.numpy().ctypes.data == theirs.data_ptr() or t.device != "LLVM"
    t += 1
    t.realize()
    assert theirs.tolist() == [[0, 1, 2], [3, 4, 5]]  # never written
    ours = Tensor.from_dlpack(torch.full((1000,), 7.0))  # its owner is gone
    torch.full((1000,), 8.0)
    assert (ours * 2).sum().item() == 14000
    copied = Tensor.from_dlpack(theirs, copy=True)
    theirs[0, 0] = 9
    assert copied.tolist()[0] == [0, 1, 2]
    same(Tensor.from_dlpack(theirs.T), theirs.numpy().T)
    same(Tensor.from_dlpack(t), t.numpy())
    with pytest.raises(ShapeError, match=r"shape \(3, 2\) with strides \(4, 12\) cannot be used without a copy on"):
        Tensor.from_dlpack(theirs.T, copy=False)
    same(Tensor.from_dlpack(torch.arange(3), copy=False if t.device == "LLVM" else None), np.arange(3))
    with pytest.raises(DTypeError, match="complex64"):
        Tensor.from_dlpack(theirs.to(torch.complex64))
    bits = Tensor.from_dlpack(theirs.bfloat16().view(torch.int16)).bitcast(dtypes.bfloat16)
    assert bits.float().tolist() == theirs.tolist()


def test_bfloat16_comes_and_goes_by_dlpack() -> None:
    """It was refused on both ways: NumPy, which takes the memory in and passes it on, knows no bfloat16."""
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6).reshape(2, 3).bfloat16()
    t = Tensor.from_dlpack(theirs)
    assert (t.dtype, t.tolist()) == (dtypes.bfloat16, theirs.tolist())
    assert t.device != "LLVM" or t.bitcast(dtypes.uint16).numpy().tolist() == theirs.view(torch.int16).tolist()
    for part in (theirs.T, theirs[:, 1], theirs[:0]):
        assert Tensor.from_dlpack(part).tolist() == part.tolist()
    ours = (t * 2).realize()
    for back in (torch.from_dlpack(ours), torch.utils.dlpack.from_dlpack(ours.__dlpack__())):
        assert (back.dtype, back.tolist()) == (torch.bfloat16, (theirs * 2).tolist())
    assert Tensor.from_dlpack(ours).tolist() == ours.tolist()


RANGES = [(5,), (2, 5), (0, 10, 3), (5, 0, -2), (5, 5), (5, 2), (0.0, 1.0, 0.25), (1, 2, 0.3), (-1.5,), (3.0,)]


@pytest.mark.parametrize("arguments", RANGES)
def test_arange_is_numpys(arguments: tuple[float, ...]) -> None:
    want = np.arange(*arguments)
    close(Tensor.arange(*arguments), want.astype(np.float32) if want.dtype.kind == "f" else want)


@pytest.mark.parametrize("arguments", [(0, 1, 5), (-3, 7, 11), (2, 2, 3), (0, 1, 1), (0, 1, 0), (5, -5, 4)])
def test_linspace_is_numpys(arguments: tuple[float, float, int]) -> None:
    want = np.linspace(*arguments).astype(np.float32)
    got = Tensor.linspace(*arguments)
    close(got, want)
    if arguments[2] > 1:
        assert got[-1].item() == arguments[1]


def test_constants() -> None:
    same(Tensor.zeros(2, 3), np.zeros((2, 3), np.float32))
    same(Tensor.ones((2,), dtype=dtypes.int8), np.ones(2, np.int8))
    same(Tensor.full((2,), 7), np.full(2, 7))
    same(Tensor.full((), 0.1, dtype=dtypes.float64), np.array(0.1))
    same(Tensor.full(3, True), np.full(3, True))
    same(Tensor.eye(3), np.eye(3, dtype=np.float32))
    same(Tensor.eye(2, 4, dtype=dtypes.int32), np.eye(2, 4, dtype=np.int32))
    assert Tensor.empty(2, 2).shape == (2, 2)
    like = Tensor.ones(2, dtype=dtypes.float16)
    assert (like.zeros_like().dtype, like.full_like(3, dtype=dtypes.int32).tolist()) == (dtypes.float16, [3, 3])
    assert like.ones_like().tolist() == [1, 1]


def test_one_hot() -> None:
    same(Tensor([2, 0]).one_hot(3), np.array([[0, 0, 1], [1, 0, 0]]))


def test_bfloat16_of_pytorch_is_taken() -> None:
    """Named regression: NumPy does not get it from PyTorch, whose TypeError came through, also out of a state."""
    torch = pytest.importorskip("torch")
    theirs = torch.tensor([[1.0, 2.5]], dtype=torch.bfloat16)
    made = Tensor(theirs)
    theirs[0, 0] = 7
    assert (made.dtype, made.tolist()) == (dtypes.bfloat16, [[1, 2.5]])
    assert Tensor(theirs, "float32", "PYTHON").tolist() == [[7, 2.5]]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.longdouble])
def test_a_list_of_numpys_floats_is_taken(kind: Any) -> None:
    """Named regression: those of float16 were compared with 2**63, which they cannot hold, and a warning came."""
    made = Tensor([kind(1.5), kind(2)])
    assert (made.dtype, made.tolist()) == (dtypes.float32, [1.5, 2])


def test_values_are_converted_on_the_way_in() -> None:
    same(Tensor([1.9, -1.9], dtype=dtypes.int8), np.array([1, -1], np.int8))
    same(Tensor(np.array([1, 0], np.int64), dtype=dtypes.bool), np.array([True, False]))
    same(Tensor([1, 2], dtype=dtypes.float16), np.array([1, 2], np.float16))
    same(Tensor(Tensor([1.5]), dtype=dtypes.int32), np.array([1], np.int32))


@pytest.mark.parametrize("classes", [[1, 3], [0, -1]])
def test_one_hot_of_a_class_outside(classes: list[int]) -> None:
    with pytest.raises(IndexRangeError, match="one_hot: a class outside 0 to 2"):
        Tensor(classes).one_hot(3).realize()


def test_a_size_that_is_no_whole_number() -> None:
    size: Any
    for size in (2.5, "a", (1, 2.5)):
        with pytest.raises(ShapeError, match="Give integers"):
            Tensor.zeros(size)


def test_arange_up_to_a_tensor_or_array_of_one_int_is_of_ints() -> None:
    """Once they were floats."""
    for end in (Tensor(3), np.array(3), np.int8(3)):
        assert Tensor.arange(end).dtype is dtypes.int64  # type: ignore[arg-type]
        assert Tensor.arange(end).tolist() == [0, 1, 2]  # type: ignore[arg-type]
    assert Tensor.arange(np.array(2.5)).tolist() == [0.0, 1.0, 2.0]  # type: ignore[arg-type]
