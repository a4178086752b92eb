from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from kernmill import Context, DeviceError, DTypeError, ShapeError, Tensor, dtypes
from tests.kernmill.against import same


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


def test_dtypes_are_taken_by_name_as_well() -> None:
    x = Tensor([1.5, -2.5])
    assert x.cast("int64").tolist() == [1, -2]
    assert x.cast(np.int8).dtype is dtypes.int8
    assert x.bitcast("int32").dtype is dtypes.int32
    assert Tensor.zeros(2, dtype="uint8").tolist() == [0, 0]
    assert Tensor.full((1,), 3, dtype=float).dtype is dtypes.float32
    assert Tensor.arange(3, dtype="float16").dtype is dtypes.float16
    assert Tensor.linspace(0, 1, 3, dtype="float64").tolist() == [0, 0.5, 1]
    assert Tensor.eye(2, dtype="bool").dtype is dtypes.bool
    assert x.sum(dtype="float64").dtype is x.softmax(dtype="float64").dtype is dtypes.float64
    assert x.sum(dtype="int16").item() == -1
    assert Tensor.rand(2, dtype="float16").dtype is Tensor.randn(2, dtype="float16").dtype is dtypes.float16
    assert Tensor.randint(0, 9, (2,), dtype="int32").dtype is dtypes.int32
    with pytest.raises(DTypeError, match=r"as_dtype\('float31'\): kernmill has no such dtype. Use one of"):
        x.cast("float31")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_a_float_outside_an_int_wraps_in_lanes_as_alone(dtype: str, device: str) -> None:
    """Once a negative one in uint32 and uint64 was what the machine liked."""
    x = np.array([-1, -3.7, 70000, -70000, 2e9, -2e9, -0.0], np.float32)
    with Context(DEVICE=device):
        for source in (x, np.tile(x, 8)):
            same(Tensor(source).cast(dtype), source.astype(np.int64).astype(dtype))


def test_a_device_that_is_not_there_is_told_at_once() -> None:
    for name, sentence in (
        ("cpu", "device 'cpu': the CPU device is named LLVM: write 'LLVM', or omit the device."),
        ("gpu", "device 'gpu': GPUs are used through OpenCL, device CL: write 'CL'."),
        ("float16", "device 'float16': that is a dtype: write x.cast('float16')."),
    ):
        with pytest.raises(DeviceError, match=re.escape(sentence)):
            Tensor([1.0]).to(name)
        with pytest.raises(DeviceError, match=re.escape(sentence)):
            Tensor([1.0], device=name)
    with pytest.raises(DeviceError, match="device 'NOWHERE': not found"):
        Tensor([1.0]).to("nowhere")


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "int32", "float32", "uint64", "float64"])
@pytest.mark.parametrize("other", ["uint8", "int16", "float16", "int32", "float32", "uint64", "float64"])
def test_a_view_of_another_dtype_is_numpys(dtype: str, other: str) -> None:
    raw = np.random.default_rng(1).integers(1, 60, (2, 16)).astype(np.uint8)  # no nan among the floats
    x = raw.view(dtype)
    got, want = Tensor(x).view(getattr(dtypes, other)), x.view(other)
    assert got.dtype.name == other
    np.testing.assert_array_equal(got.numpy(), want)


def test_bytes_of_a_file_are_read_as_floats() -> None:
    raw = np.arange(8, dtype=np.float32).tobytes()
    assert Tensor(raw).view(dtypes.float32).tolist() == list(range(8))
    assert Tensor(raw).bitcast("bfloat16").shape == (16,)
    with pytest.raises(ShapeError, match=r"bitcast: uint8 of shape \(3,\) to float32: the last axis must"):
        Tensor(raw[:3]).view(dtypes.float32)


def test_to_takes_a_dtype_and_a_device_by_name() -> None:
    x: Any = Tensor([1, 2])
    assert x.to(dtype="float32").dtype is dtypes.float32
    assert x.to("PYTHON", dtypes.int8).device == "PYTHON"
    assert x.to(device="PYTHON", dtype="half").dtype is dtypes.float16
