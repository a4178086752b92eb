"""Arrays that a captured call is given: their memory is used again only when nothing can see its old values."""

from __future__ import annotations

import numpy as np

from kernmill import Tensor, dtypes
from kernmill.captures import Staging
from kernmill.ir import setting


def staging(shape: tuple[int, ...], dtype: str = "float32") -> Staging:
    return Staging(str(setting("DEVICE")), getattr(dtypes, dtype), shape, int(np.prod(shape)))


def test_memory_is_used_again() -> None:
    staged = staging((2, 3))
    addresses = {staged.tensor(np.full((2, 3), n, np.float32)).uop.src[0].storage.address for n in range(5)}
    assert len(addresses) == 1


def test_a_tensor_that_is_kept_keeps_its_values() -> None:
    staged = staging((2, 3))
    kept = [staged.tensor(np.full((2, 3), n, np.float32)) for n in range(5)]
    views = [np.asarray(tensor) for tensor in kept]
    del kept
    more = staged.tensor(np.full((2, 3), 9, np.float32))
    assert [view[0, 0] for view in views] == [0, 1, 2, 3, 4]
    assert float(more.sum().item()) == 54


def test_arrays_of_any_strides_and_none_at_all() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3).T
    np.testing.assert_array_equal(staging((3, 2), "int16").tensor(array).numpy(), array)
    assert staging((0, 3)).tensor(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert staging(()).tensor(np.array(2.5, np.float32)).item() == 2.5
    assert isinstance(staging((1,), "bool").tensor(np.array([True])), Tensor)
