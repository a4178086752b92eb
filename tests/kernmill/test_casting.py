from __future__ import annotations

from kernmill import Tensor, dtypes


def test_to_takes_a_dtype_or_a_device() -> None:
    t = Tensor([1.5])
    assert t.to(dtypes.int8).tolist() == [1]
    assert t.to(t.device) is t
    assert t.to("python").device == "PYTHON"
    assert t.float() is t


def test_copies_keep_their_values() -> None:
    t = Tensor([1.0, 2.0])
    kept, own = t.clone(), t.contiguous()
    t += 1
    assert (kept.tolist(), own.tolist()) == ([1, 2], [1, 2])
