"""DEVICE as a list: what it may say, and a graph that no device of it can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, DeviceError, OutOfMemoryError, Tensor
from kernmill.runtime import default_device, device_list, opening


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("LLVM", ["LLVM"]),
        ("CL, LLVM", ["CL", "LLVM"]),
        ("FAR:0..2", ["FAR:0", "FAR:1", "FAR:2"]),
        ("CL,FAR:1?mib=8&most=4,LLVM", ["CL", "FAR:1?mib=8&most=4", "LLVM"]),
        ("FAR:0..1?mib=8", ["FAR:0?mib=8", "FAR:1?mib=8"]),
        ("FAR:3..1", ["FAR:3..1"]),
    ],
)
def test_names_in_a_list(text: str, names: list[str]) -> None:
    assert opening.split_names(text) == names


def test_the_first_device_is_that_of_new_tensors() -> None:
    with Context(DEVICE="python,LLVM:0"):
        assert device_list() == ("PYTHON", "LLVM")
        assert default_device() == "PYTHON"
        assert Tensor([1.0]).device == "PYTHON"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("LLVM,LLVM:0", "DEVICE=LLVM,LLVM:0: LLVM is named twice. Name each device once."),
        ("LLVM,NOWHERE", "device 'NOWHERE'"),
        ("LLVM,", "device ''"),
        ("LLVM,PYTHON:7", "device 'PYTHON:7'"),
    ],
)
def test_lists_that_cannot_be(text: str, sentence: str) -> None:
    with Context(DEVICE=text), pytest.raises(DeviceError) as caught:
        Tensor([1.0, 2.0]).realize()
    assert sentence in str(caught.value)


def test_one_device_still_refuses_tensors_of_two() -> None:
    with pytest.raises(DeviceError, match="tensors on LLVM and PYTHON"):
        Tensor([1.0], device="LLVM").realize() + Tensor([1.0], device="PYTHON").realize()


def test_a_graph_that_fits_nowhere_launches_nothing(far: Any) -> None:
    names = [far(0, mib=1), far(1, mib=1)]
    with Context(DEVICE=",".join(names)):
        x = Tensor(np.ones(1000, np.float32)).realize()
        with pytest.raises(OutOfMemoryError) as caught:
            x.reshape(1000, 1).expand(1000, 1000).contiguous().realize()
        assert "this graph does not fit." in str(caught.value)
        assert "too much" in str(caught.value)
        assert x.sum().item() == 1000


def test_a_graph_goes_where_there_is_memory(far: Any) -> None:
    names = [far(0, mib=1), "LLVM"]
    with Context(DEVICE=",".join(names)):
        x = Tensor(np.ones(1000, np.float32)).realize()
        y = x.reshape(1000, 1).expand(1000, 1000).contiguous().realize()
        assert (x.device, y.device) == (names[0], "LLVM")
        assert y.sum().item() == 1e6


def test_a_captured_function_over_two_devices() -> None:
    from kernmill import jit

    @jit
    def step(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu().sum(0)

    rng = np.random.default_rng(0)
    for _ in range(4):
        a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((4, 6), (6, 5)))
        with Context(DEVICE="LLVM,PYTHON"):
            got = step(Tensor(a, device="LLVM").realize(), Tensor(b, device="PYTHON").realize())
        np.testing.assert_array_equal(got.numpy(), np.maximum(a @ b, 0).sum(0))
