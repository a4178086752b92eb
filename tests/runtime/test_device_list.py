"""DEVICE as a list: what it may say, and a graph that no device of it can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import Context, DeviceError, OutOfMemoryError, Tensor, dtypes
from kernmill.runtime import (
    allocate_buffer,
    default_device,
    device,
    device_list,
    device_rates,
    get_device,
    opening,
    room,
)


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


# --- faults: one sentence, and the other devices go on --------------------------------------------------------------
X = np.arange(4, dtype=np.float32)


def test_a_device_of_a_list_that_dies(far: Any) -> None:
    """Its first use gave a bare EOFError: free memory is asked before a graph is placed."""
    name = far(0)
    with Context(DEVICE=f"{name},LLVM"):
        x, y = Tensor(X).realize(), Tensor(X, device="LLVM").realize()
        assert (x + y).numpy().tolist() == [0, 2, 4, 6]
        device: Any = get_device(name)
        device.process.kill()
        for use in ((x + 1).numpy, x.numpy, (x * y).numpy):
            with pytest.raises(DeviceError, match=r"FAR: props failed \((EOF|BrokenPipe)Error.*The device is lost"):
                use()
        assert (y + 1).numpy().tolist() == [1, 2, 3, 4]
        assert (Tensor(X) * 2).numpy().tolist() == [0, 2, 4, 6]  # opened again


@pytest.mark.parametrize("call", [4, 9, 30, 90])
def test_a_device_that_dies_while_it_is_measured(far: Any, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rates, "_tables", {})
    name = far(1, die_at=call)
    message = r"FAR:1: .* failed \((EOF|BrokenPipe)Error.*\)\. The device is lost"
    with Context(DEVICE=f"LLVM,{name}", CACHE="0"), pytest.raises(DeviceError, match=message):
        (Tensor(X) * 2).realize()
    assert (Tensor(X) * 2).numpy().tolist() == [0, 2, 4, 6]


def test_a_supports_that_raises_in_a_list(far: Any) -> None:
    from tests.far_device import FarDevice

    name = far.announce("PICKY", type("Picky", (FarDevice,), {"supports": lambda self, op, node: 1 // 0}))
    with Context(DEVICE=f"{name},LLVM"):
        x = Tensor(X, device="LLVM")
        with pytest.raises(DeviceError, match=r"device 'PICKY': supports failed \(ZeroDivisionError"):
            (x * 2.5).realize()
    assert (x * 2.5).numpy().tolist() == [0, 2.5, 5, 7.5]


def test_links_that_cannot_be_measured(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.far_device import FarDevice

    def copy_from(self: Any, target: Any, source: Any, device: Any) -> None:
        raise RuntimeError("cable is out")

    monkeypatch.setattr(device_rates, "_tables", {})
    name = far.announce("LOOSE", type("Loose", (FarDevice,), {"copy_from": copy_from}))
    message = r"placement: the copies from LLVM to LOOSE cannot be measured.*Leave one of them out.*cable is out"
    with Context(DEVICE=f"LLVM,{name}", CACHE="0"), pytest.raises(DeviceError, match=message):
        (Tensor(X) * 2).realize()


def test_a_device_without_memory(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rates, "_tables", {})
    name = far(2, mib=0)
    message = r"placement: the rates of FAR:2 cannot be measured.*Leave FAR:2 out of DEVICE.*out of memory"
    with Context(DEVICE=f"LLVM,{name}", CACHE="0"), pytest.raises(DeviceError, match=message):
        (Tensor(X) * 2).realize()
    with pytest.raises(DeviceError, match=r"device 'FAR:3': a buffer of at most .* 0 in all, .* could run nothing"):
        far(3, mapped=0)


def test_a_device_that_is_full(far: Any) -> None:
    """It said 0 free bytes, which meant unknown: graphs were placed there, and ran out of memory."""
    name = far(0, mib=1)
    with Context(DEVICE=f"LLVM,{name}"):
        (Tensor(X) * 2).realize()  # it is measured while there is room
        device = get_device(name)
        device.allocator.trim()
        x = Tensor(X, device=name).realize()
        held = Tensor(np.ones(device.props().free_bytes // 4, np.float32), device=name).realize()
        assert device.props().free_bytes == 0
        assert room(device) == 0
        found = (x * 2 + 1).realize()
        assert found.device == "LLVM"
        assert found.numpy().tolist() == [1, 3, 5, 7]
        assert held.shape == (len(held.numpy()),)


def test_options_of_the_list_reach_a_device_that_is_named_alone(far: Any) -> None:
    """`device="FAR:1"` opened it without the options of DEVICE, and later uses of the list were refused."""
    with Context(DEVICE="LLVM,FAR:1?mib=8"):
        assert Tensor(X, device="FAR:1").realize().device == "FAR:1"
        assert get_device("FAR:1").limits.total_bytes == 8 << 20
        assert (Tensor(X) + 1).numpy().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("listed", ["LLVM", "LLVM,PYTHON"])
def test_a_captured_function_whose_arguments_move(listed: str) -> None:
    from kernmill import jit

    step = jit(lambda a: (a * 3).sum())
    w = Tensor(X, device="LLVM").realize()
    with_state = jit(lambda a: (a * w).sum())
    with Context(DEVICE=listed):
        for count in range(8):
            a = Tensor(X + count, device=("LLVM", "PYTHON")[count % 2])
            assert step(a).item() == 18 + 12 * count
            if listed == "LLVM" and count % 2:
                with pytest.raises(DeviceError, match=r"mul: tensors on PYTHON and LLVM\. Move one side"):
                    with_state(a)
            else:
                assert with_state(a).item() == 14 + 6 * count


def test_random_numbers_after_a_device_was_lost(far: Any) -> None:
    """The state of its random numbers was on the device: each later call said that the device is lost."""
    name = far()
    first = Tensor.rand(4, device=name).numpy()
    device.lose(get_device(name), "gone.")
    assert Tensor.rand(4, device=name).numpy().tolist() == first.tolist()
    assert Tensor.rand(4, device="LLVM").numpy().shape == (4,)


def test_options_of_a_device_by_name(far: Any) -> None:
    """`device="FAR?mib=8"` was refused: there is no option MIB."""
    far()
    name = Tensor.ones(2, device="far:2?mib=8").device
    assert (name, get_device(name).props().total_bytes) == ("FAR:2", 8 << 20)


def test_what_is_kept_for_reuse_is_room(far: Any) -> None:
    """Blocks of earlier tensors counted as taken: a graph that fits was refused."""
    opened = get_device(far(mib=8))
    allocate_buffer(opened.name, dtypes.float32, 1 << 20)
    assert opened.props().free_bytes <= 4 << 20
    assert room(opened) >= 8 << 20
