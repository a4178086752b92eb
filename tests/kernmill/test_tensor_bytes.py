"""Tensors over bytes and bytes of tensors: every dtype, aligned or not."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from kernmill import DType, Tensor, dtypes, jit, nn
from kernmill.runtime import WeightArena
from kernmill.tensor_bytes import bytes_of, in_new_memory, joined_in_memory, tensor_over


@pytest.mark.parametrize("dtype", dtypes.data, ids=str)
@pytest.mark.parametrize("shift", [0, 1])
def test_there_and_back(dtype: DType, shift: int) -> None:
    tensor = Tensor([0, 1, 1, 0, 1, 1], dtype).reshape(2, 3)
    raw = bytes(bytes_of(tensor))
    assert len(raw) == 6 * dtype.size_bytes
    back = tensor_over(memoryview(bytes(shift) + raw)[shift:], dtype, (2, 3))
    assert (back.dtype, back.shape, back.tolist()) == (dtype, (2, 3), tensor.tolist())


def test_no_copy() -> None:
    values = np.arange(4, dtype=np.float32)
    tensor = tensor_over(memoryview(values.data).cast("B"), dtypes.float32, (4,), "LLVM")
    assert np.shares_memory(tensor.numpy(), values)
    own = tensor_over(memoryview(values.data).cast("B"), dtypes.float32, (4,), "LLVM", borrow=False)
    assert not np.shares_memory(own.numpy(), values)
    assert own.tolist() == values.tolist()


def test_the_order_of_bytes() -> None:
    assert bytes(bytes_of(Tensor([1, 258], dtypes.int16))) == b"\1\0\2\1"


def test_methods_are_pickled_by_their_names() -> None:
    """A model with Tensor.relu as a layer could not be pickled: the method was looked for where it is defined."""
    model = nn.Sequential(nn.Linear(2, 3), Tensor.relu)
    x = Tensor([[1.0, -2.0]])
    assert pickle.loads(pickle.dumps(model))(x).tolist() == model(x).tolist()
    assert pickle.loads(pickle.dumps(Tensor.gelu)) is Tensor.gelu
    for name in ("view", "clip", "conv1d", "mm", "amax", "empty_like"):  # other names of a method
        alias = getattr(Tensor, name)
        assert pickle.loads(pickle.dumps(alias)) == alias


def test_neighbours_in_memory_are_one_tensor() -> None:
    arena = WeightArena("LLVM")
    first, second, third = (in_new_memory(dtypes.int32, (rows, 16), "LLVM", arena) for rows in (1, 2, 3))
    for number, tensor in enumerate((first, second, third)):
        tensor[:] = number
        tensor.realize()
    both = joined_in_memory([first, second])
    assert both is not None
    assert (both.shape, both.dtype, both[:, 0].tolist()) == ((3, 16), dtypes.int32, [0, 1, 1])
    assert np.shares_memory(both.numpy(), second.numpy())
    assert joined_in_memory([second, first]) is None  # the other way round
    assert joined_in_memory([first, third]) is None  # not the next one
    assert joined_in_memory([first, second.reshape(4, 8)]) is None
    assert joined_in_memory([first, second[:1]]) is None  # a part of its memory
    assert joined_in_memory([first, Tensor.zeros(2, 16, dtype=dtypes.int32)]) is None  # no memory
    assert joined_in_memory([Tensor([[1]], device="LLVM").realize(), Tensor([[2]], device="LLVM").realize()]) is None


def test_who_assigns_to_neighbours_that_were_joined_writes_elsewhere() -> None:
    """The one tensor was written in place: the neighbours changed with it, and what a capture adds."""
    arena, x = WeightArena("LLVM"), Tensor([[0] * 16], device="LLVM")
    first, second = (in_new_memory(dtypes.int32, (1, 16), "LLVM", arena) for _ in range(2))
    for number, tensor in enumerate((first, second)):
        tensor[:] = number
        tensor.realize()
    both = joined_in_memory([first, second])
    assert both is not None
    adds = jit(lambda x: x + both[1])
    assert [adds(x).tolist()[0][0] for _ in range(3)] == [1, 1, 1]
    second += 10
    assert [t[:, 0].tolist() for t in (first, second.realize(), both)] == [[0], [11], [0, 1]]
    assert adds(x).tolist()[0][0] == 1
    both += 20
    assert [t[:, 0].tolist() for t in (first, second, both.realize())] == [[0], [11], [20, 21]]


def test_captures_that_write_neighbours_look_again_when_these_are_joined() -> None:
    """Named regression: they went on to write in place, and the joined tensor changed."""
    arena, x = WeightArena("LLVM"), Tensor([[1] * 16], dtypes.int32, device="LLVM").realize()
    first, second = (in_new_memory(dtypes.int32, (1, 16), "LLVM", arena) for _ in range(2))
    for tensor in (first, second):
        tensor[:] = 0
        tensor.realize()

    @jit
    def step(w: Tensor) -> Tensor:
        first.assign(first + x)
        w.assign(w + x)
        return first + w

    for _ in range(3):
        step(second)
    both = joined_in_memory([first, second])
    assert both is not None
    assert step(second).tolist()[0][0] == 8
    assert both[:, 0].tolist() == [3, 3]
