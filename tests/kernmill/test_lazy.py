from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kernmill
from kernmill import Context, DeviceError, GradientError, Tensor, no_grad, train
from kernmill.lazy import changes, device_name, is_grad_enabled, is_training, tracked_tensors
from kernmill.runtime import get_device


def test_modes_are_of_a_block() -> None:
    assert is_grad_enabled()
    with no_grad():
        assert not is_grad_enabled()
    assert is_grad_enabled()
    assert is_training()
    with train(False):
        assert not is_training()
        with train():
            assert is_training()


def test_device_names() -> None:
    assert (device_name("llvm:0"), device_name("Python"), device_name("cl:1")) == ("LLVM", "PYTHON", "CL:1")
    assert (device_name("llvm:00"), device_name("cl:01")) == ("LLVM", "CL:1")
    with pytest.raises(DeviceError, match="expected a device name such as LLVM or LLVM:1"):
        device_name("llvm:x")


def test_one_device_by_two_names_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_device("LLVM")), "index_of", lambda text: ["big", "far"].index(text.lower()))
    assert (device_name("llvm:big"), device_name("llvm:far")) == ("LLVM", "LLVM:1")
    for name in ("LLVM:00", "LLVM:big"):
        with Context(DEVICE=name):
            assert (Tensor.ones(3).contiguous().realize() + Tensor([1.0, 2.0, 3.0])).tolist() == [2.0, 3.0, 4.0]


def test_public_names_are_sorted_and_there() -> None:
    assert kernmill.__all__ == sorted(kernmill.__all__)
    assert [name for name in kernmill.__all__ if not hasattr(kernmill, name)] == []


def test_the_origin_is_the_outermost_line() -> None:
    def helper(t: Tensor) -> Tensor:
        return t.softmax()

    y = helper(Tensor([1.0, 2.0]))
    line = helper.__code__.co_firstlineno + 1
    assert {n.origin for n in y.uop.toposort() if n.op.name == "DIV"} == {f"{__file__}:{line}"}


def test_building_a_graph_is_quick() -> None:
    t = Tensor([1.0, 2.0])
    start = time.perf_counter()
    for _ in range(2000):
        t = t + 1
    assert time.perf_counter() - start < 1.0


def test_import_is_light() -> None:
    names = "numpy", "torch", "llvmlite", "hashlib"
    code = f"import sys, kernmill; print([name for name in {names} if name in sys.modules])"
    root = Path(kernmill.__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_nodes_are_exchanged_in_one_place() -> None:
    """Captures rely on the counter: who gives a tensor another node without it would replay on old memory."""
    folder = Path(kernmill.__file__).parent
    found = re.compile(r"\.uop(?:, [\w.]+)* = ")
    sites = [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if found.search(line)
    ]
    assert sites == [
        "deferred.py: tensor.uop = node = call.expand()",  # its first node, which nobody has seen
        "lazy.py: new.uop, new._requires_grad, new.grad, new._device = uop, requires_grad, None, device",
        "lazy.py: self.uop = node",
        "lazy.py: self.uop = apart(self.uop, is_constant)",  # a new tensor's
        "size.py: self.uop = uop",
        "tensor.py: self.uop, self._device, self._is_named, self._call = made.uop, made._device, True, None",
        "variable.py: self.uop = UOp(Ops.VARIABLE, dtypes.index, (), (name, least, greatest))",
    ]


def test_the_counter_of_changes() -> None:
    a, b = Tensor([1.0]).realize(), Tensor([2.0]).realize()
    before = changes()
    c = (a + b).realize()
    assert changes() > before
    changed: list[Callable[[], object]] = [lambda: a.assign(b), lambda: a.replace(c), lambda: a.requires_grad_()]
    for change in changed:
        before = changes()
        change()
        assert changes() > before


def test_python_names_the_class_that_users_know() -> None:
    """It was Joining.cat, after the family that the method stands in."""
    with pytest.raises(TypeError, match=r"^Tensor\.cat\(\) got an unexpected keyword argument 'way'"):
        Tensor.ones(2).cat(Tensor.ones(2), way=0)  # type: ignore[call-arg]


@pytest.mark.parametrize("is_realized", [False, True])
def test_a_target_made_without_gradients_leads_to_none(is_realized: bool) -> None:
    """It led to the gradient of its leaves as long as it was not computed."""
    w, x = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0])
    with no_grad():
        target = w * 2 + x.maximum(w)
    if is_realized:
        target.realize()
    assert not target.requires_grad
    ((w * x - target) ** 2).sum().backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), 2 * np.array([3 - 5, 8 - 8]) * np.array([3, 4]))


def test_a_leaf_that_is_given_values_without_gradients_stays_one() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    with no_grad():
        w.assign(w * 0.5 + 1)
        w += w
    assert w.requires_grad
    (w * w).sum().backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), [6.0, 8.0])


@pytest.mark.parametrize("is_realized", [False, True])
@pytest.mark.parametrize("made", ["grad", "copy", "gradient"])
def test_what_requires_no_gradient_leads_to_none(made: str, is_realized: bool) -> None:
    """It did as long as it was not computed: grad of a leaf, Tensor(w), and a gradient asked for in no_grad()."""
    w = Tensor([1.0, 2.0], requires_grad=True)
    loss = (w**3).sum()
    if made == "grad":
        loss.backward()
        assert w.grad is not None
        found, w.grad = w.grad, None
    elif made == "copy":
        found = Tensor(w * w * 3)
    else:
        with no_grad():
            (found,) = loss.gradient(w)
    if is_realized:
        found.realize()
    assert not found.requires_grad
    (found * w).sum().backward()
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), [3.0, 12.0])


def test_a_result_is_not_written_to_without_gradients() -> None:
    """PyTorch lets the gradient by; here the result would be a constant from then on."""
    y = Tensor([1.0, 2.0], requires_grad=True) * 3
    with no_grad():
        for write in (lambda: y.assign(y + 1), lambda: y.__imul__(2), lambda: y.__setitem__(0, 5.0)):
            with pytest.raises(GradientError, match=r"in no_grad\(\) to a tensor .* Write x = x\.detach\(\)"):
                write()
        y = y.detach()
        y += 1
    assert y.tolist() == [4.0, 7.0]


def test_live_tensors_are_in_order_of_creation() -> None:
    """A graph lists the tensors that it assigns in this order: in another one its stored plan was not found again, and
    each start of a large model planned again."""
    made = [Tensor([float(n)]) for n in range(400)]
    del made[::3]
    numbers = {id(tensor): n for n, tensor in enumerate(made)}
    found = [numbers[id(tensor)] for _, tensor in tracked_tensors() if id(tensor) in numbers]
    assert found == sorted(numbers.values())
